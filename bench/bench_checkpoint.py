#!/usr/bin/env python3
"""Measures the cost of saving:  python3 bench/bench_checkpoint.py [--data FOLDER] [--every 20] [--steps 100]

Trains a small GPT-2 with and without an asynchronous checkpoint every 20 steps, in turn, and compares the time between
the first and the last step that the terminal shows. Prints the median time of either, and the median ratio of
consecutive runs, which other work on the machine disturbs least.
"""

if __name__ == "__main__":
    from begin import startup

import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from common.arguments import Parser

ROOT = pathlib.Path(__file__).resolve().parent.parent


def milliseconds_per_step(options, out, every):
    """Returns (milliseconds per step, size of a checkpoint, seconds of each save). The time is from the end of step 1
    to the end of the last step but one, including the saves between them."""
    command = [ROOT / "train_gpt2", "--data", options.data, "--model", "tiny", "--seq-len", "64", "--batch-tokens",
               options.batch_tokens, "--steps", options.steps, "--eval-every", "0", "--eval-tokens", "64", "--out", out,
               *(["--checkpoint-every", every] if every else [])]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    ends, saves, size = {}, [], ""
    for line in process.stdout:
        if step := re.match(r"step +(\d+)/", line):
            ends[int(step[1])] = time.perf_counter()
        elif saved := re.match(r"checkpoint .* \| (.*) \| ([\d.]+) s", line):
            size = saved[1]
            saves.append(float(saved[2]))
    if process.wait() != 0:
        sys.exit("bench_checkpoint: train_gpt2 failed")
    last = options.steps - 1
    return 1000 * (ends[last] - ends[1]) / (last - 1), size, saves


def main():
    parser = Parser(__doc__)
    parser.add_argument("--data", default=ROOT / "build" / "corpus")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    if options.every < 1 or options.steps < max(3, options.every):
        parser.error("--every must be at least 1, --steps at least 3 and --every")
    times = {0: [], options.every: []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.repeat):
            for every in sorted(times, reverse=i % 2 == 1):
                ms, size, saves = milliseconds_per_step(options, f"{folder}/{i}-{every}", every)
                times[every].append(ms)
                print(f"  {'every ' + str(every) if every else 'none':<10} {ms:8.2f} ms/step", flush=True)
    without, with_saves = (statistics.median(t) for t in times.values())
    print(f"checkpoints of {size}, each written in {statistics.median(saves):.1f} s")
    ratio = statistics.median(b / a for a, b in zip(*times.values()))
    print(f"without {without:.2f} ms/step, with one every {options.every} steps {with_saves:.2f} ms/step: ratio "
          f"{ratio:.3f}")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
