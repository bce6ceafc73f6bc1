#!/usr/bin/env python3
"""Measures attention, every kernel of a GPT-2 124M step and whole steps on this machine's GPU, and PyTorch:  make
bench-gpu

Runs the program (build/cuda/bench/bench_gpu) and scripts/bench_torch.py in turn, up to three times within the time
limit, and prints tables of medians. On a GPU it appends them to bench/RESULTS.md. Without a GPU it prints the FLOPs and
bytes of every kernel with an H200's limit, and "not run" for the rest.
"""

if __name__ == "__main__":
    import os
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts"))
    import startup

    startup.begin()

import argparse
import collections
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import time

from bench_train import find_torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS, HEAD_SIZES, STARTS = (256, 1024, 8192), (64, 128), 3


class Deadline:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def run(self, *command):
        """Returns the JSON objects that a program prints, and reports a program that fails. Returns nothing if the
        program does not exist or does not end in time."""
        if self.left() < 20:
            return []
        try:
            result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                                    timeout=self.left(), check=False)
        except (subprocess.TimeoutExpired, OSError) as error:
            print(f"bench_gpu: {command[0]}: {error}", file=sys.stderr)
            return []
        if result.returncode != 0:
            last = result.stderr.strip().splitlines()[-1:] or ["no message"]
            print(f"bench_gpu: {' '.join(map(str, command))}: {last[0]}", file=sys.stderr)
        return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def attention_table(rows):
    """The table of TFLOP/s, for the FLOPs of the causal half: 2 products forward, 5 backward."""
    ms = collections.defaultdict(list)
    for row in rows:
        if row["ms"]:
            ms[row["T"], row["HS"], row["pass"], row["method"]].append(row["ms"])
    methods = ["flash", "gemm"] + sorted({key[3] for key in ms} - {"flash", "gemm"})
    lines = []
    for HS in HEAD_SIZES:
        for T in LENGTHS:
            for which, products in (("forward", 2), ("backward", 5)):
                flops = products * 16384 * 1024 * (T + 1)
                speed = {m: flops / statistics.median(ms[T, HS, which, m]) / 1e9 for m in methods
                         if (T, HS, which, m) in ms}
                best = max((s for m, s in speed.items() if m.startswith("PyTorch")), default=None)
                lines.append([which, T, HS, f"{flops / 1e9:.1f}"]
                             + [f"{speed[m]:.0f}" if m in speed else "not run" for m in methods]
                             + [f"{speed['flash'] / best:.2f}" if best and "flash" in speed else "not run"])
    return table(["pass", "T", "HS", "GFLOP"] + [f"{m}, TFLOP/s" for m in methods] + ["flash / best of PyTorch"], lines)


FUSED = ("MLP up forward, GELU", "MLP up dW, bias gradient", "MLP down dX, GELU")


def median_ms(rows):
    """({name: rows}, {name: median ms}) of the kernels, over all starts."""
    kernels = collections.OrderedDict()
    for row in rows:
        kernels.setdefault(row["name"], []).append(row)
    return kernels, {name: statistics.median(r["ms"] for r in group) for name, group in kernels.items()
                     if group[0]["ms"]}


def limits_of(device, kernels):
    """The GPU's limits: FLOP/s by the data sheet, bytes/s as copied. Those of an H200 if there is no GPU, or if the
    program failed before it copied."""
    copies = [row["bytes"] / row["ms"] * 1000 for row in kernels if row["name"] == "copy" and row["ms"]]
    if not copies:
        return {"name": "H200 (data sheet)", "flops": device["h200_flops"], "bytes": device["h200_bytes"]}
    peak = device["peak_bf16_flops"]
    return {"name": ("data sheet" if peak else "an H200's arithmetic") + " and measured copy",
            "flops": peak or device["h200_flops"], "bytes": statistics.median(copies)}


