#!/usr/bin/env python3
"""Speed of a finished run on this machine's GPU: step time, tokens/s, MFU and memory, planned and measured.

    scripts/gpu_report.py runs/gpu-check-124m-... build/gpu-check/gpt2-124m.log build/gpu-check/memory.txt

The log is what the run printed; the last file holds samples of the GPU's used memory in MiB, one per line, the first from
before the run. Medians leave out the first 5 steps. MFU is the run's own figure; none is known for an unknown GPU.
"""
import json
import os
import re
import statistics
import subprocess
import sys


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip())
    run, log_path, memory_path = sys.argv[1:]
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if line["kind"] == "step"][5:]
    with open(log_path, encoding="utf-8") as file:
        log = file.read()
    with open(memory_path, encoding="utf-8") as file:
        memory = [int(line) for line in file if line.strip().isdigit()] or [0]
    if not steps:
        sys.exit(f"gpu_report: error: {run} has fewer than 6 steps")
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True,
                         check=False).stdout.split("\n")[0]
    utilization = [float(x) for x in re.findall(r"MFU ([0-9.]+)%", log)[5:]]
    planned = re.search(r"^ +total +(.*)$", log, re.MULTILINE)
    rows = [("GPU", gpu),
            ("ms per step, median", f"{statistics.median(step['ms'] for step in steps):.1f}"),
            ("tokens/s, median", f"{statistics.median(step['tokens_per_s'] for step in steps):.0f}"),
            ("MFU, median", f"{statistics.median(utilization):.1f}%" if utilization else "unknown"),
            ("memory, planned", planned[1] if planned else "unknown"),
            ("memory, measured", f"{(max(memory) - memory[0]) / 1024:.2f} GiB, the CUDA context included")]
    print("\nGPT-2 124M, bf16, 524288 tokens a step")
    for name, value in rows:
        print(f"  {name:20} {value}")


if __name__ == "__main__":
    main()
