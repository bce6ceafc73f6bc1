#!/usr/bin/env python3
"""Speed of a finished GPT-2 124M run on this machine's GPU: step time, tokens/s, MFU and memory.

    scripts/gpu_report.py runs/gpu-check-124m-... build/gpu-check/memory.txt

The second file holds samples of the GPU's used memory in MiB, one per line. MFU counts causal attention once and the output
layer, 798 MFLOP per token at T = 1024, against the dense bf16 peak; none is printed for an unknown GPU.
"""
import json
import os
import statistics
import subprocess
import sys

FLOP_PER_TOKEN = 798e6
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16 FLOP/s, SXM, by NVIDIA's datasheets


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    with open(os.path.join(sys.argv[1], "metrics.jsonl"), encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if line["kind"] == "step"][5:]  # without the first, slower ones
    with open(sys.argv[2], encoding="utf-8") as file:
        memory = max((int(line) for line in file if line.strip().isdigit()), default=0)
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True,
                         check=False).stdout.split("\n")[0]
    if not steps:
        sys.exit(f"gpu_report: error: {sys.argv[1]} has fewer than 6 steps")
    ms = statistics.median(step["ms"] for step in steps)
    rate = statistics.median(step["tokens_per_s"] for step in steps)
    peak = next((flops for name, flops in PEAKS.items() if name in gpu), None)
    mfu = f"{100 * rate * FLOP_PER_TOKEN / peak:.1f}%" if peak else "-"
    print(f"\n{'GPT-2 124M, bf16, 524288 tokens a step':40} {'ms/step':>9} {'tokens/s':>10} {'MFU':>6} {'memory, GiB':>12}")
    print(f"{gpu:40} {ms:9.1f} {rate:10.0f} {mfu:>6} {memory / 1024:12.1f}")


if __name__ == "__main__":
    main()
