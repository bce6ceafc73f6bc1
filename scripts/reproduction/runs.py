"""Running cells and reading what they found. A finished cell is never run again; one that was cut off goes on."""
import dataclasses
import functools
import hashlib
import json
import math
import os
import statistics
import subprocess

import compare
import sweep

from reproduction import plan

# Rooms whose sources decide a run's numbers.
ENGINE = ("runtime", "cpu", "kernels", "model", "optim", "data", "train")


@functools.cache
def engine():
    """A name of the engine's numerics: the hash of its sources."""
    digest = hashlib.sha256()
    for room in ENGINE:
        for folder, _, names in sorted(os.walk(os.path.join(plan.ROOT, room))):
            for name in sorted(names):
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()[:12]


@dataclasses.dataclass
class Result:
    cell: plan.Cell
    run: compare.Run
    engine: str
    options_changed: bool

    @property
    def loss(self):
        return self.run.evals[-1]["val_loss"]

    @property
    def perplexity(self):
        return math.exp(self.loss)

    @property
    def seconds(self):
        return sum(m["ms"] for m in self.run.steps) / 1000


class Runs:
    """The cells of one scale below a folder."""

    def __init__(self, scale, out, data, run=False, say=print):
        self.scale, self.out, self.data, self.may_run, self.say = scale, os.path.join(out, scale.name), data, run, say
        self.results, self.missing, self.failed = {}, [], []

    def result(self, cell):
        """Of a finished cell; runs it first where that is asked for. None: not run, or failed."""
        if cell not in self.results:
            self.results[cell] = self._read(cell) or (self._run(cell) if self.may_run else None)
            if self.results[cell] is None and cell not in self.missing:
                self.missing.append(cell)
        return self.results[cell]

    def _read(self, cell):
        folder = cell.folder(self.out)
        try:
            run = compare.read_run(folder)
            with open(os.path.join(folder, "cell.json"), encoding="utf-8") as file:
                made = json.load(file)
        except (compare.BadRun, OSError, ValueError):
            return None
        return Result(cell, run, made.get("engine", ""), made.get("options") != self._options(cell))

    def _options(self, cell):
        """As JSON gives them back."""
        shown = {"eval-every": self.scale.eval_every, "eval-tokens": self.scale.eval_tokens}
        return json.loads(json.dumps(cell.options() | shown))

    def command(self, cell):
        words = [os.path.join(plan.ROOT, cell.program), "--data", self.data.folder(cell.program)]
        if self.data.validation(cell.program):
            words += ["--val-data", self.data.validation(cell.program)]
        flags = dict(cell.flags)
        if flags.get("optimizer") == "muon" and "ortho" not in flags and cell.seed == plan.TUNING_SEED:
            words += ["--diagnose-every", str(self.scale.diagnose_every)]  # the alignment figure; changes no number
        return words

    def _run(self, cell):
        folder = cell.folder(self.out)
        if folder in self.failed:
            return None
        self.data.prepare(cell.program)
        self.say(f"  {os.path.relpath(folder, self.out)}", flush=True)
        flags = {k: sweep.as_flag_value(v) for k, v in self._options(cell).items()}
        status = sweep.run_cell(self.command(cell), flags, folder, quiet=True)
        if status == 2:
            raise plan.Fault(f"{folder}: the flags are wrong (exit status 2)")
        if status:
            self.say(f"  failed (exit status {status}): {folder}", flush=True)
            self.failed.append(folder)
            return None
        with open(os.path.join(folder, "cell.json"), "w", encoding="utf-8") as file:
            json.dump({"engine": engine(), "options": self._options(cell)}, file, indent=1)
        return self._read(cell)

    # ---- rates ----------------------------------------------------------------------------------------------------

    def adamw_rate(self, table, model):
        if model.adamw_beside:
            return model.adamw_beside
        return self.best_rate(*plan.adamw_row(table.program), model)

    def tuning(self, table, row, model):
        """{rate: its cell} of the grid, every rate with the same budget."""
        optimizer = row.flags["optimizer"]
        beside = None if optimizer == "adamw" else self.adamw_rate(table, model)
        rates = [float(f"{model.rates[optimizer] * factor:.4g}") for factor in self.scale.grid]
        if optimizer != "adamw" and beside is None:
            return {}
        return {rate: plan.cell_of(table, row, model, rate, beside, plan.TUNING_SEED) for rate in rates}

    def best_rate(self, table, row, model):
        """The grid's rate with the lowest validation loss; None before all of them have run. A run that diverged counts
        as infinitely bad."""
        cells = self.tuning(table, row, model)
        if len(cells) == 1:
            return next(iter(cells))
        losses = {rate: self.loss(cell) for rate, cell in cells.items()}
        if not losses or None in losses.values():
            return None
        return min(losses, key=losses.get)

    def loss(self, cell):
        result = self.result(cell)
        if result is None:
            return math.inf if cell.folder(self.out) in self.failed else None
        return result.loss

    def at_edge(self, table, row, model):
        rates = list(self.tuning(table, row, model))
        return len(rates) > 1 and self.best_rate(table, row, model) in (rates[0], rates[-1])

    def equal_rate(self, table, row, model):
        """The rate at which the row is compared as the paper compares: that of the Muon beside it."""
        reference = table.row(row.against) if row.against else row
        if reference.flags["optimizer"] == "adamw":
            reference = row
        return self.best_rate(table, reference, model)

    def seeds(self, table, row, model, rate):
        """The results of a row's seeds at a rate, as far as they are there."""
        if rate is None:
            return []
        beside = None if row.flags["optimizer"] == "adamw" else self.adamw_rate(table, model)
        cells = [plan.cell_of(table, row, model, rate, beside, seed) for seed in range(1, table.seeds(self.scale) + 1)]
        return [r for r in map(self.result, cells) if r]

    def everything(self, table):
        """Looks at (and where asked, runs) all cells of a table."""
        for model in table.models_at(self.scale):
            for row in table.rows:
                for rate in {self.best_rate(table, row, model), self.equal_rate(table, row, model)}:
                    self.seeds(table, row, model, rate)

    def seconds_per_cell(self):
        known = [r.seconds for r in self.results.values() if r]
        return statistics.median(known) if known else None


