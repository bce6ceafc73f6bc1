#!/usr/bin/env python3
"""Prints a checkpoint's training state and its tensors with their norms:

    python3 scripts/inspect_checkpoint.py runs/demo                        the newest checkpoint of a run
    python3 scripts/inspect_checkpoint.py runs/demo/step_00001000          this checkpoint
    python3 scripts/inspect_checkpoint.py step_00001000/model.safetensors  one file of tensors

Compares every file with the manifest: sizes, and hashes if the library xxhash is installed. Exit status: 0 no fault, 1
a file is damaged or a tensor is not finite, 2 usage.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import json
import math
import pathlib
import re
import struct
import sys

from common.arguments import Parser
from common.run_folder import BadRun, find_checkpoint, parse_object, read_object
from common.startup import printable

try:
    import numpy as np
except ImportError:
    sys.exit("inspect_checkpoint.py: error: needs a library that is not here: pip install numpy")

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "<i1", "U8": "<u1"}
BLOCK = 1 << 24  # elements at a time
LARGEST_HEADER = 100 << 20  # bytes, the limit of the safetensors library


def is_count(x):
    return type(x) is int and x >= 0


def tensors(path):
    """Yields name, dtype, shape and memory-mapped elements of each tensor, in the order of the file."""
    if not path.is_file():
        raise BadRun(f"{path}: missing")
    size = path.stat().st_size
    with open(path, "rb") as file:
        [header_bytes] = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if header_bytes > min(LARGEST_HEADER, size - 8):
            raise BadRun(f"{path}: not a safetensors file: its header would have {header_bytes} bytes")
        header = parse_object(file.read(header_bytes).decode(errors="replace"), f"{path}: its header")
    header.pop("__metadata__", None)
    data_bytes = size - 8 - header_bytes
    for name, entry in header.items():
        fault = f"{path}: damaged header: tensor {name[:60]!r}"
        if not isinstance(entry, dict) or entry.get("dtype") not in DTYPES:
            raise BadRun(f"{fault} has no known dtype")
        shape, offsets = entry.get("shape"), entry.get("data_offsets")
        if not isinstance(shape, list) or not all(map(is_count, shape)):
            raise BadRun(f"{fault} has no shape")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
            raise BadRun(f"{fault} has no data_offsets")
        wanted = math.prod(shape) * np.dtype(DTYPES[entry["dtype"]]).itemsize
        if offsets[1] - offsets[0] != wanted or offsets[1] > data_bytes:
            raise BadRun(f"{fault} takes {wanted} bytes, at {offsets} of {data_bytes}")
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, count = np.dtype(DTYPES[entry["dtype"]]), math.prod(entry["shape"])
        at = 8 + header_bytes + entry["data_offsets"][0]
        data = np.memmap(path, dtype, "r", at, count) if count else np.empty(0, dtype)
        yield name, entry["dtype"], entry["shape"], data


def statistics(dtype, data):
    """Returns the norm, root mean square, largest magnitude and number of elements that are not finite."""
    squares, largest, bad = 0.0, 0.0, 0
    for i in range(0, len(data), BLOCK):
        x = np.asarray(data[i:i + BLOCK])
        x = (x.astype("<u4") << 16).view("<f4") if dtype == "BF16" else x
        x = x.astype(np.float64)
        finite = x[np.isfinite(x)]
        bad += len(x) - len(finite)
        squares += float(finite @ finite)
        largest = max(largest, float(np.abs(finite).max(initial=0)))
    return squares ** 0.5, (squares / max(1, len(data))) ** 0.5, largest, bad


def show(text):
    """Prints a line with escapes for control characters, which names in a damaged file may have."""
    print(printable(text))


def print_tensors(path):
    rows, elements, squares, faults = [], 0, 0.0, 0
    for name, dtype, shape, data in tensors(path):
        norm, rms, largest, bad = statistics(dtype, data)
        elements, squares, faults = elements + len(data), squares + norm ** 2, faults + bool(bad)
        rows.append((name, dtype, " x ".join(map(str, shape)) or "scalar", f"{norm:.5g}", f"{rms:.4g}",
                     f"{largest:.4g}", f"{bad} not finite" if bad else ""))
    rows.insert(0, ("tensor", "dtype", "shape", "norm", "rms", "largest", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    print()
    show(str(path))
    for row in rows:
        show("  " + "  ".join(cell.ljust(w) if i < 3 else cell.rjust(w)
                              for i, (cell, w) in enumerate(zip(row, widths))).rstrip())
    show(f"  {len(rows) - 1} tensors, {elements:,} elements, norm {squares ** 0.5:.6g}")
    return faults


def verify(folder):
    """Compares the files with manifest.json, prints the faults and returns their number."""
    path = folder / "manifest.json"
    manifest = read_object(path, {"files": list})
    for entry in manifest["files"]:
        if not isinstance(entry, dict) or [type(entry.get(k)) for k in ("path", "bytes", "xxh3")] != [str, int, str]:
            raise BadRun(f"{path}: a file in it lacks \"path\", \"bytes\" or \"xxh3\"")
    try:
        import xxhash
    except ImportError:
        xxhash = None
    faults = []
    for entry in manifest["files"]:
        path = folder / entry["path"]
        if not path.is_file():
            faults.append(f"{path}: missing")
        elif path.stat().st_size != entry["bytes"]:
            faults.append(f"{path}: {path.stat().st_size} bytes, {entry['bytes']} were written")
        elif xxhash:
            digest = xxhash.xxh3_64()
            with open(path, "rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
            if digest.hexdigest() != entry["xxh3"]:
                faults.append(f"{path}: its content changed")
    size = sum(entry["bytes"] for entry in manifest["files"])
    what = "sizes and hashes" if xxhash else "sizes (hashes need the library xxhash)"
    show(f"files       {len(manifest['files'])}, {size / 2**20:.1f} MiB; {what} "
          f"{'differ' if faults else 'as written'}")
    for fault in faults:
        show(f"  {fault}")
    return len(faults)


def print_state(folder):
    model = read_object(folder / "config.json", {"architectures": list})
    numbers = {f"guard.{name}.{key}": kind for name in ("loss", "grad_norm")
               for key, kind in (("mean", float), ("variance", float), ("count", int))}
    state = read_object(folder / "trainer.json", {
        "run.model": dict, "run.steps": int, "run.program": str, "run.version": str, "run.options": dict, "step": int,
        "tokens": int, "next_sample": int, "updates": int, "guard.skipped_in_row": int, **numbers})
    run, guard = state["run"], state["guard"]
    if re.fullmatch(r"step_\d{8,}", folder.name) and state["step"] != int(folder.name[5:]):
        raise BadRun(f"{folder / 'trainer.json'}: of step {state['step']}, not of this folder's")
    show(f"checkpoint  {folder}")
    show(f"model       {', '.join(map(str, model['architectures']))}, "
          + ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in run["model"].items()))
    show(f"progress    step {state['step']} of {run['steps']}, {state['tokens']:,} tokens, next sample "
          f"{state['next_sample']}")
    show(f"updates     {state['updates']} applied, {state['step'] - state['updates']} skipped, "
          f"{guard['skipped_in_row']} just now")
    for name in ("loss", "grad_norm"):
        s = guard[name]
        show(f"{'  ' + name:<12}mean {s['mean']:.6g}, deviation {max(0.0, s['variance']) ** 0.5:.4g} of the last "
              f"{s['count']} steps"
              + (" (sum over the tokens of a step)" if name == "loss" else ""))
    show(f"made by     {run['program']} {run['version']}")
    options = {k: f"{v:.7g}" if isinstance(v, float) else v for k, v in run["options"].items()
               if v not in (None, "", {}, [], False)}
    show("options     "
          + " ".join(f"--{k} {json.dumps(v) if isinstance(v, (list, dict)) else v}" for k, v in options.items()))


def main():
    parser = Parser(__doc__)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--state-only", action="store_true", help="do not print the tensors")
    options = parser.parse_args()
    path, faults = options.path, 0
    if path.is_file():
        return int(print_tensors(path) > 0)
    path = pathlib.Path(find_checkpoint(path))
    print_state(path)
    faults += verify(path)
    if not options.state_only:
        files = sorted(path.glob("model*.safetensors")) + sorted(path.glob("optimizer/*.safetensors"))
        for name in files:
            faults += print_tensors(name)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1}))
