"""Runs the cells of a grid that have not finished, several at a time, and shows how far they are."""

import collections
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import time

from common.live import Live, duration, progress_bar
from common.run_folder import BadRun, open_run, recent
from common.startup import printable

from experiments import Fault, cells, processes

RATE = "lr"  # the flag whose grid --extend-grid extends


class Grid:
    """The cells of a sweep; `jobs` of them run at a time."""

    def __init__(self, command, out, jobs):
        self.command, self.out, self.jobs = command, out, jobs
        self.cells, self.failed, self.took, self.live = [], {}, [], Live()  # failed: exit status by folder
        self.finished = 0  # cells
        self.metrics = {}  # of running cells, by folder
        self.environments = environments(jobs) if jobs > 1 else [{}]

    def folder(self, cell):
        return cells.folder_of(self.out, cell)

    def check(self, new_cells):
        """Refuses cells that share a folder, and cells that ran with other flags."""
        folders = collections.Counter(map(self.folder, new_cells))
        for folder, count in folders.items():
            if count > 1:
                raise Fault(f"{folder}: the folder of more than one cell; give each value, seed and cell once")
        for folder, cell in zip(folders, new_cells):
            if change := cells.stale(folder, cells.record_of(self.command, cell)):
                raise Fault(f"{folder} is a run with other flags ({change}); use the same flags, remove the folder or "
                            f"choose another --out")

    def run(self, new_cells):
        """Runs those of the new cells that are not finished."""
        self.check(new_cells)
        self.cells += new_cells
        self.waiting = []
        for cell in new_cells:
            if (state := cells.state_of(self.folder(cell))) == "to run":
                self.waiting.append(cell)
            else:
                self.finished += 1
                self.say(cell, state)
        try:
            for program, status, errors in processes.run_all(self.commands(), self.jobs, self.show, self.environments):
                self.live.clear()
                print(errors, end="", file=sys.stderr)
                self.say(program.key, self.outcome(program, status))
        finally:
            self.live.clear()
        for folder, status in self.failed.items():
            if status == 2:
                raise Fault(f"{folder}: the flags are wrong (exit status 2); nothing else was started")

    def commands(self):
        """Yields the waiting cells and their commands, until the flags of one are wrong."""
        while self.waiting and 2 not in self.failed.values():
            cell = self.waiting.pop(0)
            folder = self.folder(cell)
            if cells.is_finished(folder):  # another sweep has finished it in the meantime
                self.finished += 1
                self.say(cell, cells.state_of(folder))
                continue
            words = cells.words_of(self.command, cell, folder)
            os.makedirs(self.out, exist_ok=True)
            if not os.path.exists(folder):
                cells.write_record(folder, cells.record_of(self.command, cell))
            self.say(cell, f"runs\n$ {shlex.join(words)}")
            yield cell, words

    def outcome(self, program, status):
        """Counts a program that has ended, and describes how."""
        folder, seconds = self.folder(program.key), time.monotonic() - program.began
        loss = cells.loss_of(folder)
        if loss == math.inf or status == 0 and loss is not None:
            self.took.append(seconds)
            self.finished += 1
            return (f"diverged after {duration(seconds)}" if loss == math.inf else
                    f"done in {duration(seconds)}, validation loss {loss:.4f}")
        if status == 0 or status in processes.INTERRUPTED:
            return "stopped before its end; run the same command to continue"
        self.failed[folder] = status
        return f"failed (exit status {status})"

    def say(self, cell, text):
        self.live.clear()
        print(f"[{self.cells.index(cell) + 1}/{len(self.cells)}] {cells.name_of(cell)}: {text}", flush=True)

    def show(self, running):
        """Shows a line for each running cell and one for the sweep."""
        if not self.live.on:
            return
        lines, left, names = [], [], [cells.name_of(program.key) for program in running]
        for program, name in zip(running, names):
            step, total, loss, seconds = self.progress(self.folder(program.key))
            lines.append(f"{name:{max(map(len, names))}}  {step}/{total} {progress_bar(step / max(1, total), 20)} "
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
                self.metrics[folder] = open_run(folder)
            config, metrics = self.metrics[folder]
            metrics.update()
        except BadRun:
            return 0, 0, math.nan, None  # not begun
        steps, total = metrics.of_kind("step"), config["run"]["steps"]
        if (ms := recent(steps, "ms")) is None:
            return 0, total, math.nan, None
        step = steps.column("step")[-1]
        return step, total, steps.column("loss")[-1], max(0, total - step) * ms / 1000

    def extension(self, seeds):
        """Returns, for all grids whose best rate is the lowest or highest, the cells of their next rates, and a line
        about each grid."""
        grids = {}  # (flags without rate and seed, {rate: losses of its seeds}) by these flags
        for cell in self.cells:
            if RATE in cell:
                flags = {k: v for k, v in cell.items() if k not in (RATE, "seed")}
                losses = grids.setdefault(frozenset(flags.items()), (flags, {}))[1]
                losses.setdefault(float(cell[RATE]), []).append(cells.loss_of(self.folder(cell)))
        new_cells, lines = [], []
        for flags, losses in grids.values():
            means = {rate: None if None in seen else statistics.fmean(seen) for rate, seen in losses.items()}
            if (rate := cells.next_rate(means)) is not None:
                lines.append(f"{cells.name_of(flags) or 'the grid'}: the best rate, {min(means, key=means.get):g}, is "
                             f"an end of the grid; {rate:g} follows")
                new_cells += [flags | {RATE: f"{rate:g}", "seed": str(seed)} for seed in seeds]
        return new_cells, lines


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
