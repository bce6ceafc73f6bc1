#!/usr/bin/env python3
"""Measures the step time of Muon and Teon relative to AdamW:  python3 bench/bench_optimizers.py

Trains the demo's model, and on a GPU also GPT-2 124M in bf16 with 524288 tokens per step, on random tokens. The three
optimizers are started in turn, --repeats times each. The figure of a start is its median step without the first
quarter. The ratio is the median over consecutive starts, which other work on the machine disturbs least; the smallest
and the largest ratio follow in brackets.
"""

if __name__ == "__main__":
    from begin import startup

import statistics
import subprocess
import sys
import tempfile

import starts
from common.arguments import Parser

OPTIMIZERS = ("adamw", "muon", "teon")
DEMO = ("demo's GPT-2", 256, ["--model", "tiny", "--vocab-size", 256, "--seq-len", 128, "--batch-tokens", 2048])
SMALL = ("GPT-2 124M", 50257, ["--model", "small", "--seq-len", 1024, "--batch-tokens", 524288, "--dtype", "bf16"])


def measure(model, vocabulary, flags, steps, repeats):
    step, share = {name: [] for name in OPTIMIZERS}, {name: [] for name in OPTIMIZERS}
    with tempfile.TemporaryDirectory() as folder:
        shard = starts.random_shard(folder, vocabulary, 2_000_000)
        for _ in range(repeats):
            for name in OPTIMIZERS:
                metrics = starts.train(shard, *flags, "--optimizer", name, steps=steps)
                step[name].append(statistics.median(m["ms"] for m in metrics))
                share[name].append(statistics.median(m["optimizer_ms"] for m in metrics))
    print(f"{model}: median of {repeats} starts of {steps} steps")
    print(f"{'optimizer':<10} {'ms/step':>9} {'of it optimizer':>16}  step / AdamW's step")
    for name in OPTIMIZERS:
        ratios = [mine / adamw for mine, adamw in zip(step[name], step["adamw"])]
        print(f"{name:<10} {statistics.median(step[name]):9.2f} {statistics.median(share[name]):16.2f}  "
              f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--steps", type=int, default=60, help="per start with the demo's model (default 60)")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each optimizer (default 3)")
    args = parser.parse_args()
    measure(*DEMO, args.steps, args.repeats)
    if starts.on_gpu():
        measure(*SMALL, 20, args.repeats)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1}))
