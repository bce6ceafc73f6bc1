"""Runs cells and reads their results. A finished cell is not run again; an interrupted one is resumed."""
import collections
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from common.run_folder import BadRun, finite, open_run, read_object

from experiments import Fault, cells, paper
from experiments.runs import perplexity, validation_changed_after

KEPT_LOSSES = 60  # a result keeps the mean training losses of this many equal parts of a run


@functools.cache
def engine(program, *data):
    """Identifies the exact results of this program on this machine: returns a hash of the losses of three steps with
    these data flags, or "" if the program cannot run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [os.path.join(paper.ROOT, program), *data, "--model", "tiny", "--layers", "2", "--channels", "64",
                 "--heads", "2", "--seq-len", "64", "--batch-tokens", "256", "--steps", "3", "--optimizer", "teon",
                 "--seed", "1", "--eval-tokens", "64", "--out", os.path.join(folder, "probe")]
        try:
            subprocess.run(words, capture_output=True, check=True)
            steps = open_run(words[-1])[1].of_kind("step")
        except (OSError, subprocess.CalledProcessError, BadRun):
            return ""
    return hashlib.sha256(json.dumps([[m["loss"], m["grad_norm"]] for m in steps]).encode()).hexdigest()[:12]


@dataclasses.dataclass
class Result:
    """The record of a finished cell, a line of the results file."""
    cell: str             # the folder's name below the scale's
    engine: str
    options: dict
    device: str
    dtype: str
    seconds: float        # of training, without evaluations
    ms: float             # of a step, median
    optimizer_ms: float
    losses: list          # [[last step, mean training loss or None], ...] of KEPT_LOSSES equal parts
    evals: list           # [[step, validation loss], ...]
    alignment: list       # [[step, role, left, right], ...]: means over neighbouring layers, if measured
    diverged: bool = False

    @property
    def loss(self):
        return math.inf if self.diverged else self.evals[-1][1]

    @property
    def perplexity(self):
        return perplexity(self.loss)


def mean_loss(steps):
    """Returns the mean training loss of the steps with a finite loss, or None. Other steps made no update."""
    losses = [m["loss"] for m in steps if finite(m["loss"])]
    return round(statistics.mean(losses), 4) if losses else None


def result_of(name, config, metrics, engine_name, options, diverged):
    """Returns the Result of a run that has finished or diverged."""
    steps = metrics.of_kind("step")
    count, changed = len(steps), validation_changed_after(config)
    cuts = sorted({round(count * i / KEPT_LOSSES) for i in range(KEPT_LOSSES + 1)})
    measured = collections.defaultdict(list)
    for d in metrics.of_kind("diagnose"):
        if finite(d["left"]) and finite(d["right"]):
            measured[d["step"], d["role"]].append((d["left"], d["right"]))
    return Result(
        name, engine_name, options, config["device"]["name"], config["options"].get("dtype", ""),
        round(sum(m["ms"] for m in steps) / 1000, 1), round(statistics.median(m["ms"] for m in steps), 2),
        round(statistics.median(m["optimizer_ms"] for m in steps), 2),
        [[end, mean_loss(steps[begin:end])] for begin, end in zip(cuts, cuts[1:])],
        [[m["step"], m["val_loss"]] for m in metrics.of_kind("eval") if m["step"] > changed],
        [[step, role, *(round(statistics.mean(side), 4) for side in zip(*pairs))]
         for (step, role), pairs in measured.items()], diverged)


class Runs:
    """The cells of one scale. They run in folders below `out`, which can be removed afterwards, because tables and
    figures read only the results file."""

    def __init__(self, scale, out, data, results=""):
        self.scale, self.out, self.data, self.may_run = scale, os.path.join(out, scale.name), data, False
        self.path = results or os.path.join(self.out, "results.jsonl")
        self.results, self.failed = self._load(), []

    def _load(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                lines = file.read().split("\n")[:-1]  # without a line whose writing was interrupted
        except FileNotFoundError:
            return {}
        results = {}
        for i, line in enumerate(lines):
            try:
                result = Result(**json.loads(line))
            except (ValueError, TypeError):
                raise Fault(f"{self.path}:{i + 1}: not a result; remove the line to run the cell again") from None
            results[result.cell] = result
        return results

    def result(self, cell):
        """Returns the Result of a cell, or None if it has not run or has failed. Runs the cell first if may_run is
        set."""
        if cell.name not in self.results and self.may_run and cell.name not in self.failed:
            self._run(cell)
        return self.results.get(cell.name)

    def options(self, cell):
        """Returns the cell's options, converted to JSON and back."""
        shown = {"eval-every": self.scale.eval_every, "eval-tokens": self.scale.eval_tokens}
        return json.loads(json.dumps(cell.model.flags | cell.flags | shown))

    def _command(self, cell):
        words = [os.path.join(paper.ROOT, cell.program), *self.data.flags(cell.program)]
        if (cell.flags["optimizer"], cell.flags["seed"]) == ("muon", paper.TUNING_SEED) and "ortho" not in cell.flags:
            words += ["--diagnose-every", str(self.scale.diagnose_every)]  # for the alignment figure; changes no result
        return words

    def _run(self, cell):
        folder = os.path.join(self.out, cell.name)
        self.data.prepare(cell.program)
        print(f"  {cell.name}", flush=True)
        try:
            begun = self._begin(cell, folder)
            flags = {k: cells.as_flag_value(v) for k, v in begun["options"].items()}
            status = 0 if cells.is_finished(folder) else cells.run_cell(self._command(cell), flags, folder)
            if status == 2:
                raise Fault(f"{folder}: the flags are wrong (exit status 2)")
            loss = cells.loss_of(folder)
            if loss is None:
                raise BadRun(f"{folder}: exit status {status}, not finished")
            result = result_of(cell.name, *open_run(folder), begun["engine"], begun["options"], loss == math.inf)
        except BadRun as fault:
            print(f"  failed: {fault}", flush=True)
            self.failed.append(cell.name)
            return
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path, "ab+") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write((json.dumps(dataclasses.asdict(result), separators=(",", ":")) + "\n").encode())
        self.results[cell.name] = result

    def _begin(self, cell, folder):
        """Returns the engine and options with which the run in the folder began, as stored beside it. Removes an
        unfinished run that began with other ones than today's."""
        today = {"engine": self.engine(cell.program), "options": self.options(cell)}
        try:
            begun = read_object(folder + ".json", {"engine": str, "options": dict})
        except BadRun:
            begun = None
        if begun and (begun == today or cells.is_finished(folder)):
            return begun
        if os.path.exists(folder):
            with cells.locked(folder):
                shutil.rmtree(folder)
        cells.write_record(folder, today)
        return today

    def engine(self, program):
        """Identifies the current engine; "" if it is not built or its data does not exist."""
        return engine(program, *self.data.flags(program)) if os.path.exists(self.data.folder(program)) else ""

    def adamw_rate(self, program, model):
        """Returns AdamW's rate beside Muon and Teon, or None before its search has ended."""
        return model.adamw_beside or best_rate(self.search(paper.Method(program, model, {"optimizer": "adamw"})))

    def search(self, method):
        """Returns {rate: loss} of a method's rates, each with one seed and the same budget: infinite if it diverged,
        None if it has not run."""
        if method.optimizer != "adamw" and method.adamw_rate is None:
            return {}

        def loss(rate):
            result = self.result(method.cell(rate, paper.TUNING_SEED))
            return None if result is None else result.loss

        rates = [float(f"{method.model.rates[method.optimizer] * factor:.4g}") for factor in self.scale.grid]
        if len(rates) == 1:
            return {rates[0]: None}  # known
        losses = {rate: loss(rate) for rate in rates}
        for _ in range(self.scale.extend_grid):
            if (beyond := cells.next_rate(losses)) is None:
                break
            losses[beyond] = loss(beyond)
        return dict(sorted(losses.items()))


