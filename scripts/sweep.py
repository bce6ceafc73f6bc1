#!/usr/bin/env python3
"""Runs a grid of training runs and compares them:

    python3 scripts/sweep.py --out runs/sweep --grid optimizer=muon,teon --grid lr=0.005,0.01 --seeds 1,2,3 \\
        -- ./train_gpt2 --data build/corpus --model tiny --seq-len 256 --batch-tokens 4096 --steps 300
    python3 scripts/sweep.py --jobs 4 --extend-grid sweep.toml

The TOML file has the same settings: out, seeds, command (a list or a string) and a table [grid]. Tables [[cells]] add
single combinations or replace the grid. A cell's folder is named after its values. Run the same command again to
continue: finished cells are kept, an interrupted cell resumes from its last checkpoint or, without one, starts again,
and a cell that ran with other flags is refused. Ctrl-C lets the running cells save and waits for them; a second Ctrl-C
kills them. At the end scripts/compare.py compares all cells.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import itertools
import os
import re
import shlex
import sys

import compare
from common.arguments import Parser, whole
from common.startup import complain
from experiments.cells import NUMBER, as_flag_value, name_of, state_of
from experiments.grid import RATE, Grid

from experiments import EXIT_STATUS, Fault, read_toml

OWN = {"seed": "--seeds", "out": "--out"}  # flags that the sweep gives to every cell, and the options that set them


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


def has_shape(value, shape):
    """Returns whether a value has the type `shape`, one of several shapes (a tuple), or is a list of one or more values
    of a shape, or a table whose values have one."""
    if isinstance(shape, tuple):
        return any(has_shape(value, choice) for choice in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and bool(value) and all(has_shape(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(has_shape(item, shape["flag"]) for item in value.values())
    return type(value) is shape


WORD = (str, int, float)
SETTING = (*WORD, bool, [WORD])  # one value of a flag
PLAN = {  # key: description, shape
    "out": ("a folder's name", str),
    "seeds": ("a list of whole numbers", [int]),
    "command": ("a text or a list of words", (str, [WORD])),
    "grid": ("a table of flags, each with a value or a list of values", {"flag": (*SETTING, [SETTING])}),
    "cells": ("tables [[cells]] of flags, each with its value", [{"flag": SETTING}]),
}


def read_plan(path):
    plan = read_toml(path)
    for key, value in plan.items():
        if key not in PLAN:
            raise Fault(f"{path}: {key}: unknown key; the keys are {', '.join(PLAN)}")
        description, shape = PLAN[key]
        if not has_shape(value, shape):
            raise Fault(f"{path}: {key} must be {description}")
    return plan


def cells_of(grid, cells, seeds):
    """Returns every combination of the grid, then the given cells, each with every seed, as dicts of flag -> text."""
    for key in (key for flags in (grid, *cells) for key in flags):
        if key in OWN:
            raise Fault(f"{key}: cannot be in the grid or a cell; use {OWN[key]} of sweep.py")
    combinations = [dict(zip(grid, values))
                    for values in itertools.product(*grid.values())] if grid or not cells else []
    combinations += cells
    return [{k: as_flag_value(v) for k, v in c.items()} | {"seed": str(seed)} for c in combinations for seed in seeds]


TAKES_VALUE = {"--grid", "--seeds", "--out", "--jobs", "--baseline"}


def split_command(words):
    """Returns (options of sweep.py, the command to run): what follows --, or what begins with a program's name."""
    if "--" in words:
        cut = words.index("--")
        return words[:cut], words[cut + 1:]
    for cut, word in enumerate(words):
        name = os.path.basename(word)
        if (name.startswith("train_") or name in ("mpirun", "torchrun")) and words[cut - 1:cut][-1:] not in (
                [option] for option in TAKES_VALUE):
            return words[:cut], words[cut:]
    return words, []


