#!/usr/bin/env python3
"""Golden models from Hugging Face transformers and PyTorch, in float64:  python3 test/golden/make_models.py

Writes test/golden/<model>.safetensors: weights (float32, exactly representable), tokens and targets, and PyTorch's
results in float64: logits, loss, every gradient, greedy continuations of the first three tokens of each row, the losses
of ten AdamW steps (with the clipping and weight decay of train/) and, if the head is not tied, of ten Teon steps.
Needs dev/requirements-dev.txt. The fixtures are committed, so running the tests does not need it.
"""

import pathlib

import make_optim
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
LR, WEIGHT_DECAY, BETAS, EPS, CLIP, STEPS = 1e-2, 0.1, (0.9, 0.95), 1e-8, 1.0, 10
TEON_LR = 0.02


# Of all models with RMSNorm.
DECODER = dict(vocab_size=67, hidden_size=24, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=13, rms_norm_eps=1e-6, tie_word_embeddings=False,
               attention_bias=False, bos_token_id=0, eos_token_id=0)
# All that Llama 3.1's configurations may have: their scaling of positions, with a fast, a slow and a middle frequency
# (wavelengths of 6, 2917 and 135 tokens), and biases.
LLAMA31 = dict(rope_parameters={"rope_theta": 1e4, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
               tie_word_embeddings=True, attention_bias=True, mlp_bias=True)


def gpt2(activation="gelu_new"):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=61, n_positions=13, n_embd=24, n_layer=2, n_head=3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        activation_function=activation, bos_token_id=0, eos_token_id=0))


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER | options))


def rope(base):
    return {"rope_theta": base, "rope_type": "default"}


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **DECODER | {"rope_parameters": rope(1e6), "tie_word_embeddings": True}))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **DECODER | {"head_dim": 10, "rope_parameters": rope(1e6), "tie_word_embeddings": True}))


def olmo2():
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(
        **DECODER | {"rope_parameters": rope(5e5), "pad_token_id": None}))


def olmo3():
    """The second layer without a window, and with YaRN's scaling: it keeps, halves the way and divides a frequency."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 512}
    by_layer = {"sliding_attention": rope(1e4), "full_attention": yarn | {"rope_theta": 1e4}}
    return transformers.Olmo3ForCausalLM(transformers.Olmo3Config(
        **DECODER | {"sliding_window": 5, "layer_types": list(by_layer), "pad_token_id": None,
                     "rope_parameters": by_layer}))


def smollm3():
    return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(
        **DECODER | {"no_rope_layers": [1, 0], "rope_parameters": rope(2e6), "tie_word_embeddings": True,
                     "pad_token_id": None}))


MODELS = {"gpt2": gpt2, "llama": lambda: llama(num_key_value_heads=4), "llama_gqa": llama,
          "gpt2_relu2": lambda: gpt2("relu2"), "gpt2_erf": lambda: gpt2("gelu"), "llama_31": lambda: llama(**LLAMA31),
          "qwen2": qwen2, "qwen3": qwen3, "olmo2": olmo2, "olmo2_3": olmo3, "smollm3": smollm3,
          "llama_geglu": lambda: llama(num_key_value_heads=4, hidden_act="gelu_pytorch_tanh"),
          "llama_geglu_erf": lambda: llama(num_key_value_heads=4, hidden_act="gelu")}


def spread(model):
    """Moves every parameter away from its initial value, so that no gradient is small by symmetry."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_((p.double() + 0.15 * noise).float())  # representable in float32


def loss_of(model, tokens, targets):
    logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def adamw(parameters):
    """Decoupled weight decay for matrices, none for vectors."""
    matrices, vectors = [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=LR, betas=BETAS, eps=EPS)


def adamw_losses(model, tokens, targets):
    optimizer = adamw(list(model.parameters()))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _ = loss_of(model, tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def greedy(model, prompts, length):
    """generate() with its cache: (rows, length) tokens, including the prompts."""
    return model.generate(prompts, attention_mask=torch.ones_like(prompts), max_length=length, min_length=length,
                          do_sample=False, num_beams=1, use_cache=True, eos_token_id=None, pad_token_id=0)


def teon_losses(model, tokens, targets):
    """Teon with Q, K and V of both layers stacked and the other hidden matrices alone; AdamW for the rest."""
    named = dict(model.named_parameters())
    stacks = [[f"model.layers.{layer}.self_attn.{x}_proj.weight" for layer in (0, 1)] for x in "qkv"]
    stacks += [[f"model.layers.{layer}.{x}.weight"] for layer in (0, 1)
               for x in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")]
    stacked = {name for stack in stacks for name in stack}
    optimizer = adamw([p for n, p in named.items() if n not in stacked])
    momenta = {name: torch.zeros_like(named[name]) for name in stacked}
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss, _ = loss_of(model, tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        with torch.no_grad():
            for name in stacked:
                momenta[name] = make_optim.MOMENTUM * momenta[name] + named[name].grad
            for stack in stacks:
                updates = make_optim.teon_updates([momenta[name] for name in stack], 1, "polar-express", False, False)
                for name, update in zip(stack, updates):
                    named[name].mul_(1 - TEON_LR * WEIGHT_DECAY).sub_(TEON_LR * update)
        losses.append(loss.item())
    return losses


def make(name, model):
    torch.manual_seed(1)
    model = model.double().train()
    spread(model)
    T = 13
    tokens = torch.randint(0, model.config.vocab_size, (3, T + 1), generator=torch.Generator().manual_seed(2))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    out = {"tokens": inputs.int().contiguous(), "targets": targets.int().contiguous()}
    tied = getattr(model.config, "tie_word_embeddings", False)
    named = {n: p for n, p in model.named_parameters() if not (tied and n == "lm_head.weight")}
    for n, p in named.items():
        out[n] = p.detach().float().clone()
    loss, logits = loss_of(model, inputs, targets)
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    out["logits"] = logits.detach().float().contiguous()
    for n, p in named.items():
        out["grad." + n] = p.grad.float().clone()
    out["greedy"] = greedy(model.eval(), inputs[:, :3], T).int().contiguous()
    model.train()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    out["adamw_losses"] = torch.tensor(adamw_losses(model, inputs, targets), dtype=torch.float64)
    if not tied:
        model.load_state_dict(start, strict=False)
        out["teon_losses"] = torch.tensor(teon_losses(model, inputs, targets), dtype=torch.float64)
    path = HERE / f"{name}.safetensors"
    save_file(out, path)
    print(f"{path}: {path.stat().st_size} bytes, loss {loss.item():.6f} -> {out['adamw_losses'][-1]:.6f}")


if __name__ == "__main__":
    for name, build in MODELS.items():
        if name not in ("llama", "llama_gqa"):  # their fixtures were made behind gpt2's
            torch.manual_seed(0)
        make(name, build())
