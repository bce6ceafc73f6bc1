"""Counts instructions and bytes accessed per element in the compiled kernels of bench/model_gpu.toml, from SASS.

Uses cuobjdump of the CUDA toolkit, or of the triton package that PyTorch installs for this Python or TRITON_PYTHON.
count_kernel counts the loops of each thread or warp, but not the code before and after them. executed_kernel counts
everything that a run on the modelled GPU executed (CUDA_COUNTS, docs/modelled_gpu.md): the PTX tells how often a part
of the code runs, the SASS how many instructions it has.
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
    """Finds a program of the CUDA toolkit on the PATH, beside nvcc or in triton's package. Returns its path, or
    None."""
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


def innermost(loops):
    return sorted((a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops))


def loops_with(anchor, code):
    """The bodies of the innermost loops with anchors. A loop is the code from the target of a backward branch to the
    branch. If an EXIT lies between them, it is not a loop: ptxas places rare cases behind the EXIT, and the branch
    returns from one."""
    body = lambda a, b: [text for address, text in code if a <= address <= b]
    ends = [(int(match[1], 16), address) for address, text in code
            if (match := re.match(r"BRA\b.*?(0x[0-9a-f]+)$", text)) and int(match[1], 16) < address]
    is_loop = lambda loop: "EXIT" not in loop and any(anchors(anchor, text) for text in loop)
    return [body(a, b) for a, b in innermost([end for end in ends if is_loop(body(*end))])]


def width(text):
    """Bytes of a global load or store by one thread."""
    name = text.split()[0]
    if not name.startswith(("LDG.", "STG.", "LDGSTS", "LD.E", "ST.E")):
        return 0
    bits = re.search(r"\.(128|64|U16|S16|U8|S8)\b", name)
    return {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}[bits[1]] if bits else 4


def anchors(pattern, instruction):
    """The anchors that an instruction counts as: 1 if its name matches, or the number that the pattern's group finds in
    it; else 0."""
    match = re.fullmatch(pattern, instruction.split()[0])
    return 0 if match is None else int(match[1]) if match.re.groups else 1


def count_kernel(kernel, code):
    """(instructions, bytes accessed) of one thread, per element."""
    anchors_in = lambda region: sum(anchors(kernel["anchor"], text) for text in region)
    regions = loops_with(kernel["anchor"], code) if kernel["loops"] else [[text for _, text in code]]
    regions = sorted(filter(anchors_in, regions), key=anchors_in, reverse=True)[:kernel["loops"] or 1]
    if len(regions) < max(1, kernel["loops"]):
        sys.exit(f"model_gpu: error: {kernel['function']} has {len(regions)} loops with {kernel['anchor']}, expected "
                 f"{max(1, kernel['loops'])}; see {TABLE.name}")
    if kernel.get("share"):
        regions = [sum(regions, [])]
    instructions = accessed = 0.0
    for region in regions:
        elements = anchors_in(region) * kernel["per"]
        instructions += len(region) / elements
        accessed += sum(map(width, region)) / elements
    return instructions, accessed


# A kernel that the modelled GPU executed: for each PTX instruction the opcode, how often warps executed it, and the
# instruction to which it branches (-1: none).
Executed = collections.namedtuple("Executed", "opcodes warps targets")


def load_executed(paths):
    """Reads files of CUDA_COUNTS: {architecture: {kernel: [one Executed for each file with the kernel]}}"""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            counts = json.load(file)
        of_machine = found.setdefault({80: "sm_80", 90: "sm_90a"}[counts["capability"]], {})
        for kernel in counts["kernel"]:
            opcodes, _, warps, _, _, _, targets = zip(*kernel["code"])
            of_machine.setdefault(short(kernel["name"]), []).append(Executed(opcodes, warps, targets))
    return found


def converged(code):
    """The code without the targets of BRA.DIV, each up to the branch back. They shuffle in warps whose threads have
    diverged, which never happens in our kernels."""
    found, diverged = [], False
    targets = {int(match[1], 16) for _, text in code if (match := re.match(r"BRA\.DIV\b.*?(0x[0-9a-f]+)$", text))}
    for address, text in code:
        diverged = diverged or address in targets
        if not diverged:
            found.append((address, text))
        elif re.match(r"BRA\s", text):
            diverged = False
    return found


def executed_kernel(kernel, code, executed):
    """(instructions, elements, warps) of a run. The parts of the code are the innermost loops with anchors, and the
    rest. A part counts the SASS that ptxas made of its PTX, as often as that PTX was executed. If ptxas unrolled a
    loop, the anchors tell how often."""
    code = converged(code)
    of_ptx = [anchors(kernel["executed"], opcode) for opcode in executed.opcodes]
    inner = innermost([(target, at) for at, target in enumerate(executed.targets)
                       if 0 <= target <= at and any(of_ptx[target:at + 1])])
    loops = loops_with(kernel["anchor"], code)
    if len(loops) != len(inner):
        sys.exit(f"model_gpu: error: {kernel['function']} has {len(loops)} loops with {kernel['anchor']} in SASS, "
                 f"{len(inner)} with {kernel['executed']} in PTX; see {TABLE.name}")
    total = lambda begin, end: sum(executed.warps[begin:end])
    per_ptx = lambda a, b, loop: (len(loop) / sum(anchors(kernel["anchor"], text) for text in loop)
                                  * sum(of_ptx[a:b + 1]) / (b + 1 - a))
    issued = sum(total(a, b + 1) * per_ptx(a, b, loop) for (a, b), loop in zip(inner, loops))
    n = len(executed.warps)
    rest = total(0, n) - sum(total(a, b + 1) for a, b in inner)
    rest_ptx, rest_sass = n - sum(b + 1 - a for a, b in inner), len(code) - sum(map(len, loops))
    elements = sum(warps * of for warps, of in zip(executed.warps, of_ptx)) * kernel["per"]
    return issued + rest * rest_sass / rest_ptx, elements, executed.warps[0]


def fit_executed(runs, of_warps):
    """Fits (instructions per element, per warp) to runs of executed_kernel() by least squares. Per warp is 0 unless
    of_warps and the runs differ in their elements per warp."""
    ii, iw, ww = (sum(run[a] * run[b] for run in runs) for a, b in ((1, 1), (1, 2), (2, 2)))
    yi, yw = (sum(run[0] * run[k] for run in runs) for k in (1, 2))
    determinant = ii * ww - iw * iw
    if not of_warps or determinant <= 1e-9 * ii * ww:
        return yi / ii, 0.0
    return (yi * ww - yw * iw) / determinant, (yw * ii - yi * iw) / determinant


def compiled(table):
    """The kernels with code. A table for one architecture is a kernel of its own, with the name `like`."""
    found = [kernel for kernel in table["kernel"] + table.get("symmetric", []) if "file" in kernel]
    return found + [{**kernel, **kernel[only], "name": kernel[only]["like"], "only": only}
                    for kernel in found for only in architectures(table) if only in kernel]


def architectures(table):
    return sorted({m["architecture"] for m in table["machine"].values()})


def count_all(table, build, tool, executed):
    """{kernel: {architecture: [instructions, bytes accessed]}} per element, of the kernels with object files. If
    `executed` (load_executed()) has a kernel, its executed instructions per element and per warp follow."""
    counts, cache = {}, {}
    for kernel in compiled(table):
        path = pathlib.Path(build) / (kernel["file"] + ".o")
        if not path.exists():
            print(f"SKIPPED: {kernel['name']}: {path} is not built", file=sys.stderr)
            continue
        for architecture in architectures(table):
            if kernel.get("only", architecture) != architecture:
                continue
            code = cache.setdefault((path, architecture), None) or disassemble(tool, path, architecture)
            cache[path, architecture] = code
            if kernel["function"] not in code:
                sys.exit(f"model_gpu: error: {path} has no kernel {kernel['function']}; see {TABLE.name}")
            found = list(count_kernel(kernel, code[kernel["function"]]))
            # If no run on this architecture executed the kernel, the runs on another one count.
            runs = next((of[kernel["function"]] for of in (executed.get(architecture, {}), *executed.values())
                         if kernel["function"] in of), None)
            if "executed" in kernel and runs:
                found += fit_executed([executed_kernel(kernel, code[kernel["function"]], run) for run in runs],
                                      "warps" in kernel)
            counts.setdefault(kernel["name"], {})[architecture] = [round(x, 3) for x in found]
    return counts


def updated(known, found):
    """A kernel's new counts by architecture. Keeps the known executed instructions if no run executed the kernel."""
    return {**known, **{architecture: numbers + known.get(architecture, [])[len(numbers):]
                        for architecture, numbers in found.items()}}


def increases(known, found):
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
