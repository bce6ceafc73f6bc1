"""teon_torch against the engine: the same updates from the same gradients in random settings.
dev/run_tests.py test/scripts/test_teon_torch_engine.py"""
import math
import random
import re
import unittest

from testing import BUILD, Case, needs, write_shards
from torch_models import gpt2, torch, transformers

if torch:
    import teon_torch
    from safetensors.torch import load_file

TOKENS = [(7 * i * i + i // 5) % 64 for i in range(2000)]
RUN = ("--data . --shuffle off --seq-len 16 --batch-tokens 128 --micro-batch 8 --vocab-size 64 --optimizer teon "
       "--lr .02 --schedule constant --warmup-ratio 0 --grad-clip 0 --dtype float --eval-tokens 128")
# The engine's names of a layer's matrices, by the words of transformers' names.
ROLES = {"c_attn": ["attn.q", "attn.k", "attn.v"], "attn.c_proj": ["attn.o"], "c_fc": ["mlp.up"],
         "mlp.c_proj": ["mlp.down"], "q_proj": ["attn.q"], "k_proj": ["attn.k"], "v_proj": ["attn.v"],
         "o_proj": ["attn.o"], "gate_proj": ["mlp.gate"], "up_proj": ["mlp.up"], "down_proj": ["mlp.down"]}
LAYERS, STEPS = 3, 3
BOUND = 2e-4  # of the distance that a matrix has moved


def build(name):
    if name == "gpt2":
        return gpt2(layers=LAYERS)
    # 45 rows are padded to 48 by the engine.
    sizes = dict(vocab_size=64, bos_token_id=0, eos_token_id=0, pad_token_id=None, hidden_size=32, intermediate_size=45,
                 num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)
    model = {"llama": "Llama", "olmo2": "Olmo2", "qwen3": "Qwen3"}[name]
    config = getattr(transformers, f"{model}Config")(**sizes, **{"head_dim": 8} if name == "qwen3" else {})
    return getattr(transformers, f"{model}ForCausalLM")(config)


def random_setting(rng):
    """Returns (options of Teon, options of stacks_of, the engine's flags)."""
    ortho = rng.choice(["polar-express", "polar-express", "you", "you6", "jordan", "svd"])
    options = {"ortho": ortho, "mode": rng.choice([1, 2, 3]), "nesterov": rng.random() < .5,
               "momentum": rng.choice([.8, .95]), "weight_decay": rng.choice([0, .1]),
               "rms_match": rng.random() < .3, "normalize_slices": rng.random() < .3,
               "update_rms": rng.choice([None, None, .2]), "neuron_norm": rng.random() < .4,
               "cautious_weight_decay": rng.random() < .3}
    if ortho != "svd":
        options |= {"ns_form": rng.choice(["auto", "standard", "gram"]), "ns_aol": rng.random() < .4}
        if rng.random() < .5:
            options["ns_steps"] = rng.choice([3, 4, 6])
    if options["neuron_norm"]:
        options["neuron_beta2"] = rng.choice([.9, .95])
    division = {"k": rng.choice([1, 2, 3]), "ortho_per_head": rng.random() < .4}
    names = {"k": "teon_k", "mode": "teon_mode", "rms_match": "teon_rms_match",
             "normalize_slices": "teon_normalize_slices"}
    flags = []
    for name, value in (options | division).items():
        if value is not None:
            word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
            flags += [f"--{names.get(name, name).replace('_', '-')}", word]
    return options, division, flags


def aol_of_square_unfolding(slices, mode):
    """Returns O_k by docs/optimizers.md: rows of the paper's matricization (outputs, inputs or slices) are divided by
    the roots of their sums of |Z Z^T|, then four steps of Jordan's polynomial. slices: (K, m, n), in float64."""
    order = {1: (1, 0, 2), 2: (2, 0, 1), 3: (0, 1, 2)}[mode]
    rows = slices.permute(order)
    z = rows.flatten(1)
    assert z.shape[0] == z.shape[1]
    z = z / z.norm()
    z = z / (z @ z.T).abs().sum(1, keepdim=True).sqrt()
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(4):
        r = z @ z.T
        z = a * z + (b * r + c * r @ r) @ z
    return z.view(rows.shape).permute([order.index(i) for i in range(3)])


@needs("torch")
class AolTest(unittest.TestCase):
    def test_square_unfoldings_scale_the_rows_of_the_matricization(self):
        for mode, (K, m, n) in ((1, (2, 12, 6)), (2, (2, 6, 12)), (3, (6, 2, 3)), (1, (1, 8, 8)), (2, (1, 8, 8))):
            generator = torch.Generator().manual_seed(mode)
            grads = torch.randn(K, m, n, generator=generator, dtype=torch.float64)
            grads *= torch.logspace(-1, 1, n, dtype=torch.float64)  # rows and columns differ
            # Muon's mode is 1.
            expected = aol_of_square_unfolding(grads, mode if K > 1 else 1) * math.sqrt(m / n)
            for transposed in (False, True):
                for form in ("standard", "gram"):
                    params = [torch.nn.Parameter(torch.zeros(grads[0].mT.shape if transposed else grads[0].shape,
                                                             dtype=torch.float64)) for _ in grads]
                    for p, grad in zip(params, grads):
                        p.grad = (grad.mT if transposed else grad).contiguous()
                    teon_torch.Teon(params, lr=1, weight_decay=0, k=K, mode=mode, transposed=transposed, ortho="jordan",
                                    ns_aol=True, ns_form=form).step()
                    found = -torch.stack([p.detach().mT if transposed else p.detach() for p in params])
                    error = ((found - expected).norm() / expected.norm()).item()
                    # EPSILON; the other side's scales differ by more than 0.1.
                    self.assertTrue(error <= 1e-6, f"mode {mode}, {(K, m, n)}, {transposed}, {form}: {error:.2g}")


@needs("torch", "safetensors", "transformers")
class EngineTest(Case):
    def engine_run(self, name, model, out, *flags):
        program = BUILD / f"train_{name}"
        if not program.exists():
            self.skipTest(f"{program.name} is not built in {BUILD}")
        if not (self.folder / name).exists():
            model.eval().save_pretrained(self.folder / name)  # no dropout
            write_shards(self.folder, TOKENS, TOKENS)
        return self.call(program, "--init-from", name, *RUN.split(), "--out", out, *flags)

    def momenta(self, model, out, step):
        """Returns {a matrix's name: the engine's momentum after a step}."""
        state = load_file(self.folder / out / f"step_{step:08}/optimizer/state.safetensors")
        momenta = {}
        for name, p in model.named_parameters():
            layer = re.search(r"\.(\d+)\.", name)
            word = next((word for word in ROLES if f"{word}." in name), None)
            if layer and word and p.ndim == 2:
                prefix = "h" if f"h.{layer[1]}.attn.q.weight.momentum" in state else "layers"
                parts = [state[f"{prefix}.{layer[1]}.{role}.weight.momentum"] for role in ROLES[word]]
                whole = torch.cat(parts)
                whole = whole.mT if "c_" in word else whole
                momenta[name] = whole[:p.shape[0], :p.shape[1]].double()  # without the engine's padding
        return momenta

    def weights(self, out, step):
        return load_file(self.folder / out / f"step_{step:08}/model.safetensors")

    def test_forty_random_settings_from_the_same_gradients(self):
        # The engine's momenta give its gradients: G = M - mu M of the step before. Float sums in another order differ
        # by 2^-24 each; Newton-Schulz multiplies small singular values, and their rounding, by up to 440, and gradients
        # of later steps come from weights that differ by as much. Measured: 9e-5 for svd, 5e-5 for the others.
        torch.manual_seed(1)
        models = {name: build(name) for name in ("gpt2", "llama", "qwen3", "olmo2")}
        start = {name: {key: p.detach().clone() for key, p in model.named_parameters()}
                 for name, model in models.items()}
        for seed in range(40):
            rng = random.Random(seed)
            name = rng.choice(sorted(models))
            self.compare_setting(name, models[name], start[name], f"run-{seed}", *random_setting(rng))

    def test_aol_of_a_square_unfolding(self):
        # LLaMA's K and V are 16 x 32: in mode 2 their stacks of two are 32 x 32.
        torch.manual_seed(1)
        model = build("llama")
        start = {key: p.detach().clone() for key, p in model.named_parameters()}
        options = {"mode": 2, "ns_aol": True, "momentum": .95}
        self.compare_setting("llama", model, start, "aol", options, {"k": 2},
                             "--teon-mode 2 --teon-k 2 --ns-aol on --momentum .95".split())

    def compare_setting(self, name, model, start, out, options, division, flags):
        self.engine_run(name, model, out, "--steps", STEPS, "--checkpoint-every", 1, *flags)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.copy_(start[key])
                p.grad = None
        hidden, _ = teon_torch.stacks_of(model, **division)
        optimizer = teon_torch.Teon(hidden, lr=.02, **options)
        matrices = dict(model.named_parameters())
        before = {}
        weights = start
        for step in range(1, STEPS + 1):
            momenta = self.momenta(model, out, step)
            self.assertEqual(len(momenta), sum(len(group["params"]) for group in hidden))
            for key, momentum in momenta.items():
                grad = momentum - options["momentum"] * before.get(key, 0)
                matrices[key].grad = grad.float().contiguous()
            before = momenta
            optimizer.step()
            expected = self.weights(out, step)
            for key in momenta:
                step_of_engine = expected[key] - weights[key]
                difference = (matrices[key] - expected[key]).detach()
                # Cautious decay asks for the sign of an update, which is only rounding where the update is all but 0.
                decay = .02 * options.get("weight_decay", 0) * weights[key].abs()
                undecided = ((difference.abs() - decay).abs() < .01 * decay) & (
                    torch.minimum(step_of_engine.abs(), (matrices[key] - weights[key]).abs())
                    < 1e-3 * step_of_engine.norm() / step_of_engine.numel() ** .5)
                if options.get("cautious_weight_decay", False):
                    self.assertLessEqual(undecided.sum().item(), 2)
                    difference[undecided] = 0
                error = (difference.norm() / step_of_engine.norm()).item()
                self.assertTrue(error <= BOUND, f"{key}, step {step}: {error:.2g} of the distance; {out} of {name}: "
                                                f"{' '.join(flags)}")
                with torch.no_grad():
                    matrices[key].copy_(expected[key])
            weights = expected
