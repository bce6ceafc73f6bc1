#!/usr/bin/env python3
"""Prints a checkpoint's training state and its tensors with their norms:

    python3 scripts/inspect_checkpoint.py runs/demo                        the newest checkpoint of a run
    python3 scripts/inspect_checkpoint.py runs/demo/step_00001000          this one
    python3 scripts/inspect_checkpoint.py step_00001000/model.safetensors  one file of tensors

Compares every file with the manifest: sizes, and hashes where the library xxhash is installed. Exit status: 0 all is well,
1 a file is damaged or a tensor not finite, 2 usage.
"""

import argparse
import json
import pathlib
import re
import struct
import sys

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1"}
BLOCK = 1 << 24  # elements at a time


class Problem(Exception):
    pass


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Problem(f"{path}: {error}") from error


def tensors(path):
    """Name, dtype, shape and memory-mapped elements of each tensor, in the order of the file."""
    try:
        with open(path, "rb") as file:
            [size] = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, path.stat().st_size)))
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            dtype = np.dtype(DTYPES[entry["dtype"]])
            data = np.memmap(path, dtype, "r", 8 + size + begin, (end - begin) // dtype.itemsize) if end > begin else np.empty(0, dtype)
            yield name, entry["dtype"], entry["shape"], data
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise Problem(f"{path}: not a safetensors file ({error!r})") from error


def statistics(dtype, data):
    """Norm, root mean square, largest magnitude and number of elements that are not finite."""
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


def print_tensors(path):
    rows, elements, squares, faults = [], 0, 0.0, 0
    for name, dtype, shape, data in tensors(path):
        norm, rms, largest, bad = statistics(dtype, data)
        elements, squares, faults = elements + len(data), squares + norm ** 2, faults + bool(bad)
        rows.append((name, dtype, " x ".join(map(str, shape)) or "scalar", f"{norm:.5g}", f"{rms:.4g}", f"{largest:.4g}",
                     f"{bad} not finite" if bad else ""))
    rows.insert(0, ("tensor", "dtype", "shape", "norm", "rms", "largest", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    print(f"\n{path}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip())
    print(f"  {len(rows) - 1} tensors, {elements:,} elements, norm {squares ** 0.5:.6g}")
    return faults


def verify(folder):
    """What is wrong with the files, compared with manifest.json."""
    manifest = read_json(folder / "manifest.json")
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
    print(f"files       {len(manifest['files'])}, {size / 2**20:.1f} MiB; {what} {'differ' if faults else 'as written'}")
    for fault in faults:
        print(f"  {fault}")
    return len(faults)


def print_state(folder):
    state, model = read_json(folder / "trainer.json"), read_json(folder / "config.json")
    run, guard = state["run"], state["guard"]
    print(f"checkpoint  {folder}")
    print(f"model       {model['architectures'][0]}, " + ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in run["model"].items()))
    print(f"progress    step {state['step']} of {run['steps']}, {state['tokens']:,} tokens, next sample {state['next_sample']}")
    print(f"updates     {state['updates']} applied, {state['step'] - state['updates']} skipped, {guard['skipped_in_row']} just now")
    for name in ("loss", "grad_norm"):
        s = guard[name]
        print(f"{'  ' + name:<12}mean {s['mean']:.6g}, deviation {s['variance'] ** 0.5:.4g} of the last {s['count']} steps"
              + (" (sum over the tokens of a step)" if name == "loss" else ""))
    print(f"made by     {run['program']} {run['version']}")
    options = {k: f"{v:.7g}" if isinstance(v, float) else v for k, v in run["options"].items() if v not in (None, "", {}, [], False)}
    print("options     " + " ".join(f"--{k} {json.dumps(v) if isinstance(v, (list, dict)) else v}" for k, v in options.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--state-only", action="store_true", help="leave out the tables of tensors")
    options = parser.parse_args()
    path, faults = options.path, 0
    try:
        if path.is_file():
            return int(print_tensors(path) > 0)
        if not (path / "trainer.json").is_file():
            found = sorted(p for p in path.glob("step_*") if re.fullmatch(r"step_\d{8,}", p.name))
            if not found:
                parser.error(f"{path}: no checkpoint, and no run with one")
            path = found[-1]
        print_state(path)
        faults += verify(path)
        if not options.state_only:
            for name in ("model.safetensors", "optimizer/master.safetensors", "optimizer/state.safetensors"):
                faults += print_tensors(path / name)
    except Problem as problem:
        print(f"inspect_checkpoint: error: {problem}", file=sys.stderr)
        return 1
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