def seeds_of(text):
    """Returns the seeds of --seeds. Refuses a small number alone, which may mean a seed or how many."""
    seeds = text.rstrip(",").split(",")
    if re.fullmatch("[0-9]{1,2}", text) and 2 <= int(text) <= 64:
        listed = ",".join(map(str, range(1, min(int(text), 3) + 1))) + (",..." if int(text) > 3 else "")
        raise Fault(f"--seeds {text}: write --seeds {listed} for {text} seeds, or --seeds {text}, for the seed {text}")
    return seeds


def main():
    parser = Parser(__doc__)
    parser.add_argument("plan", nargs="?", metavar="FILE.toml", help="the sweep, instead of or beside the flags")
    parser.add_argument("--grid", action="append", default=[], metavar="FLAG=V,V,...",
                        help="the values of one flag; can be repeated")
    parser.add_argument("--seeds", metavar="N,N,...", help="the seeds of every combination, as in 1,2,3 (default 1337)")
    parser.add_argument("--out", help="folder of the cells (default runs/sweep)")
    parser.add_argument("--jobs", type=whole(1, 4096), default=1, metavar="N",
                        help="run N cells at a time, each on one GPU or on an Nth of the cores (default 1)")
    parser.add_argument("--extend-grid", type=whole(1, 1000), nargs="?", const=6, default=0, metavar="N",
                        help=f"if the best {RATE} is at the end of its grid, run the next one, until the best one has "
                             f"a neighbour on both sides or N were added (default 6)")
    parser.add_argument("--dry-run", action="store_true", help="print the cells and run nothing")
    parser.add_argument("--baseline", metavar="ROW", help="the row that compare.py compares with (default: the first)")
    arguments, command = split_command(sys.argv[1:])
    args = parser.parse_args(arguments)
    plan = read_plan(args.plan) if args.plan else {}
    grid = {k: v if isinstance(v, list) else [v] for k, v in plan.get("grid", {}).items()} | parse_grid(args.grid)
    seeds = seeds_of(args.seeds) if args.seeds else plan.get("seeds", [1337])
    if not all(re.fullmatch("[0-9]{1,16}", str(seed)) for seed in seeds):
        raise Fault(f"seeds {','.join(map(str, seeds))}: write whole numbers, as in 1,2,3")
    out = args.out or plan.get("out", "runs/sweep")
    if not command:
        command = plan.get("command", [])
        try:
            command = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except ValueError as error:
            raise Fault(f"{args.plan}: command: {error}") from None
    if not command:
        where = f"{args.plan}: " if args.plan else ""
        raise Fault(f"{where}no command to run; write one after -- or as 'command' in the file")

    cells = cells_of(grid, plan.get("cells", []), seeds)
    if any(not NUMBER.fullmatch(cell.get(RATE, "0")) for cell in cells):
        raise Fault(f"--grid {RATE}: write numbers, as in {RATE}=0.01,0.02")
    sweep = Grid(command, out, args.jobs)
    if args.dry_run:
        sweep.check(cells)
        for number, cell in enumerate(cells, 1):
            print(f"[{number}/{len(cells)}] {name_of(cell)}: {state_of(sweep.folder(cell))}")
        return 0
    sweep.run(cells)
    for _ in range(args.extend_grid):
        more, lines = sweep.extension(seeds)
        if not more:
            break
        print("\n".join(lines), flush=True)
        sweep.run(more)
    for line in sweep.extension(seeds)[1]:
        complain(line.replace("follows", "would follow (--extend-grid)"))
    if sweep.failed:
        failed = ", ".join(f"{folder} (exit status {status})" for folder, status in sweep.failed.items())
        complain(f"failed: {failed}")
    baseline = [] if args.baseline is None else ["--baseline", args.baseline]
    status = compare.main([*map(sweep.folder, sweep.cells), *baseline, "--out", os.path.join(out, "compare")])
    return 1 if sweep.failed else status


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, EXIT_STATUS, "stopped; run the same command to continue"))