def kernel_table(rows, limits):
    """The table of the kernels of one micro-batch of 64 x 1024 tokens: time, limit and share of all kernels' time.
    Kernels of --gelu-fusion, which is off by default, have no share."""
    kernels, medians = median_ms(rows)
    total = sum(medians[name] * kernels[name][0]["count"] for name in medians if name not in FUSED) or None
    lines = []
    for name, (row, *_) in sorted(kernels.items(), key=lambda item: item[0] in FUSED):
        if not row["count"]:
            continue
        seconds = {"arithmetic": row["flops"] / limits["flops"], "memory": row["bytes"] / limits["bytes"]}
        bound = max(seconds, key=seconds.get)
        limit, ms = 1000 * seconds[bound], medians.get(name)
        lines.append([name, row["count"], f"{row['flops'] / 1e9:.1f}" if row["flops"] else "-",
                      f"{row['bytes'] / 1e6:.0f}", bound, f"{1000 * limit:.0f}"]
                     + ([f"{1000 * ms:.0f}", f"{100 * limit / ms:.0f}%",
                         "--gelu-fusion" if name in FUSED else f"{100 * ms * row['count'] / total:.1f}%"]
                        if ms else ["not run"] * 3))
    return table(["kernel", "times", "GFLOP", "MB", "bound by", f"limit, us, {limits['name']}", "us", "of the limit",
                  "share of all"], lines)


def train_table(ours, torchs):
    speed = lambda rows: statistics.median(rows) if rows else None
    lines = []
    for T in (1024, 8192):
        torch = speed([r["tokens_per_s"] for r in torchs if r["T"] == T])
        for kind in ("gemm", "flash"):
            mine = speed([1000 * r["tokens"] / r["ms"] for r in ours if r["T"] == T and r["attention"] == kind])
            lines.append([T, kind, f"{mine:.0f}" if mine else "not run", f"{torch:.0f}" if torch else "not run",
                          f"{mine / torch:.2f}" if mine and torch else "not run"])
    return table(["T", "attention", "tokens/s", "compiled PyTorch, tokens/s", "ratio"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="build/<backend>/bench/bench_gpu")
    parser.add_argument("--python", help="interpreter with PyTorch (default: this one or python3)")
    parser.add_argument("--seconds", type=float, default=500, help="time limit (default 500)")
    args = parser.parse_args()
    deadline = Deadline(args.seconds)
    pytorch = [find_torch(args.python) or sys.executable, ROOT / "scripts" / "bench_torch.py"]
    attention, kernels, ours, torchs, device = [], [], [], [], None
    for start in range(STARTS):
        rows = deadline.run(args.program)
        device = device or next((r for r in rows if r["kind"] == "device"), None)
        if device is None:
            sys.exit("bench_gpu: error: the program printed nothing")
        attention += [r for r in rows if r["kind"] == "attention"]
        kernels += [r for r in rows if r["kind"] == "kernel"]
        if not device["gpu"]:
            break
        attention += deadline.run(*pytorch, "--attention")
        for T in (1024, 8192):
            for kind in ("gemm", "flash"):
                ours += [r for r in deadline.run(args.program, "train", T, kind) if r["kind"] == "train"]
            torchs += [{**r, "T": T}
                       for r in deadline.run(*pytorch, "--seq-len", T, "--batch", 16384 // T, "--micro-steps", 4)]
        print(f"start {start + 1} of {STARTS} done, {deadline.left():.0f} s left", file=sys.stderr)

    text = (f"## GPU: {device['name'] if device['gpu'] else 'not run'}, {datetime.date.today()}\n\n"
            "Causal attention alone, bf16, 16384 tokens of 1024 channels:\n\n" + attention_table(attention)
            + "\nThe kernels of one micro-batch of GPT-2 124M, 64 x 1024 tokens, bf16 (bytes: each operand moved "
              "once):\n\n"
            + kernel_table(kernels, limits_of(device, kernels))
            + "\nTraining GPT-2 124M, 65536 tokens a step, AdamW, clipping, bf16 with float master weights, "
              "the products of `--autotune`, no recomputation, no CUDA graphs:\n\n"
            + train_table(ours, torchs))
    print(text)
    if device["gpu"]:
        with open(ROOT / "bench" / "RESULTS.md", "a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1, ValueError: 1}))