def best_rate(losses):
    """Returns the rate of {rate: loss} with the lowest loss, or None before all rates have run."""
    if len(losses) > 1 and None in losses.values():
        return None
    return min(losses, key=losses.get, default=None)


class Data:
    """The shards of a scale, which scripts/prepare.py makes on demand from FineWeb or from files of text."""

    def __init__(self, scale, folder, train=(), validation=()):
        self.scale, self.root, self.train, self.val = scale, folder, list(train), list(validation)
        self.checked = set()  # folders

    def folder(self, program):
        return os.path.join(self.root, f"{self.scale.name}-{self.scale.vocabulary[program].replace(':', '')}")

    def flags(self, program):
        return ["--data", self.folder(program), *(["--val-data", self.folder(program) + "-val"] if self.val else [])]

    def prepare(self, program):
        train, tokenizer = self.folder(program), self.scale.vocabulary[program]
        self._run(train, [*(self.train or self.scale.source), "--tokenizer", tokenizer,
                          *(["--max-tokens", str(self.scale.max_tokens)] if self.scale.max_tokens else []),
                          *(["--val-tokens", "0"] if self.val else [])])
        if self.val:
            if tokenizer.startswith("train:"):
                tokenizer = os.path.join(train, "tokenizer", "tokenizer.json")
            self._run(train + "-val", [*self.val, "--val-tokens", "100M", "--tokenizer", tokenizer])

    def _run(self, folder, words):
        """Makes the folder, or checks that a complete folder has these texts and options."""
        if folder in self.checked:
            return
        complete = os.path.exists(os.path.join(folder, "manifest.json"))
        if not complete:
            print(f"data: {folder}", flush=True)
        prepare = os.path.join(paper.ROOT, "scripts", "prepare.py")
        done = subprocess.run([sys.executable, prepare, *words, "--out", folder], capture_output=complete, text=True)
        if done.returncode and complete:
            reason = done.stderr.strip().removeprefix("prepare: error: ")
            raise Fault(f"{folder}: not the data of this command; choose another --datasets ({reason})")
        if done.returncode:
            raise Fault(f"{folder}: no data (scripts/prepare.py failed)")
        self.checked.add(folder)
