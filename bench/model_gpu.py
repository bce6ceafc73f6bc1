#!/usr/bin/env python3
"""A GPU step of GPT-2 124M by what can be counted without a GPU:  make predict

    bench/model_gpu.py                        the table, predicted for each machine of model_gpu.toml
    bench/model_gpu.py --markdown             the same for docs/gpu_step.md
    bench/model_gpu.py --gelu-fusion          of a run with this flag
    bench/model_gpu.py check build/cuda-check    has a kernel more instructions or accesses than model_gpu_counts.json?
    bench/model_gpu.py count build/cuda-check    write model_gpu_counts.json

A product takes its FLOPs at the rate that a library reaches, over the share of the multiprocessors that its last wave
of 128 x 128 tiles keeps busy (with --first-proposals: without splitting the sum, which a search for algorithms does
where tiles are few), and the bytes of an output that it adds to, or of GELU's input beside the output. A kernel takes
the longest of memory, instructions and tensor cores, and a quarter of the others, as they overlap in part. Every launch
costs its time.

A second table has the products of Newton-Schulz in an update by Teon: a symmetric one is our own kernel's or the
library's, full and mirrored; whichever is faster, or (with --first-proposals) as symmetric_product_pays() has it.

Instructions are read from the compiled code: cuobjdump of the CUDA toolkit, or of the triton that PyTorch brings to
this Python or to TRITON_PYTHON. Only loops that each thread or warp runs through are counted, per element; what comes
before and after them is not.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
TABLE, COUNTS = HERE / "model_gpu.toml", HERE / "model_gpu_counts.json"
GROWTH = 1.05  # of a count, that is let pass
OVERLAP = 0.25
Row = collections.namedtuple("Row", "name times launches flops bytes minimum instructions seconds limit")


# ---- the compiled code ----------------------------------------------------------------------------------------------

def find_tool(name="cuobjdump"):
    """A program of the CUDA toolkit: on the PATH, beside nvcc, or in triton's package; None if there is none."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    places = [shutil.which(name), os.path.join(os.path.dirname(os.path.realpath(nvcc)), name)]
    for python in (sys.executable, os.environ.get("TRITON_PYTHON", sys.executable)):
        found = subprocess.run([python, "-c", "import triton; print(triton.__path__[0])"], capture_output=True,
                               text=True, check=False).stdout.strip()
        places.append(os.path.join(found, "backends", "nvidia", "bin", name) if found else None)
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def short(demangled):
    """flash_attention_forward_kernel<64> for void teon::(anonymous namespace)::flash_attention_...<64>(bf16*, ...)."""
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
    """The bodies of loops that hold no other loop: from the target of a backward branch to the branch."""
    ends = [(int(match[1], 16), address) for address, text in code
            if (match := re.match(r"BRA\b.*?(0x[0-9a-f]+)$", text)) and int(match[1], 16) < address]
    inner = [(a, b) for a, b in ends if not any((c, d) != (a, b) and a <= c and d <= b for c, d in ends)]
    return [[text for address, text in code if a <= address <= b] for a, b in inner]


def width(text):
    """Bytes that a global load or store moves for one thread."""
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


def compiled(table):
    return [kernel for kernel in table["kernel"] + table.get("symmetric", []) if "file" in kernel]


def count_all(table, build, tool):
    """{kernel: {architecture: [instructions, bytes accessed]}} of those whose object files are there."""
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
            found = count_kernel(kernel, code[kernel["function"]])
            counts.setdefault(kernel["name"], {})[architecture] = [round(x, 3) for x in found]
    return counts


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


# ---- the prediction -------------------------------------------------------------------------------------------------

def evaluate(formula, shape):
    return eval(formula, {"__builtins__": {}, "min": min, "N": shape["B"] * shape["T"], **shape})  # our own table


def products(linear, shape):
    """(pass, M, N, K, bytes of an element of the output, how often of all times it is added to) of a linear layer."""
    rows, out, width_in = (int(evaluate(linear[key], shape)) for key in ("rows", "out", "in"))
    return (("forward", rows, out, width_in, 2, 0.0), ("dX", rows, width_in, out, 2, 0.0),
            ("dW", out, width_in, rows, 4, 1 - rows / evaluate("N*S", shape)))


def overlapped(times):
    """Seconds of what keeps memory, instructions and tensor cores busy for `times` each."""
    return max(times) + OVERLAP * (sum(times) - max(times))


