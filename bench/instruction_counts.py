#!/usr/bin/env python3
"""Fails if compiled kernels have more instructions or memory accesses than instruction_counts.json says, or wait
earlier for tensor cores.

    bench/instruction_counts.py build/cuda-check            the check of make check-cuda
    bench/instruction_counts.py build/cuda-check --write    writes new counts

A row of instruction_counts.json is a kernel: its file, its function as c++filt prints it, and by architecture the
instructions and the bytes accessed (global loads and stores) of one thread or warp per element. Counted are the `loops`
innermost loops with the most anchors, or the whole kernel if `loops` is 0. An anchor is an instruction that matches a
regular expression; it stands for `per` elements, times the number that the expression's group finds. For a new kernel
add a row with the counts {"sm_80": [0, 0], "sm_90a": [0, 0]}, then --write.

A row with `exponentials` has one loop in which asynchronous products (wgmma) are waited for (DEPBAR). It lists the
exponentials (MUFU.EX2) of the softmax between each wait and the next: they run while products do. ptxas may move a wait
above them, which neither results nor instruction counts show. For a new kernel: "exponentials": [], then --write.
"""

if __name__ == "__main__":
    from begin import startup

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from common.arguments import Parser
from ptxas_report import short_names

COUNTS = pathlib.Path(__file__).resolve().parent / "instruction_counts.json"
GROWTH = 1.05  # permitted growth of a count
BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def find_disassembler():
    """The path of cuobjdump: on the PATH, beside nvcc or in the triton package, which PyTorch installs. Or None."""
    triton = importlib.util.find_spec("triton")
    places = [shutil.which("cuobjdump"), shutil.which("nvcc") and os.path.realpath(shutil.which("nvcc")),
              "/usr/local/cuda/bin/nvcc", triton and f"{triton.submodule_search_locations[0]}/backends/nvidia/bin/nvcc"]
    tools = [os.path.join(os.path.dirname(place), "cuobjdump") for place in places if place]
    return next((tool for tool in tools if os.access(tool, os.X_OK)), None)


def disassemble(tool, path, architecture):
    """{kernel: [(address, instruction)]} of an object file, without NOPs and predicates."""
    text = subprocess.run([tool, "-sass", "-arch", architecture, str(path)], capture_output=True, text=True,
                          check=True).stdout
    code, lines = {}, []
    for line in text.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            lines = code.setdefault(match[1], [])
        elif (match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line)) and not match[2].startswith("NOP"):
            lines.append((int(match[1], 16), re.sub(r"^@!?U?P\w+\s+", "", match[2])))
    names = short_names(code)
    return {names[name]: lines for name, lines in code.items()}


def anchors(pattern, instruction):
    """The anchors that an instruction counts as: 1 if its name matches, or the number that the pattern's group finds in
    it; else 0."""
    match = re.fullmatch(pattern, instruction.split()[0])
    if match is None:
        return 0
    return int(match[1]) if match.re.groups else 1


def loops_with(anchor, code):
    """The bodies of the innermost loops with anchors. A loop is the code from the target of a backward branch to the
    branch. If an EXIT lies between them, it is not a loop: ptxas places rare cases behind the EXIT, and the branch
    returns from one."""
    loops = []
    for address, text in code:
        branch = re.match(r"BRA\b.*?(0x[0-9a-f]+)$", text)
        if branch and int(branch[1], 16) < address:
            body = [text for at, text in code if int(branch[1], 16) <= at <= address]
            if "EXIT" not in body and any(anchors(anchor, text) for text in body):
                loops.append((int(branch[1], 16), address, body))
    contains_another = lambda a, b: any((c, d) != (a, b) and a <= c and d <= b for c, d, _ in loops)
    return [body for a, b, body in sorted(loops) if not contains_another(a, b)]


def accessed_bytes(text):
    """Bytes of a global load or store by one thread."""
    name = text.split()[0]
    if not name.startswith(("LDG.", "STG.", "LDGSTS", "LD.E", "ST.E")):
        return 0
    bits = re.search(r"\.(128|64|U16|S16|U8|S8)\b", name)
    return BYTES[bits[1]] if bits else 4