class Data:
    """The shards of a scale: made on demand by scripts/prepare.py from FineWeb, or from files of text."""

    def __init__(self, scale, folder, train=(), validation=(), say=print):
        self.scale, self.root, self.train, self.val, self.say = scale, folder, list(train), list(validation), say

    def _kind(self, program):
        return self.scale.vocabulary[program].replace(":", "")

    def folder(self, program):
        return os.path.join(self.root, f"{self.scale.name}-{self._kind(program)}")

    def validation(self, program):
        return self.folder(program) + "-val" if self.val else None

    def prepare(self, program):
        train = self.folder(program)
        self._run(train, [*(self.train or self.scale.source), "--tokenizer", self.scale.vocabulary[program],
                          *(["--max-tokens", str(self.scale.max_tokens)] if self.scale.max_tokens else []),
                          *(["--val-tokens", "0"] if self.val else [])])
        if self.val:
            self._run(self.validation(program), [*self.val, "--val-tokens", "100M", "--tokenizer",
                                                 os.path.join(train, "tokenizer", "tokenizer.json")])

    def _run(self, folder, words):
        if os.path.exists(os.path.join(folder, "manifest.json")):
            return
        self.say(f"data: {folder}", flush=True)
        prepare = os.path.join(plan.ROOT, "scripts", "prepare.py")
        if subprocess.run([os.sys.executable, prepare, *words, "--out", folder]).returncode:
            raise plan.Fault(f"{folder}: no data (scripts/prepare.py failed)")
