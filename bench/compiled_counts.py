"""Counts instructions and bytes accessed per element in the compiled kernels of bench/model_gpu.toml, from SASS.

Uses cuobjdump of the CUDA toolkit, or of the triton package that PyTorch installs for this Python or TRITON_PYTHON.
count_kernel counts the loops of each thread or warp, not the code before and after them. executed_kernel counts all
that a run on the modelled GPU executed (CUDA_COUNTS, docs/modelled_gpu.md): its PTX says how often, the SASS how much.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TABLE, COUNTS = HERE / "model_gpu.toml", HERE / "model_gpu_counts.json"
GROWTH = 1.05  # permitted growth of a count


def find_tool(name="cuobjdump"):
    """The path of a program of the CUDA toolkit: on the PATH, beside nvcc, or in triton's package; None if not
    found."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    places = [shutil.which(name), os.path.join(os.path.dirname(os.path.realpath(nvcc)), name)]
    for python in (sys.executable, os.environ.get("TRITON_PYTHON", sys.executable)):
        found = subprocess.run([python, "-c", "import triton; print(triton.__path__[0])"], capture_output=True,
                               text=True, check=False).stdout.strip()
        places.append(os.path.join(found, "backends", "nvidia", "bin", name) if found else None)
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def short(demangled):
    """Shortens void teon::(anonymous namespace)::flash_attention_...<64>(bf16*, ...) to flash_attention_...<64>."""
    text = re.sub(r"\(anonymous namespace\)::|\bteon::|^void ", "", demangled.strip())
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            text = text[:i]
            break
    return text.replace("> >", ">>").rstrip()


def disassemble(tool, path, architecture):
    """{kernel: [(address, instruction)]} of an object file or cubin, without NOPs."""
    arguments = [] if path.suffix == ".cubin" else ["-arch", architecture]
    text = subprocess.run([tool, "-sass", *arguments, str(path)], capture_output=True, text=True, check=True).stdout
    code, lines = {}, []
    for line in text.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            lines = code.setdefault(match[1], [])
        elif (match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line)) and not match[2].startswith("NOP"):
            lines.append((int(match[1], 16), re.sub(r"^@!?U?P\w+\s+", "", match[2])))
    names = subprocess.run(["c++filt"], input="\n".join(code), capture_output=True, text=True, check=True).stdout
    return {short(name): lines for name, lines in zip(names.splitlines(), code.values())}


def innermost_loops(code):
    """The bodies of loops without inner loops: from the target of a backward branch to the branch."""
    ends = [(int(match[1], 16), address) for address, text in code
            if (match := re.match(r"BRA\b.*?(0x[0-9a-f]+)$", text)) and int(match[1], 16) < address]
    inner = [(a, b) for a, b in ends if not any((c, d) != (a, b) and a <= c and d <= b for c, d in ends)]
    return [[text for address, text in code if a <= address <= b] for a, b in inner]


def width(text):
    """Bytes of a global load or store by one thread."""
    name = text.split()[0]
    if not name.startswith(("LDG.", "STG.", "LDGSTS", "LD.E", "ST.E")):
        return 0
    bits = re.search(r"\.(128|64|U16|S16|U8|S8)\b", name)
    return {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}[bits[1]] if bits else 4


def count_kernel(kernel, code):
    """(instructions, bytes accessed) of one thread, per element."""
    is_anchor = lambda text: re.fullmatch(kernel["anchor"], text.split()[0]) is not None
    regions = innermost_loops(code) if kernel["loops"] else [[text for _, text in code]]
    regions = [region for region in regions if any(map(is_anchor, region))]
    regions = sorted(regions, key=lambda region: -sum(map(is_anchor, region)))[:kernel["loops"] or 1]
    if len(regions) < max(1, kernel["loops"]):
        sys.exit(f"model_gpu: error: {kernel['function']} has {len(regions)} loops with {kernel['anchor']}, expected "
                 f"{max(1, kernel['loops'])}; see {TABLE.name}")
    if kernel.get("share"):
        regions = [sum(regions, [])]
    instructions = accessed = 0.0
    for region in regions:
        elements = sum(map(is_anchor, region)) * kernel["per"]
        instructions += len(region) / elements
        accessed += sum(map(width, region)) / elements
    return instructions, accessed


# A kernel that the modelled GPU executed: of each PTX instruction the opcode, the executions by warps, and the
# instruction to which it branches (-1: none).
Executed = collections.namedtuple("Executed", "opcodes warps targets")


def load_executed(paths):
    """{architecture: {kernel: [Executed of each file that has it]}} of files of CUDA_COUNTS."""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            counts = json.load(file)
        of_machine = found.setdefault({80: "sm_80", 90: "sm_90a"}[counts["capability"]], {})
        for kernel in counts["kernel"]:
            opcodes, _, warps, _, _, _, targets = zip(*kernel["code"])
            of_machine.setdefault(short(kernel["name"]), []).append(Executed(opcodes, warps, targets))
    return found


