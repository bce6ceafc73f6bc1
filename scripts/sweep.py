#!/usr/bin/env python3
"""Runs a grid of training runs and compares them:

    python3 scripts/sweep.py --out runs/sweep --grid optimizer=muon,teon --grid lr=0.005,0.01 --seeds 1,2,3 \\
        -- ./train_gpt2 --data build/corpus --model tiny --seq-len 256 --batch-tokens 4096 --steps 300
    python3 scripts/sweep.py sweep.toml

The TOML file has the same: out, seeds, command (a list or a string) and a table [grid]; [[cells]] tables instead of or
beside the grid name single combinations. A cell's folder is named after its values. Started again, finished cells are
kept as they are; a cell that was cut off goes on from its last checkpoint, or begins again where it has none. Ends with
scripts/compare.py over all cells.
"""

import argparse
import glob
import itertools
import os
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compare
from run_folder import BadRun


class Fault(Exception):
    """A sweep that cannot be meant; the message is one sentence."""


def parse_grid(items):
    grid = {}
    for item in items:
        key, equals, values = item.partition("=")
        if not equals or not key or not values:
            raise Fault(f"--grid {item}: write flag=value,value")
        if key in grid:
            raise Fault(f"--grid {key}: given twice")
        grid[key] = values.split(",")
    return grid


def is_list_of(*types):
    return lambda value: isinstance(value, list) and bool(value) and all(type(item) in types for item in value)


def is_setting(value):
    """What one value of a flag may be."""
    return type(value) in (str, int, float, bool) or is_list_of(str, int, float)(value)


def is_table_of(accepts):
    return lambda value: isinstance(value, dict) and all(accepts(item) for item in value.values())


PLAN = {  # key: what it is, in words and as a check
    "out": ("a folder's name", lambda value: type(value) is str),
    "seeds": ("a list of whole numbers", is_list_of(int)),
    "command": ("a text or a list of words", lambda value: type(value) is str or is_list_of(str, int, float)(value)),
    "grid": ("a table of flags, each with a value or a list of values",
             is_table_of(lambda v: is_setting(v) or isinstance(v, list) and bool(v) and all(map(is_setting, v)))),
    "cells": ("tables [[cells]] of flags, each with its value",
              lambda value: isinstance(value, list) and all(map(is_table_of(is_setting), value))),
}


def read_plan(path):
    try:
        import tomllib
    except ImportError:
        raise Fault(f"{path}: reading TOML needs Python 3.11") from None
    try:
        with open(path, "rb") as file:
            plan = tomllib.load(file)
    except OSError as error:
        raise Fault(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, not UTF-8, nested too deep
        raise Fault(f"{path}: {error}") from None
    for key, value in plan.items():
        if key not in PLAN:
            raise Fault(f"{path}: {key}: not known; there are {', '.join(PLAN)}")
        what, accepts = PLAN[key]
        if not accepts(value):
            raise Fault(f"{path}: {key} should be {what}")
    return plan


def as_flag_value(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(as_flag_value, value))
    return str(value)


def cells_of(grid, cells, seeds):
    """Every combination of the grid, then the named cells, each with every seed: dicts of flag -> text."""
    combinations = [dict(zip(grid, values))
                    for values in itertools.product(*grid.values())] if grid or not cells else []
    combinations += cells
    return [{k: as_flag_value(v) for k, v in c.items()} | {"seed": str(seed)} for c in combinations for seed in seeds]


def folder_of(out, cell):
    name = "-".join(f"{k}_{v}" for k, v in cell.items())
    return os.path.join(out, "".join(c if c.isalnum() or c in "._-+=" else "_" for c in name))


def is_finished(folder):
    try:
        compare.read_run(folder)
    except BadRun:
        return False
    return True


def run_cell(command, cell, folder, quiet=False):
    flags = [word for k, v in cell.items() for word in (f"--{k}", v)]
    words = command + flags + ["--out", folder]
    if glob.glob(os.path.join(folder, "step_*[0-9]")):
        words.append("--resume")
    elif os.path.exists(folder):
        shutil.rmtree(folder)  # begun, but with nothing to go on from
    if not quiet:
        print("$", shlex.join(words), flush=True)
    try:
        return subprocess.run(words, stdout=subprocess.DEVNULL).returncode
    except OSError as error:
        raise Fault(f"cannot run {words[0]}: {error.strerror}") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", metavar="FILE.toml", help="the sweep, instead of or beside the flags")
    parser.add_argument("--grid", action="append", default=[], metavar="FLAG=V,V,...",
                        help="values of one flag; repeat for more")
    parser.add_argument("--seeds", metavar="N,N,...", help="(default 1337)")
    parser.add_argument("--out", help="folder of the cells (default runs/sweep)")
    parser.add_argument("--dry-run", action="store_true", help="only say what would run")
    arguments, command = sys.argv[1:], []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1:]
    args = parser.parse_args(arguments)
    plan = read_plan(args.plan) if args.plan else {}
    grid = {k: v if isinstance(v, list) else [v] for k, v in plan.get("grid", {}).items()} | parse_grid(args.grid)
    seeds = args.seeds.split(",") if args.seeds else plan.get("seeds", [1337])
    if not all(str(seed).isdigit() for seed in seeds):
        raise Fault(f"--seeds {args.seeds}: write whole numbers, as in 1,2,3")
    out = args.out or plan.get("out", "runs/sweep")
    if not command:
        command = plan.get("command", [])
        try:
            command = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except ValueError as error:
            raise Fault(f"{args.plan}: command: {error}") from None
    if not command:
        where = f"{args.plan}: " if args.plan else ""
        raise Fault(f"{where}no command to run; put one behind -- or into the file's 'command'")

    cells = cells_of(grid, plan.get("cells", []), seeds)
    folders = [folder_of(out, cell) for cell in cells]
    failed = []
    for number, (cell, folder) in enumerate(zip(cells, folders), 1):
        state = "finished" if is_finished(folder) else "to run"
        print(f"[{number}/{len(cells)}] {' '.join(f'{k}={v}' for k, v in cell.items())}: {state}", flush=True)
        if state == "finished" or args.dry_run:
            continue
        status = run_cell(command, cell, folder)
        if status == 2:
            raise Fault(f"{folder}: the flags are wrong (exit status 2); nothing else was started")
        if status != 0:
            failed.append(f"{folder} (exit status {status})")
    if args.dry_run:
        return 0
    if failed:
        print(f"sweep.py: failed: {', '.join(failed)}", file=sys.stderr)
    status = subprocess.run([sys.executable, compare.__file__, *folders, "--out",
                             os.path.join(out, "compare")]).returncode
    return 1 if failed else status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Fault as fault:
        print(f"sweep.py: error: {fault}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("sweep.py: stopped; the same command goes on")
