#!/usr/bin/env python3
"""Measures the step time of several simultaneous trainings, relative to one:  python3 bench/bench_shared.py

Trains bench_train.py's GPT-2 3M on the CPU. If k trainings share all cores fairly, each takes k times as long; with
threads that busy-wait for each other, each took ten times that. Rounds of 1, 2 and 4 trainings alternate. A figure is
the median step of all runs, without the first quarter of each. A ratio is the median over the rounds.
"""

if __name__ == "__main__":
    from begin import startup

import concurrent.futures
import os
import statistics
import subprocess
import sys
import tempfile

import bench_train
import starts
from common.arguments import Parser

AT_ONCE = (1, 2, 4)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--steps", type=int, default=16, help="per start (default 16)")
    parser.add_argument("--repeats", type=int, default=2, help="rounds (default 2)")
    args = parser.parse_args()
    if starts.on_gpu():
        print("SKIPPED: bench_shared measures how trainings share a CPU")
        return
    print(f"GPT-2 3M on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'dtype':<8}{'at once':>8}{'ms/step':>10}{'x alone':>9}")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(max(AT_ONCE)) as pool:
        shard = starts.random_shard(folder, bench_train.VOCABULARY, 600_000)
        for dtype in ("float", "bf16"):
            flags = bench_train.our_flags(bench_train.GPT2_3M, dtype)
            ms = {count: [] for count in AT_ONCE}
            for _ in range(args.repeats):
                for count in AT_ONCE:
                    started = [pool.submit(starts.train, shard, *flags, steps=args.steps) for _ in range(count)]
                    ms[count].append(statistics.median(m["ms"] for run in started for m in run.result()))
            for count in AT_ONCE:
                ratio = statistics.median(mine / alone for mine, alone in zip(ms[count], ms[1]))
                print(f"{dtype:<8}{count:>8}{statistics.median(ms[count]):>10.1f}{ratio:>9.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1}))