def executed_kernel(kernel, code, executed):
    """(instructions, elements, warps) of a run. Each part of the code - an innermost loop with anchors, or all the
    rest - has as many instructions as ptxas made of its PTX, as often as that was executed."""
    is_anchor = lambda text: re.fullmatch(kernel["anchor"], text.split()[0]) is not None
    is_ptx_anchor = [re.fullmatch(kernel["executed"], opcode) is not None for opcode in executed.opcodes]
    ends = [(target, at) for at, target in enumerate(executed.targets) if 0 <= target <= at]
    inner = sorted((a, b) for a, b in ends if any(is_ptx_anchor[a:b + 1])
                   and not any((c, d) != (a, b) and a <= c and d <= b for c, d in ends))
    loops = [loop for loop in innermost_loops(code) if any(map(is_anchor, loop))]
    if len(loops) != len(inner):
        sys.exit(f"model_gpu: error: {kernel['function']} has {len(loops)} loops with {kernel['anchor']} in SASS, "
                 f"{len(inner)} with {kernel['executed']} in PTX; see {TABLE.name}")
    total = lambda begin, end, anchors=False: sum(
        n for n, anchor in zip(executed.warps[begin:end], is_ptx_anchor[begin:end]) if anchor or not anchors)
    issued = sum(total(a, b + 1, anchors=True) * len(loop) / sum(map(is_anchor, loop))
                 for (a, b), loop in zip(inner, loops))
    n = len(executed.warps)
    rest = total(0, n) - sum(total(a, b + 1) for a, b in inner)
    rest_ptx, rest_sass = n - sum(b + 1 - a for a, b in inner), len(code) - sum(map(len, loops))
    return issued + rest * rest_sass / rest_ptx, total(0, n, anchors=True) * kernel["per"], executed.warps[0]


def fit_executed(runs, of_warps):
    """(instructions per element, per warp) that give the runs of executed_kernel(), by least squares; per warp: 0
    unless of_warps and runs differ in their elements per warp."""
    ii, iw, ww = (sum(run[a] * run[b] for run in runs) for a, b in ((1, 1), (1, 2), (2, 2)))
    yi, yw = (sum(run[0] * run[k] for run in runs) for k in (1, 2))
    determinant = ii * ww - iw * iw
    if not of_warps or determinant <= 1e-9 * ii * ww:
        return yi / ii, 0.0
    return (yi * ww - yw * iw) / determinant, (yw * ii - yi * iw) / determinant


def compiled(table):
    return [kernel for kernel in table["kernel"] + table.get("symmetric", []) if "file" in kernel]


def count_all(table, build, tool, executed):
    """{kernel: {architecture: [instructions, bytes accessed, and, of those in executed (load_executed()), instructions
    executed per element and per warp]}} of the kernels with object files."""
    counts, cache = {}, {}
    for kernel in compiled(table):
        path = pathlib.Path(build) / (kernel["file"] + ".o")
        if not path.exists():
            print(f"SKIPPED: {kernel['name']}: {path} is not built", file=sys.stderr)
            continue
        for architecture in sorted({m["architecture"] for m in table["machine"].values()}):
            code = cache.setdefault((path, architecture), None) or disassemble(tool, path, architecture)
            cache[path, architecture] = code
            if kernel["function"] not in code:
                sys.exit(f"model_gpu: error: {path} has no kernel {kernel['function']}; see {TABLE.name}")
            found = list(count_kernel(kernel, code[kernel["function"]]))
            if "executed" in kernel and (runs := executed.get(architecture, {}).get(kernel["function"])):
                found += fit_executed([executed_kernel(kernel, code[kernel["function"]], run) for run in runs],
                                      "warps" in kernel)
            counts.setdefault(kernel["name"], {})[architecture] = [round(x, 3) for x in found]
    return counts


def updated(known, found):
    """A kernel's counts by architecture; those of executed instructions are kept if no run has executed it."""
    return {**known, **{architecture: numbers + known.get(architecture, [])[len(numbers):]
                        for architecture, numbers in found.items()}}


def grown(known, found):
    """One line for each count that grew by more than GROWTH."""
    lines = []
    for name, architectures in found.items():
        for architecture, numbers in architectures.items():
            before = known.get(name, {}).get(architecture)
            if before is None:
                lines.append(f"{name}, {architecture}: not in {COUNTS.name}")
                continue
            for what, old, new in zip(("instructions", "bytes accessed"), before, numbers):
                if new > GROWTH * old:
                    lines.append(f"{name}, {architecture}: {new:.2f} {what} per element, {old:.2f} before")
    return lines