def count(kernel, code):
    """[instructions, bytes accessed] per element."""
    anchors_in = lambda region: sum(anchors(kernel["anchor"], text) for text in region)
    regions = loops_with(kernel["anchor"], code) if kernel["loops"] else [[text for _, text in code]]
    regions = sorted(filter(anchors_in, regions), key=anchors_in, reverse=True)[:kernel["loops"] or 1]
    if len(regions) < max(1, kernel["loops"]):
        sys.exit(f"instruction_counts: error: {kernel['function']} has {len(regions)} loops with {kernel['anchor']}, "
                 f"expected {max(1, kernel['loops'])}; see {COUNTS.name}")
    elements = [anchors_in(region) * kernel["per"] for region in regions]
    return [round(sum(value(region) / n for region, n in zip(regions, elements)), 3)
            for value in (len, lambda region: sum(map(accessed_bytes, region)))]


def exponentials_between_waits(kernel, code):
    """The exponentials between each wait of the kernel's loop and the next wait."""
    numbers = []
    for text in max(loops_with(kernel["anchor"], code), key=len):
        if text.startswith("WARPGROUP.DEPBAR"):
            numbers.append(0)
        elif text.startswith("MUFU.EX2") and numbers:
            numbers[-1] += 1
    return numbers[:-1]


def count_all(kernels, build, tool):
    """The rows with the counts of the object files in `build`. Leaves out files that are not built, by name."""
    rows, files = {}, {}
    for name, kernel in kernels.items():
        path = pathlib.Path(build) / (kernel["file"] + ".o")
        if not path.exists():
            print(f"SKIPPED: {name}: {path} is not built", file=sys.stderr)
            continue
        rows[name] = {**kernel, "counts": {}}
        for architecture in kernel["counts"]:
            if (path, architecture) not in files:
                files[path, architecture] = disassemble(tool, path, architecture)
            code = files[path, architecture].get(kernel["function"])
            if code is None:
                sys.exit(f"instruction_counts: error: {path} has no kernel {kernel['function']}; see {COUNTS.name}")
            rows[name]["counts"][architecture] = count(kernel, code)
            if "exponentials" in kernel:
                rows[name]["exponentials"] = exponentials_between_waits(kernel, code)
    return rows


def increases(kernels, rows):
    """One line for each count that grew by more than GROWTH."""
    return [f"{name}, {architecture}: {after:.2f} {what} per element, {before:.2f} before"
            for name, row in rows.items() for architecture, counts in row["counts"].items()
            for what, before, after in zip(("instructions", "bytes accessed"), kernels[name]["counts"][architecture],
                                           counts) if after > GROWTH * before]


def earlier_waits(kernels, rows):
    """One line for each kernel with another number of waits, or with fewer exponentials between two of them."""
    fewer = lambda before, after: len(before) != len(after) or any(a < b for a, b in zip(after, before))
    return [f"{name}: {row['exponentials']} exponentials between its waits, {kernels[name]['exponentials']} before"
            for name, row in rows.items() if "exponentials" in row
            and fewer(kernels[name]["exponentials"], row["exponentials"])]


def as_text(kernels):
    entry = lambda kernel, *keys: ", ".join(f"{json.dumps(key)}: {json.dumps(kernel[key])}"
                                            for key in keys if key in kernel)
    rows = [f" {json.dumps(name)}: {{\n  " + ",\n  ".join(entry(kernel, *keys) for keys in (
        ["file"], ["function"], ["anchor", "per", "loops"], ["counts", "exponentials"])) + "\n }"
            for name, kernel in kernels.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main():
    parser = Parser(__doc__)
    parser.add_argument("build", help="folder of nvcc's object files")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    tool = find_disassembler()
    if tool is None:
        print("SKIPPED: counting instructions needs cuobjdump (CUDA toolkit, or triton for this Python)")
        return
    kernels = json.loads(COUNTS.read_text(encoding="utf-8"))
    rows = count_all(kernels, args.build, tool)
    if args.write:
        COUNTS.write_text(as_text({**kernels, **rows}), encoding="utf-8")
        return
    lines = increases(kernels, rows) + earlier_waits(kernels, rows)
    print("\n".join(lines) or f"{len(rows)} kernels have no more instructions and accesses, and wait no earlier, than "
          f"{COUNTS.name} says")
    if lines:
        sys.exit(f"instruction_counts: more than {GROWTH - 1:.0%} above the committed counts, or an earlier wait; if "
                 f"this is intended: bench/instruction_counts.py {args.build} --write")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1, ValueError: 1}))
