#!/usr/bin/env python3
"""Compares the losses of train_gpt2 and of PyTorch over ten steps from the same weights and the same tokens:

    python3 dev/loss_parity.py --program build/cpu/train_gpt2                       # a tiny model, on this CPU
    python3 dev/loss_parity.py --program ./train_gpt2 --size small --dtype bf16     # GPT-2 124M, on a GPU

PyTorch makes the weights (dev/bench_torch.py's GPT-2), which are written as a Hugging Face folder and read by
--init-from, and a shard of tokens of which each mostly follows from the one before it. Both train with AdamW, clipping
and a constant rate; PyTorch in float32, with --dtype bf16 under autocast. Prints a JSON object for each step and one
for all. Exit status: 0 if every loss is within the tolerance, else 1; 3 without PyTorch.
"""
if __name__ == "__main__":
    from begin import startup
    from common import use_venv  # noqa: F401

import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

from common.arguments import Parser, decimal, whole
from common.run_folder import Metrics
from make_corpus import shard_of

SIZES = {"tiny": {"L": 2, "C": 64, "NH": 1, "V": 200, "T": 32, "B": 4},
         "small": {"L": 12, "C": 768, "NH": 12, "V": 50257, "T": 1024, "B": 8}}
LR, DECAY, BETAS = 1e-3, 0.1, (0.9, 0.95)
# The largest |loss / PyTorch's - 1| of a step. Float: both add some thousand products in another order, and AdamW's
# first updates are signs of gradients, of which the smallest may differ (2e-7 measured on a CPU, tiny). bf16: each
# activation is rounded by 2^-9 at other places than under autocast (3e-4 measured there).
TOLERANCES = {"float": 1e-4, "bf16": 5e-3}


def tokens_of(vocabulary, count):
    """Tokens of which nine in ten follow from the one before."""
    generator = random.Random(1)
    tokens = [0]
    while len(tokens) < count:
        follows = generator.random() < 0.9
        tokens.append((5 * tokens[-1] + 1) % vocabulary if follows else generator.randrange(vocabulary))
    return tokens


def hugging_face_tensors(model):
    """Yields the names and tensors of a Hugging Face GPT-2, whose matrices are (in, out), with a shared head."""
    yield "transformer.wte.weight", model.tokens.weight
    yield "transformer.wpe.weight", model.positions.weight
    names = {"ln_1": "norm1", "attn.c_attn": "qkv", "attn.c_proj": "out", "ln_2": "norm2", "mlp.c_fc": "up",
             "mlp.c_proj": "down"}
    for i, block in enumerate(model.blocks):
        for theirs, ours in names.items():
            layer = getattr(block, ours)
            yield f"transformer.h.{i}.{theirs}.weight", layer.weight.T if layer.weight.dim() == 2 else layer.weight
            yield f"transformer.h.{i}.{theirs}.bias", layer.bias
    yield "transformer.ln_f.weight", model.norm.weight
    yield "transformer.ln_f.bias", model.norm.bias


