#!/usr/bin/env python3
"""Checks the rules that separate the folders (docs/architecture.md), by reading the sources.

    dev/check_layers.py [FOLDER]     the tree to check (default: this one)

Includes follow the table below and form no cycle. A function that a header declares is defined in the header's own
source file. Backend names stay in runtime/, cpu/ and gpusim/. Every kernel begins with wait_for_earlier_kernels(). A
file with fmt::join includes <fmt/ranges.h>, which fmt 11 needs. No line is longer than 120 columns. Prints each fault
with its file and line; exit status 1 if there is any.
"""
if __name__ == "__main__":
    from begin import startup

import os
import pathlib
import re
import sys

# The folders that each folder may include besides itself. A row names only rows above it, so there are no cycles.
ORDER = {
    "base": "",
    "cpu": "base",
    "gpusim": "base cpu",
    "runtime": "base cpu",
    "files": "base",
    "kernels": "base runtime",
    "data": "base runtime files",
    "model": "base runtime files kernels data",
    "optim": "base runtime kernels model",
    "checkpoint": "base runtime files kernels model optim data",
    "options": "base runtime files kernels model optim data checkpoint",
    "generation": "base runtime files kernels model data options checkpoint",
    "plan": "base runtime files kernels model optim data options checkpoint generation",
    "train": "base runtime files kernels model optim data options checkpoint generation plan",
    "main": "base model generation train",  # the programs: *.cu in no folder
    "bench": "base runtime files kernels model optim data options checkpoint generation plan train test",
}
# The only headers of model/ that these folders may include: parameters, the abstract Model, and what options and plans
# need.
SEEN_OF_MODEL = {
    "optim": "param_table param_layout param_store model",
    "checkpoint": "param_table param_store decoder families family",
    "options": "param_layout decoder_run family fields",
    "plan": "param_table param_layout model activation_plan decoder decoder_config family fields",
    "train": "param_table param_layout param_store model activation_plan decoder family fields",
}
BACKEND = re.compile(r"cuda[A-Z]|cublas|cusolver|nccl|MPI_|cblas_|LAPACKE_|<<<")
CONDITION = re.compile(r"^ *# *(if|elif).*(__CUDACC__|__CUDA_ARCH__|__NVCC__|TEON_CUDA)")
KNOWS_BACKEND = re.compile(r"(base|runtime|cpu|gpusim|test/(cpu|model_gpu))/|test/runtime/test_cuda_values\.cu")
KERNEL = re.compile(r"__global__ void[^;{]*\{(?!\s*wait_for_earlier_kernels\(\);)")
INCLUDE = re.compile(r'^ *# *include "([^"]+)"')
# A function at the left margin (namespaces are not indented), up to its ";" or "{".
FUNCTION = re.compile(r"^(?!(?:return|using|else|namespace|struct|class|enum|union|static|extern|typedef)\b)"
                      r"[A-Za-z_][\w:<>,*& \[\]]*?[ *&](\w+)\(([^;{}]*)\)(?: const| noexcept)*\s*([;{])", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^ *#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
WIDTH = 120


def sources(root):
    """Yields (path relative to the root, text) of the C++, CUDA, Python, shell and make files."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("build", "runs", "__pycache__"))
        for name in sorted(names):
            if name == "Makefile" or name.endswith((".cu", ".cpp", ".h", ".py", ".sh", ".mk")):
                path = pathlib.Path(folder, name)
                yield path.relative_to(root).as_posix(), path.read_text(errors="replace")


def folder_of(path):
    if path.startswith("gpusim/test/"):
        return "gpusim/test"  # may include what every test may
    if path.startswith(("gpusim/foreign/", "gpusim/examples/")):
        return "gpusim/foreign"  # programs of their own, with other projects' headers
    return path.split("/")[0] if "/" in path else "main"


def unit_of(path):
    """Returns the path without its suffix, which a header shares with its source file: cpu/simt.h and cpu/simt.cpp."""
    return path.rsplit(".", 1)[0]


def check_lines(code):
    """Yields the lines that name a backend, or include a file, that their folder may not."""
    for path, text in code.items():
        folder, ours = folder_of(path), not KNOWS_BACKEND.match(path)
        allowed = {folder, *ORDER.get(folder, "").split()} if folder in ORDER else None
        seen = SEEN_OF_MODEL.get(folder)
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path}:{number}: "
            if ours and BACKEND.search(line):
                yield where + f"names a backend outside runtime/, cpu/ and gpusim/: {line.strip()}"
            if ours and CONDITION.search(line):
                yield where + f"has a condition on the backend outside runtime/, cpu/ and gpusim/: {line.strip()}"
            included = INCLUDE.match(line)
            if not included:
                continue
            to, header = folder_of(included[1]), included[1]
            if allowed and "/" in header and to not in allowed:
                yield where + f"includes {header}; {folder}/ may include {ORDER[folder] or 'nothing'} only"
            if seen and to == "model" and unit_of(header[len("model/"):]) not in seen.split():
                yield where + f"includes {header}; of model/, {folder}/ may include {seen} only"


def check_kernels(code):
    for path, text in code.items():
        if path == "runtime/simt.h" or path.startswith(("cpu/", "test/cpu/")):
            continue
        for kernel in KERNEL.finditer(text) if folder_of(path) != "gpusim/foreign" else ():
            number = text.count("\n", 0, kernel.start()) + 1
            yield f"{path}:{number}: a kernel that does not begin with wait_for_earlier_kernels()"


def check_fmt(code):
    for path, text in code.items():
        if "fmt::join" in text and "#include <fmt/ranges.h>" not in text:
            yield f"{path}:{text.count(chr(10), 0, text.index('fmt::join')) + 1}: fmt::join without <fmt/ranges.h>"


def check_cycles(code):
    """Yields include cycles, by depth-first search: including a unit that is still open closes a cycle."""
    edges = {}
    for path, text in code.items():
        for number, line in enumerate(text.splitlines(), 1):
            included = INCLUDE.match(line)
            if included and included[1] in code and unit_of(included[1]) != unit_of(path):
                edges.setdefault(unit_of(path), {})[unit_of(included[1])] = f"{path}:{number}"
    open_units, done = [], set()

    def visit(unit):
        open_units.append(unit)
        for other, where in edges.get(unit, {}).items():
            if other in open_units:
                yield f"{where}: an include cycle: {' -> '.join(open_units[open_units.index(other):] + [other])}"
            elif other not in done:
                yield from visit(other)
        done.add(open_units.pop())

    for unit in sorted(edges):
        if unit not in done:
            yield from visit(unit)


def check_definitions(code):
    """Yields functions that are defined elsewhere than in a file whose name begins with their header's name, or of
    which the header is a part: sampling_options.h, sampling.cpp."""
    declared, defined = {}, {}
    for path, text in code.items():
        if path.startswith(("cpu/include/", "test/", "gpusim/test/", "gpusim/foreign/", "gpusim/examples/", "bench/")):
            continue
        bare = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
        for function in FUNCTION.finditer(bare):
            to = defined if function[3] == "{" else declared if path.endswith(".h") else {}
            to.setdefault(function[1], set()).add((path, bare.count("\n", 0, function.start()) + 1))
    for name, places in sorted(declared.items()):
        for path, number in sorted(places):
            definers = sorted(p for p, _ in defined.get(name, ()) if folder_of(p) == folder_of(path))
            if definers and not any(unit_of(p).startswith(unit_of(path)) or unit_of(path).startswith(unit_of(p) + "_")
                                    for p in definers):
                yield f"{path}:{number}: declares {name}(), which {definers[0]} defines"


def check_width(files):
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > WIDTH:
                yield f"{path}:{number}: {len(line)} columns; at most {WIDTH}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1])
    files = dict(sources(root))
    code = {path: text for path, text in files.items() if path.endswith((".cu", ".cpp", ".h"))}
    checks = check_lines, check_kernels, check_fmt, check_cycles, check_definitions
    faults = [fault for check in checks for fault in check(code)] + list(check_width(files))
    print("\n".join(faults) or "layers: clean")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
