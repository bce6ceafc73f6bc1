#!/usr/bin/env python3
"""Tokens/s of ./train_gpt2 on the CPU beside PyTorch eager on the same cores, interleaved:  python3
bench/bench_train.py

GPT-2 with 256 channels, 4 layers, 8 sequences of 256 tokens, vocabulary 256, float32, AdamW, gradient clipping, random
tokens. Each program is started --repeats times in turn; a figure is the median step after the warm-up, the ratio is the
median over neighbours. PyTorch is used where it is installed (scripts/requirements-dev.txt; --python names the
interpreter that has it).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import runs

C, L, NH, T, B, V = 256, 4, 8, 256, 8, 256


def ours(shard, steps):
    metrics = runs.train(shard, "--model", "tiny", "--layers", L, "--channels", C, "--heads", NH, "--vocab-size", V,
                         "--seq-len", T,
                         "--batch-tokens", B * T, "--micro-batch", B, "--dtype", "float", steps=steps)
    return statistics.median(m["tokens_per_s"] for m in metrics)


def torchs(python, steps):
    result = subprocess.run([python, runs.ROOT / "scripts" / "bench_torch.py", "--device", "cpu", "--layers", str(L),
                             "--channels", str(C),
                             "--heads", str(NH), "--seq-len", str(T), "--batch", str(B), "--vocab-size", str(V),
                             "--steps", str(steps)],
                            capture_output=True, text=True)
    if result.returncode != 0:
        return None
    return json.loads(result.stdout.splitlines()[-1])["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24, help="per start (default 24)")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each program (default 3)")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch (default: this one)")
    args = parser.parse_args()
    engine, torch = [], []
    with tempfile.TemporaryDirectory() as folder:
        shard = runs.random_shard(folder, V, 600_000)
        for _ in range(args.repeats):
            engine.append(ours(shard, args.steps))
            speed = torchs(args.python, args.steps)
            if speed is None:
                print(f"train_gpt2 {engine[-1]:.0f} tokens/s; PyTorch is not installed, so no ratio", flush=True)
                continue
            torch.append(speed)
            print(f"train_gpt2 {engine[-1]:.0f} tokens/s, PyTorch eager {speed:.0f} tokens/s, ratio "
                  f"{engine[-1] / speed:.2f}", flush=True)
    if torch:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(engine, torch))
        print(f"median: {statistics.median(engine):.0f} and {statistics.median(torch):.0f} tokens/s on "
              f"{os.cpu_count()} cores, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