def write_model(folder, model, s):
    folder.mkdir()
    (folder / "config.json").write_bytes(json.dumps(
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": s["L"], "n_embd": s["C"],
         "n_head": s["NH"], "n_positions": s["T"], "vocab_size": s["V"], "activation_function": "gelu_new",
         "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}).encode())
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in hugging_face_tensors(model):
        data.append(tensor.detach().cpu().contiguous().numpy().tobytes())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def our_steps(program, folder, s, options):
    """Trains with train_gpt2 and returns the metrics of its steps."""
    # Path("./train_gpt2") is "train_gpt2", which would be looked up in PATH.
    command = [program.resolve(), "--init-from", folder / "model", "--data", folder / "parity_train_000000.bin",
               "--shuffle", "off", "--seq-len", s["T"], "--batch-tokens", s["B"] * s["T"], "--micro-batch", s["B"],
               "--steps", options.steps, "--optimizer", "adamw", "--lr", LR, "--weight-decay", DECAY,
               "--beta1", BETAS[0], "--beta2", BETAS[1], "--schedule", "constant", "--warmup-ratio", 0,
               "--grad-clip", 1, "--dtype", options.dtype, "--checkpoint-end", "off", "--out", folder / "run",
               *options.flags.split()]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return Metrics(folder / "run").of_kind("step")


def torch_steps(model, tokens, s, options):
    """Trains the model in PyTorch on the same windows and returns (loss, norm of the gradient) of each step."""
    import torch

    model = model.to(options.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], lr=LR, betas=BETAS, eps=1e-8)
    steps = []
    for step in range(options.steps):
        first = step * s["B"] * s["T"]
        windows = torch.tensor([tokens[first + b * s["T"]:first + (b + 1) * s["T"] + 1] for b in range(s["B"])],
                               device=options.device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        # In float64, because PyTorch's float sum of 38 million squares is off by 5e-4 on a CPU.
        norm = math.sqrt(sum(torch.linalg.vector_norm(p.grad, dtype=torch.float64).item() ** 2 for p in parameters))
        for p in parameters:
            p.grad.mul_(min(1.0, 1.0 / (norm + 1e-6)))
        optimizer.step()
        steps.append((loss.item(), norm))
    return steps


def larger(a, b):
    """The larger one; NaN is the largest."""
    return b if not b <= a else a


def parse():
    parser = Parser(__doc__)
    parser.add_argument("--program", default="./train_gpt2", type=pathlib.Path, help="(default ./train_gpt2)")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="small: GPT-2 124M (default tiny)")
    parser.add_argument("--seq-len", type=whole(1, 1024), help=f"(default by --size: {SIZES['small']['T']} or "
                        f"{SIZES['tiny']['T']})")
    parser.add_argument("--batch", type=whole(1, 1024), help="sequences of a step (default by --size: "
                        f"{SIZES['small']['B']} or {SIZES['tiny']['B']})")
    parser.add_argument("--dtype", choices=TOLERANCES, default="float", help="(default float)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="of PyTorch (default: cuda if it has one)")
    parser.add_argument("--steps", type=whole(1, 1000), default=10, help="(default 10)")
    parser.add_argument("--tolerance", type=decimal(0, 1), help=f"relative (default {TOLERANCES})")
    parser.add_argument("--flags", default="", help="further flags for the program, as one text")
    return parser.parse_args()


def main():
    options = parse()
    try:
        import torch
    except ImportError:
        print("SKIPPED: loss_parity: needs PyTorch: pip install torch")
        return 3
    import bench_torch

    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    tolerance = TOLERANCES[options.dtype] if options.tolerance is None else options.tolerance
    s = SIZES[options.size]
    s = s | {"T": options.seq_len or s["T"], "B": options.batch or s["B"]}
    torch.manual_seed(1)
    model = bench_torch.GPT2(s["V"], s["T"], s["C"], s["L"], s["NH"])
    tokens = tokens_of(s["V"], options.steps * s["B"] * s["T"] + 1)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_model(folder / "model", model, s)
        (folder / "parity_train_000000.bin").write_bytes(shard_of(tokens))
        ours = our_steps(options.program, folder, s, options)
    theirs = torch_steps(model, tokens, s, options)
    worst = worst_norm = 0.0
    for step, (mine, (loss, norm)) in enumerate(zip(ours, theirs, strict=True), 1):
        mine = {key: math.nan if mine[key] is None else mine[key] for key in ("loss", "grad_norm")}
        print(json.dumps({"kind": "step", "step": step, "loss": mine["loss"], "torch_loss": loss,
                          "grad_norm": mine["grad_norm"], "torch_grad_norm": norm}), flush=True)
        worst = larger(worst, abs(mine["loss"] / loss - 1))
        worst_norm = larger(worst_norm, abs(mine["grad_norm"] / norm - 1))
    print(json.dumps({"kind": "parity", "size": options.size, "dtype": options.dtype, "torch": torch.__version__,
                      "steps": options.steps, "first_loss": theirs[0][0], "last_loss": theirs[-1][0],
                      "worst": worst, "worst_norm": worst_norm, "tolerance": tolerance}), flush=True)
    return 0 if worst <= tolerance else 1


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1}))
