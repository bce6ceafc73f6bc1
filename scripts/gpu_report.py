#!/usr/bin/env python3
"""Prints the speed of finished runs on this machine's GPU: step time, tokens/s, MFU, planned and measured memory.

    scripts/gpu_report.py build/gpu-check gpt2-124m llama-130m

For each NAME the folder contains the run's folder NAME, its output NAME.log, and NAME.memory: samples of the GPU's used
memory in MiB, one per line, the first from before the run. Medians exclude the first 5 steps. MFU comes from the run's
log and is "unknown" for an unknown GPU. A missing or too short run gets a column of dashes.
"""
if __name__ == "__main__":
    import startup

    startup.begin()

import json
import os
import re
import statistics
import subprocess
import sys

ROWS = ("ms per step, median", "optimizer's part, ms", "tokens/s, median", "MFU, median", "memory, planned",
        "memory, measured (with CUDA's context)")


def lines_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def column(folder, name):
    steps = [line for line in map(json.loads, lines_of(os.path.join(folder, name, "metrics.jsonl")))
             if line["kind"] == "step"][5:]
    if not steps:
        return ["-"] * len(ROWS)
    log = "\n".join(lines_of(os.path.join(folder, f"{name}.log")))
    memory = [int(line) for line in lines_of(os.path.join(folder, f"{name}.memory")) if line.strip().isdigit()] or [0]
    utilization = [float(x) for x in re.findall(r"MFU ([0-9.]+)%", log)[5:]]
    planned = re.search(r"^ +total +(.*)$", log, re.MULTILINE)
    median = lambda key: statistics.median(step[key] for step in steps)
    return [f"{median('ms'):.1f}", f"{median('optimizer_ms'):.1f}", f"{median('tokens_per_s'):.0f}",
            f"{statistics.median(utilization):.1f}%" if utilization else "unknown", planned[1] if planned
            else "unknown",
            f"{(max(memory) - memory[0]) / 1024:.2f} GiB"]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    folder, *names = sys.argv[1:]
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True,
                         check=False).stdout.split("\n")[0]
    columns = [column(folder, name) for name in names]
    print(f"\n{gpu}; bf16, 524288 tokens a step")
    print(f"{'':40}" + "".join(f"{name:>16}" for name in names))
    for row, title in enumerate(ROWS):
        print(f"{title:40}" + "".join(f"{cells[row]:>16}" for cells in columns))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
