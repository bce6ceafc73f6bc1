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
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import collections
import itertools
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import time

from arguments import Parser, whole
from experiments.cells import (
    NUMBER,
    as_flag_value,
    folder_of,
    is_finished,
    loss_of,
    name_of,
    next_rate,
    record_of,
    stale,
    state_of,
    words_of,
    write_record,
)
from live import Live, duration, progress_bar
from run_folder import BadRun, Metrics, read_config
from startup import complain, printable

from experiments import EXIT_STATUS, Fault, processes, read_toml

COMPARE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compare.py")
RATE = "lr"  # the flag whose grid --extend-grid extends
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


def is_list_of(*types):
    return lambda value: isinstance(value, list) and bool(value) and all(type(item) in types for item in value)


def is_setting(value):
    """Returns whether this can be one value of a flag."""
    return type(value) in (str, int, float, bool) or is_list_of(str, int, float)(value)


def is_table_of(accepts):
    return lambda value: isinstance(value, dict) and all(accepts(item) for item in value.values())


PLAN = {  # key: description, check
    "out": ("a folder's name", lambda value: type(value) is str),
    "seeds": ("a list of whole numbers", is_list_of(int)),
    "command": ("a text or a list of words", lambda value: type(value) is str or is_list_of(str, int, float)(value)),
    "grid": ("a table of flags, each with a value or a list of values",
             is_table_of(lambda v: is_setting(v) or isinstance(v, list) and bool(v) and all(map(is_setting, v)))),
    "cells": ("tables [[cells]] of flags, each with its value",
              lambda value: isinstance(value, list) and all(map(is_table_of(is_setting), value))),
}


def read_plan(path):
    plan = read_toml(path)
    for key, value in plan.items():
        if key not in PLAN:
            raise Fault(f"{path}: {key}: unknown key; the keys are {', '.join(PLAN)}")
        what, accepts = PLAN[key]
        if not accepts(value):
            raise Fault(f"{path}: {key} must be {what}")
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


