#!/usr/bin/env python3
"""Compares tokens/s of this engine and PyTorch on the same CPU cores:  python3 bench/bench_train.py

Trains the models of the table MODELS with vocabulary 256, AdamW, gradient clipping and random tokens, in float and in
bf16: GPT-2 3M and 10M, a LLaMA in which three query heads share a key/value head, and a GPT-2 of two layers with
sequences of T = 128 to 8192 tokens. PyTorch runs in float and with bf16 autocast, eager and, where a model has it and
torch.compile works, compiled. All programs are started in turn, --repeats times. A figure is the median step after the
warm-up, a ratio the median over the rounds. "cpu" is the processor time per step of all threads, which other programs
on the machine distort less than the clock. (Ours includes the start, PyTorch's does not.) PyTorch is imported by
--python, this interpreter or python3, the first that has it (dev/requirements-dev.txt).
"""

if __name__ == "__main__":
    from begin import startup

import json
import os
import statistics
import subprocess
import sys
import tempfile

import starts
from common.arguments import Parser, python_with_torch

VOCABULARY = 256
ENGINES = ["ours float", "ours bf16", "eager float", "eager bf16", "compiled float", "compiled bf16"]
GPT2_3M = {"family": "gpt2", "channels": 256, "layers": 4, "heads": 8, "seq_len": 256, "batch": 8}
# Name: model, steps of a start, engines.
MODELS = {
    "GPT-2 3M": (GPT2_3M, 24, ENGINES),
    "GPT-2 10M": (GPT2_3M | {"channels": 384, "layers": 6, "heads": 6, "seq_len": 512, "batch": 4}, 24, ENGINES),
    "LLaMA 8M, GQA": ({"family": "llama", "channels": 384, "layers": 6, "heads": 6, "kv_heads": 2, "ffn": 1024,
                       "seq_len": 512, "batch": 4}, 24, ENGINES),
    **{f"GPT-2 2M, T = {tokens}": (GPT2_3M | {"layers": 2, "seq_len": tokens, "batch": max(1, 4096 // tokens)}, 8,
                                   ENGINES[:4])
       for tokens in (128, 512, 1024, 2048, 4096, 8192)},
}


def flags(model, *left_out):
    return [word for name, value in model.items() if name not in left_out
            for word in (f"--{name.replace('_', '-')}", value)]


def our_flags(model, dtype):
    return [*flags(model, "family", "batch"), "--model", "tiny", "--vocab-size", VOCABULARY, "--batch-tokens",
            model["batch"] * model["seq_len"], "--micro-batch", model["batch"], "--dtype", dtype]


def ours(model, dtype, shard, steps):
    before = starts.cpu_seconds()
    metrics = starts.train(shard, *our_flags(model, dtype), steps=steps, program=f"train_{model['family']}")
    return statistics.median(m["tokens_per_s"] for m in metrics), (starts.cpu_seconds() - before) / steps


def torchs(python, kind, model, dtype, steps):
    command = [python, starts.ROOT / "scripts" / "bench_torch.py", "--device", "cpu", "--dtype", dtype,
               "--vocab-size", VOCABULARY, "--steps", steps, *flags(model)]
    if kind == "compiled":
        command.append("--compile")
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode != 0:
        print(f"{kind} {dtype}: {(result.stderr.splitlines() or ['no message'])[-1]}", file=sys.stderr)
        return None
    figures = json.loads(result.stdout.splitlines()[-1])
    return figures["tokens_per_s"], figures["cpu_s"]


def main():
    parser = Parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="starts of each program (default 3)")
    parser.add_argument("--models", default="", help="only those with this text in their name, such as GQA or T =")
    parser.add_argument("--python", help="interpreter with PyTorch (default: this one or python3)")
    args = parser.parse_args()
    if not any(args.models in name for name in MODELS):
        parser.error(f"no model's name has {args.models!r}; there are {'; '.join(MODELS)}")
    if starts.on_gpu():
        print("SKIPPED: bench_train compares CPUs; for a GPU: make gpu-first")
        return
    python = python_with_torch(args.python)
    if not python:
        print("PyTorch is not installed: no ratios", flush=True)
    for name, (model, steps, engines) in MODELS.items():
        if args.models not in name:
            continue
        measured = {engine: [] for engine in engines}
        with tempfile.TemporaryDirectory() as folder:
            shard = starts.random_shard(folder, VOCABULARY, 600_000)
            for _ in range(args.repeats):
                for engine in engines:
                    kind, dtype = engine.split()
                    if kind == "ours":
                        figures = ours(model, dtype, shard, steps)
                    else:
                        figures = torchs(python, kind, model, dtype, steps) if python else None
                    measured[engine].append(figures)
        print(f"\n{name} on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"{'':<16}{'tokens/s':>10}{'cpu s/step':>12}{'x eager float':>15}{'by cpu':>8}")
        for engine, rounds in measured.items():
            ran = [figures for figures in rounds if figures]
            if not ran:
                continue
            speed, cpu = (statistics.median(f[i] for f in ran) for i in (0, 1))
            line = f"{engine:<16}{speed:>10.0f}{cpu:>12.3f}"
            if pairs := [(f, base) for f, base in zip(rounds, measured["eager float"]) if f and base]:
                line += f"{statistics.median(f[0] / base[0] for f, base in pairs):>15.2f}"
                line += f"{statistics.median(base[1] / f[1] for f, base in pairs):>8.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1}))
