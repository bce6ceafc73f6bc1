#!/usr/bin/env python3
"""Prints registers, shared memory and spills of every kernel, from the output of `nvcc -Xptxas -v`.

    dev/ptxas_report.py build/cuda-check

Reads the *.cu.o.log files below the folder and prints one row per kernel: static shared memory and, for each
architecture, registers per thread, the warps per multiprocessor that these registers permit (8 are two per scheduler)
and bytes spilled (stores + loads). Dynamic shared memory is known only at launch; kernels that need much of it assert
its size where they define it. Fails if a kernel spills that PERMITTED does not list: its row ends in "spills".
"""
if __name__ == "__main__":
    from begin import startup

import collections
import glob
import os
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
# The bytes that a kernel may spill on an architecture, with the reason.
PERMITTED = {
    # Only with CUDA 13.5, to which the producer's 24 registers are too few: a load and a store in the consumers' loop.
    ("flash_attention_hopper_key_gradient_kernel<128>", "sm_90a"): 52,
}
Usage = collections.namedtuple("Usage", "registers spilled shared")


def read_log(path):
    """Yields (mangled name, architecture, Usage) of each kernel in one log."""
    kernel = spilled = None
    with open(path, encoding="utf-8") as log:
        for line in log:
            if match := ENTRY.search(line):
                kernel, spilled = match.groups(), 0
            elif (match := SPILL.search(line)) and kernel:
                spilled = int(match[2]) + int(match[3])
            elif (match := USED.search(line)) and kernel:
                shared = SHARED.search(line)
                yield *kernel, Usage(int(match[1]), spilled, int(shared[1]) if shared else 0)
                kernel = None


def warps(registers):
    """Returns the warps per multiprocessor, at most 64 over 4 schedulers. A multiprocessor has 65536 registers and
    allocates them to warps in units of 256."""
    return min(64, 65536 // (-(-registers * 32 // 256) * 256) // 4 * 4)


def short_names(mangled):
    """Returns the names demangled, without namespaces, argument lists and casts of template arguments."""
    text = subprocess.run(["c++filt"], input="\n".join(mangled), stdout=subprocess.PIPE, text=True, check=True).stdout
    names = {}
    for name, full in zip(mangled, text.splitlines()):
        full = re.sub(r"\(anonymous namespace\)::|_INTERNAL_\w+::|\bteon::|^void ", "", full)
        depth = 0
        for cut, letter in enumerate(full + "("):  # up to the argument list, which is the first "(" outside <...>
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                break
        names[name] = re.sub(r"\((\w+)\)", "", full[:cut]).replace("> >", ">>")
    return names


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    kernels = collections.defaultdict(dict)  # (file, mangled name) -> {architecture: Usage}
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "**", "*.cu.o.log"), recursive=True)):
        file = os.path.relpath(path, sys.argv[1]).removesuffix(".o.log")
        for name, architecture, usage in read_log(path):
            kernels[file, name][architecture] = usage
    if not kernels:
        print("no kernels compiled")
        return
    names = short_names({name for _, name in kernels})
    architectures = sorted({architecture for row in kernels.values() for architecture in row})
    rows = [(file, names[name], usage) for (file, name), usage in kernels.items()]
    width = 2 + max(len(name) for _, name, _ in rows)
    print(f"{'kernel':{width}}" + "".join(f"  {a:>8} {'warps':>5} {'spill':>6}" for a in architectures) + "  shared")
    previous, failed = None, 0
    for file, name, usage in sorted(rows, key=lambda row: row[:2]):
        if file != previous:
            print(file)
            previous = file
        columns = "".join(f"  {usage[a].registers:8} {warps(usage[a].registers):5} {usage[a].spilled or '-':>6}"
                          if a in usage
                          else f"  {'-':>8} {'-':>5} {'-':>6}" for a in architectures)
        spills = "  spills" if any(u.spilled > PERMITTED.get((name, a), 0) for a, u in usage.items()) else ""
        failed += bool(spills)
        print(f"  {name:{width - 2}}{columns}  {max(u.shared for u in usage.values()):6}{spills}")
    spilling = sum(any(u.spilled for u in usage.values()) for _, _, usage in rows)
    print(f"{len(rows)} kernels, {spilling} with spills (registers per thread; warps: per multiprocessor, by "
          "registers; spill: bytes stored and loaded; shared: static bytes)")
    if failed:
        sys.exit(f"ptxas_report: error: {failed} kernels spill registers; use fewer (docs/fp8.md), or add them to "
                 "PERMITTED with the reason")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