def rounds(tiles, m):
    return -(-tiles // m["multiprocessors"])


def predict(table, counts, machine, searched=True, shape=None, gelu_fusion=False):
    """Rows of a micro-step, with the share of what runs once in a step."""
    shape, m = shape or table["shape"], table["machine"][machine]
    rows = []
    for linear in table["linear"]:
        for which, M, N, K, size, adds in products(linear, shape):
            flops = 2.0 * M * N * K
            minimum = 2.0 * (M * K + N * K) + size * M * N
            gelu = 2.0 * M * N if gelu_fusion and linear.get("gelu") == which else 0.0
            minimum += gelu
            moved = minimum + adds * size * M * N
            tiles = -(-M // 128) * -(-N // 128)
            busy = 1.0 if searched and K >= 4096 else tiles / (rounds(tiles, m) * m["multiprocessors"])
            seconds = flops / m["flops"] / busy + (adds * 2 * size * M * N + gelu) / m["bytes"] + m["launch"]
            name = f"{linear['name']} {which}" + (", GELU" if gelu else "")
            rows.append(Row(name, evaluate(linear["times"], shape), 1, flops, moved, minimum, 0, seconds,
                            max(flops / m["flops"], minimum / m["bytes"])))
    for kernel in table["kernel"]:
        if kernel.get("gelu_fusion", gelu_fusion) != gelu_fusion:
            continue
        value = lambda key: float(evaluate(kernel.get(key, "0"), {**shape, "SM": m["multiprocessors"]}))
        elements, launches = value("elements"), kernel.get("launches", 1)
        per_element = counts.get(kernel["name"], {}).get(m["architecture"], [0.0])[0]
        tensor = kernel.get("anchor", "").startswith("HMMA")
        instructions = per_element * elements / (1 if tensor else 32)
        seconds = overlapped([value("bytes") / m["bytes"], instructions / m["issue"],
                              4096 * elements / m["tensor"] if tensor else 0.0]) + launches * m["launch"]
        rows.append(Row(kernel["name"], value("times"), launches, value("flops"), value("bytes"), value("minimum"),
                        per_element, seconds, max(value("flops") / m["flops"], value("minimum") / m["bytes"])))
    return rows


# How often a form of five steps in f16 has X X^T, a product of two squares that reads one matrix or two, and one of a
# square and X (optim/orthogonalize.cpp).
FORMS = {"standard": (5, 5, 0, 5), "gram": (2, 5, 9, 2)}
Product = collections.namedtuple("Product", "name times flops kernel library pays")


def newton_schulz(table, counts, machine):
    """The products of an update: FLOPs of one launch, a symmetric one's computed once, its seconds by our kernel (None
    where that is not asked) and by the library, and whether the kernel's rule takes it."""
    m, found = table["machine"][machine], []
    for stack in table["stack"]:
        count, side, long = (int(evaluate(stack[key], table["shape"])) for key in ("count", "side", "long"))
        n = -(-side // 128)
        per_mma = counts.get(stack["kernel"], {}).get(m["architecture"], [0.0])[0]

        def kernel(K, moved):
            mma = rounds(count * n * (n + 1) // 2, m) * m["multiprocessors"] * 128 * 128 * K / 2048
            return overlapped([moved / m["bytes"], mma * per_mma / m["issue"], 4096 * mma / m["tensor"]]) + m["launch"]

        def library(columns, K, moved):
            tiles = rounds(count * n * -(-columns // 128), m) * m["multiprocessors"]
            return overlapped([moved / m["bytes"], 2 * 128 * 128 * K * tiles / m["flops"]]) + m["launch"]

        square, whole = 2.0 * count * side * side, 2.0 * count * side * long
        mirror = square / m["bytes"] + m["launch"]
        pays = 4 * rounds(count * n * (n + 1) // 2, m) <= 3 * rounds(count * n * n, m)
        for name, times, K, moved in zip(("X X^T", "squares, of one", "squares, of two"), FORMS[stack["form"]],
                                         (long, side, side), (whole + square, 2 * square, 3 * square)):
            if times:
                found.append(Product(f"{stack['name']}: {name}", times, 1.0 * count * side * side * K, kernel(K, moved),
                                     library(side, K, moved) + mirror, pays))
        found.append(Product(f"{stack['name']}: Z X", FORMS[stack["form"]][3], 2.0 * count * side * side * long, None,
                             library(long, side, square + 3 * whole), False))
    return found


def chosen(product, searched=True):
    """Seconds of a product as the code runs it."""
    if product.kernel is None:
        return product.library
    if searched:
        return min(product.kernel, product.library)
    return product.kernel if product.pays else product.library


def total(rows, field="seconds"):
    return sum(row.times * getattr(row, field) for row in rows)


def tokens_per_second(table, seconds):
    return table["shape"]["B"] * table["shape"]["T"] / seconds


def report(table, counts, searched, markdown, gelu_fusion):
    machines = list(table["machine"])
    by_machine = {name: predict(table, counts, name, searched, gelu_fusion=gelu_fusion) for name in machines}
    head = ["", "times", "GFLOP", "MB", "MB, minimum", "instructions", *(f"{name}, ms" for name in machines),
            "limit, ms"]
    lines = []
    for i, row in enumerate(by_machine[machines[0]]):
        if not row.times:
            continue
        lines.append([row.name, f"{row.times:g}", f"{row.flops / 1e9:.1f}" if row.flops else "-",
                      f"{row.bytes / 1e6:.0f}", f"{row.minimum / 1e6:.0f}",
                      f"{row.instructions:.1f}" if row.instructions else "-"]
                     + [f"{1000 * rows[i].times * rows[i].seconds:.2f}" for rows in by_machine.values()]
                     + [f"{1000 * row.times * row.limit:.2f}"])
    launches = sum(row.times * row.launches for row in by_machine[machines[0]])
    limit = total(by_machine[machines[0]], "limit")
    lines.append([f"micro-step, {launches:.0f} launches", "", "", "", "", ""]
                 + [f"{1000 * total(rows):.1f}" for rows in by_machine.values()] + [f"{1000 * limit:.1f}"])
    lines.append(["tokens/s", "", "", "", "", ""]
                 + [f"{tokens_per_second(table, total(rows)) / 1000:.0f}k" for rows in by_machine.values()]
                 + [f"{tokens_per_second(table, limit) / 1000:.0f}k"])
    lines.append(["share of the limit", "", "", "", "", ""]
                 + [f"{total(rows, 'limit') / total(rows):.0%}" for rows in by_machine.values()] + [""])
    print_table(head, lines, markdown)
    print(f"\nA micro-step of {table['shape']['B']} x {table['shape']['T']} tokens; ms: all its launches together; "
          f"limit: {machines[0]}'s, at minimum bytes;\n"
          "instructions: per element or, of attention, per mma. Not measured.\n")
    updates = {name: newton_schulz(table, counts, name) for name in machines}
    us = lambda seconds: f"{1e6 * seconds:.0f}" if seconds else "-"
    lines = [[row.name, str(row.times), f"{row.flops / 1e9:.1f}"]
             + [f"{us(rows[i].kernel)}, {us(rows[i].library)}" for rows in updates.values()]
             for i, row in enumerate(updates[machines[0]])]
    lines.append(["all as chosen, ms", "", ""] + [
        f"{1000 * sum(row.times * chosen(row, searched) for row in rows):.2f}" for rows in updates.values()])
    print_table(["Newton-Schulz", "times", "GFLOP", *(f"{name}, us: ours, library" for name in machines)], lines,
                markdown)


def print_table(head, lines, markdown):
    if markdown:
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        print(line[0].ljust(widths[0]) + "".join("  " + cell.rjust(w) for cell, w in zip(line[1:], widths[1:])))


def load(path=TABLE, counts=COUNTS):
    with open(path, "rb") as file:
        table = tomllib.load(file)
    return table, json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--first-proposals", action="store_true", help="as without --autotune")
    parser.add_argument("--gelu-fusion", action="store_true")
    commands = parser.add_subparsers(dest="command")
    for name in ("check", "count"):
        commands.add_parser(name).add_argument("build", help="folder of object files that nvcc made")
    args = parser.parse_args()
    table, counts = load()
    if args.command is None:
        return report(table, counts, not args.first_proposals, args.markdown, args.gelu_fusion)
    if (tool := find_tool()) is None:
        return print("SKIPPED: counting instructions needs cuobjdump (CUDA toolkit, or triton for this Python)")
    found = count_all(table, args.build, tool)
    if args.command == "count":
        merged = {kernel["name"]: {**counts.get(kernel["name"], {}), **found.get(kernel["name"], {})}
                  for kernel in compiled(table)}
        return COUNTS.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    lines = grown(counts, found)
    print("\n".join(lines) or f"{len(found)} kernels have no more instructions and accesses than {COUNTS.name} says")
    if lines:
        sys.exit(f"model_gpu: more than {GROWTH - 1:.0%} above what was counted before; if it has to be so: "
                 f"bench/model_gpu.py count {args.build}")
    return None


if __name__ == "__main__":
    main()