class Sweep:
    """The cells of a sweep; `jobs` of them run at a time."""

    def __init__(self, command, out, jobs):
        self.command, self.out, self.jobs = command, out, jobs
        self.cells, self.failed, self.took, self.live = [], {}, [], Live()  # failed: exit status by folder
        self.finished = 0  # cells
        self.metrics = {}  # of running cells, by folder
        self.environments = environments(jobs) if jobs > 1 else [{}]

    def folder(self, cell):
        return folder_of(self.out, cell)

    def check(self, cells):
        """Refuses cells that share a folder, and cells that ran with other flags."""
        twice = [folder for folder, n in collections.Counter(map(self.folder, cells)).items() if n > 1]
        if twice:
            raise Fault(f"{twice[0]}: the folder of more than one cell; give each value, seed and cell once")
        for cell in cells:
            change = stale(self.folder(cell), record_of(self.command, cell))
            if change:
                raise Fault(f"{self.folder(cell)} is a run with other flags ({change}); use the same flags, remove the "
                            f"folder or choose another --out")

    def run(self, cells):
        """Runs the cells that are not finished."""
        self.check(cells)
        self.cells += cells
        states = [state_of(self.folder(cell)) for cell in cells]
        self.waiting = [cell for cell, state in zip(cells, states) if state == "to run"]
        self.finished += len(cells) - len(self.waiting)
        for cell, state in zip(cells, states):
            if state != "to run":
                self.say(cell, state)
        wrong = []

        def ended(program, status, errors):
            cell = program.key
            self.live.clear()
            print(errors, end="", file=sys.stderr)
            loss, seconds = loss_of(self.folder(cell)), time.monotonic() - program.began
            if loss == math.inf or status == 0 and loss is not None:
                self.took.append(seconds)
                self.finished += 1
                self.say(cell, f"diverged after {duration(seconds)}" if loss == math.inf else
                         f"done in {duration(seconds)}, validation loss {loss:.4f}")
            elif status == 0 or status in processes.INTERRUPTED:
                self.say(cell, "stopped before its end; run the same command to continue")
            else:
                self.say(cell, f"failed (exit status {status})")
                self.failed[self.folder(cell)] = status
                if status == 2:
                    wrong.append(self.folder(cell))
            return not wrong

        try:
            processes.run_all(self.commands(), self.jobs, ended, self.show, self.environments)
        finally:
            self.live.clear()
        if wrong:
            raise Fault(f"{wrong[0]}: the flags are wrong (exit status 2); nothing else was started")

    def commands(self):
        while self.waiting:
            cell = self.waiting.pop(0)
            folder = self.folder(cell)
            if is_finished(folder):  # another sweep has finished it in the meantime
                self.finished += 1
                self.say(cell, state_of(folder))
                continue
            words = words_of(self.command, cell, folder)
            os.makedirs(self.out, exist_ok=True)
            if not os.path.exists(folder):
                write_record(folder, record_of(self.command, cell))
            self.say(cell, f"runs\n$ {shlex.join(words)}")
            yield cell, words

    def say(self, cell, text):
        self.live.clear()
        print(f"[{self.cells.index(cell) + 1}/{len(self.cells)}] {name_of(cell)}: {text}", flush=True)

    def show(self, running):
        """Shows a line for each running cell and one for the sweep."""
        if not self.live.on:
            return
        lines, left, width = [], [], max(len(name_of(p.key)) for p in running) if running else 0
        for program in running:
            step, total, loss, seconds = self.progress(self.folder(program.key))
            lines.append(f"{name_of(program.key):{width}}  {step}/{total} {progress_bar(step / max(1, total), 20)} "
                         + (f"loss {loss:.4f}, {duration(seconds)} left" if seconds is not None else "starting"))
            left.append(seconds)
        lines.append(f"{self.finished} of {len(self.cells)} cells finished, {len(running)} running"
                     + self.time_left(running, left))
        self.live.draw(list(map(printable, lines)))

    def time_left(self, running, left):
        """Returns the sweep's remaining time as ", 3m20s left", from the finished and the running cells' times."""
        if None in left or not left:
            return ""
        now = time.monotonic()
        whole = statistics.mean([*self.took, *(now - p.began + s for p, s in zip(running, left))])
        return f", {duration((sum(left) + len(self.waiting) * whole) / self.jobs)} left"

    def progress(self, folder):
        """Returns (step, steps, loss, seconds left or None) of a run."""
        try:
            if folder not in self.metrics:
                self.metrics[folder] = read_config(folder), Metrics(folder)
            config, metrics = self.metrics[folder]
            metrics.update()
            steps = metrics.of_kind("step")
        except BadRun:
            return 0, 0, math.nan, None  # not begun
        total = config["run"]["steps"]
        times = [m["ms"] for m in steps[-50:] if m["ms"] is not None]
        if not times:
            return 0, total, math.nan, None
        last = steps[-1]
        loss = math.nan if last["loss"] is None else last["loss"]
        return last["step"], total, loss, max(0, total - last["step"]) * statistics.median(times) / 1000

    def combinations(self):
        """Returns [(flags without rate and seed, {rate: mean loss over seeds or None})] of the cells with a rate."""
        found = []
        for cell in self.cells:
            flags = {k: v for k, v in cell.items() if k not in (RATE, "seed")}
            if RATE not in cell:
                continue
            if flags not in [f for f, _ in found]:
                found.append((flags, {}))
            rates = next(rates for f, rates in found if f == flags)
            rates.setdefault(float(cell[RATE]), []).append(loss_of(self.folder(cell)))
        return [(flags, {rate: None if None in losses else statistics.fmean(losses) for rate, losses in rates.items()})
                for flags, rates in found]

    def extension(self, seeds):
        """Returns, for all grids whose best rate is the lowest or highest, the cells of their next rates, and a line
        about each grid."""
        cells, lines = [], []
        for flags, losses in self.combinations():
            rate = next_rate(losses)
            if rate is not None:
                lines.append(f"{name_of(flags) or 'the grid'}: the best rate, {min(losses, key=losses.get):g}, is an "
                             f"end of the grid; {rate:g} follows")
                cells += [flags | {RATE: f"{rate:g}", "seed": str(seed)} for seed in seeds]
        return cells, lines


def environments(jobs):
    """Returns the environment of each of `jobs` parallel cells: a GPU, or a share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // jobs))}
    found = gpus()
    if found and jobs > len(found):
        raise Fault(f"--jobs {jobs}: this machine has {len(found)} GPUs and each runs one cell; to run on CPUs, set "
                    f"CUDA_VISIBLE_DEVICES=")
    return [threads | {"CUDA_VISIBLE_DEVICES": gpu} for gpu in found[:jobs]] or [threads]


def gpus():
    """Returns the GPUs that a program can use, by their names in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        return []
    return [str(i) for i in range(len(re.findall(r"^GPU \d", listed, re.MULTILINE)))]


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
    sweep = Sweep(command, out, args.jobs)
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
    status = subprocess.run([sys.executable, COMPARE, *map(sweep.folder, sweep.cells), *baseline, "--out",
                             os.path.join(out, "compare")]).returncode
    return 1 if sweep.failed else status


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, EXIT_STATUS, "stopped; run the same command to continue"))
