"""Reads and checks a run's folder: config.json, and metrics.jsonl while it grows.

A fault in a file raises BadRun, whose message is one sentence with the file and the fault.
"""

import array
import collections.abc
import glob
import json
import math
import os
import re
import statistics

NUMBER = (int, float, type(None))  # NaN and infinity are null in the file
LARGEST = 3.5e38  # limit for the engine's floats, so that their sums and means stay finite
# The fields that scripts use, by kind of line; those with ? may be missing. Lines may have other fields and kinds, and
# "time", in seconds since 1970.
FIELDS = {
    "step": {"tokens": (int,), "loss": NUMBER, "lr": NUMBER, "ms": NUMBER, "tokens_per_s": NUMBER,
             "optimizer_ms": NUMBER, "grad_norm?": NUMBER},
    "eval": {"tokens": (int,), "val_loss": NUMBER, "val_ppl": NUMBER, "val_bytes?": (int,),
             "val_bits_per_byte?": NUMBER},
    "diagnose": {"role": (str,), "layers": (list,), "left": NUMBER, "right": NUMBER, "norm_ratio": NUMBER},
    "event": {"event": (str,), "reason": (str,)},
}
CONFIG = {"program": str, "run.steps": int, "options.optimizer": str, "options.seed": int, "data.train": list,
          "data.val": list, "experiment?": dict, "experiment.options?": dict, "experiment.data?": dict,
          "experiment.model?": dict, "model?": dict, "model.vocab_size?": int, "changes?": list,
          "data.tokenizer?": str, "data.val_text?": dict, "data.val_text.bytes?": int,
          "data.val_text.beginnings?": dict, "data.val_text.source?": str}

KINDS = {str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


class BadRun(Exception):
    """A run, or one of its files, that cannot be used; the message is one sentence."""


class Unfinished(BadRun):
    """A run without faults that has not finished. `curve`: its validation losses so far, [(step, loss)]."""

    def __init__(self, message, folder="", curve=()):
        super().__init__(message)
        self.folder, self.curve = folder, list(curve)


def read_text(path):
    if not os.path.isfile(path):  # reading a pipe or a device may never end
        raise BadRun(f"{path}: {'not a file' if os.path.lexists(path) else 'missing'}")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise BadRun(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadRun(f"{path}: not UTF-8 text") from None


def whole_number(text):
    """Converts text to an integer of 64 bits, the engine's largest."""
    value = int(text)
    if not -2**63 <= value < 2**63:
        raise ValueError("out of range")
    return value


def finite_number(text):
    """Converts text to a finite double; NaN, Infinity and larger numbers are not JSON."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def parse_object(text, where):
    """Parses `text` as a JSON object with finite numbers, 64-bit integers and valid Unicode. Messages begin with
    `where`."""
    try:
        value = json.loads(text, parse_int=whole_number, parse_float=finite_number, parse_constant=finite_number)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is an error
    except (ValueError, RecursionError):  # RecursionError: nested too deep
        raise BadRun(f"{where}: not JSON") from None
    if not isinstance(value, dict):
        raise BadRun(f"{where}: not a JSON object")
    return value


def read_object(path, fields):
    """Reads the JSON object in a file. Checks the types of its `fields`, whose names are paths such as "run.steps"; one
    that ends with ? may be missing or null."""
    found = parse_object(read_text(path), path)
    for name, kind in fields.items():
        value = found
        for key in name.removesuffix("?").split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None and name.endswith("?"):
            continue
        if type(value) not in ((int, float) if kind is float else (kind,)):
            found_text = "nothing" if value is None else json.dumps(value)[:40]
            raise BadRun(f"{path}: \"{name.removesuffix('?')}\" must be {KINDS[kind]}, found {found_text}")
    return found


def read_config(run):
    path = os.path.join(run, "config.json")
    config = read_object(path, CONFIG)
    for shard in config["data"]["train"] + config["data"]["val"]:
        if not isinstance(shard, dict) or type(shard.get("path")) is not str or type(shard.get("tokens")) is not int:
            raise BadRun(f"{path}: a shard in \"data\" lacks its path or its tokens")
    for change in config.get("changes") or []:
        if not isinstance(change, dict) or type(change.get("step")) is not int or type(change.get("event")) is not str:
            raise BadRun(f"{path}: a change in \"changes\" lacks its step or its event")
    return config


def check_line(line, where):
    if type(line.get("kind")) is not str or type(line.get("step")) is not int:
        raise BadRun(f"{where}: lacks \"kind\" or \"step\"")
    if type(line.get("time", 0)) not in (int, float):
        raise BadRun(f"{where}: \"time\" is not a number")
    for name, types in FIELDS.get(line["kind"], {}).items():
        field = name.removesuffix("?")
        if field not in line and field != name:
            continue
        if type(line.get(field, ...)) not in types:
            raise BadRun(f"{where}: \"{field}\" is missing or of another type")
        if types is NUMBER and field != "val_ppl" and abs(line[field] or 0) > LARGEST:
            raise BadRun(f"{where}: \"{field}\" is out of range")
    return line


class StepLines(collections.abc.Sequence):
    """Lines of kind "step" with the fields in FIELDS, as columns of 8 bytes a number: a run may have millions. A field
    that a line lacks is None, as null is."""

    def __init__(self, columns=None):
        fields = {"step": (int,)} | FIELDS["step"]
        self.columns = columns or {
            field.removesuffix("?"): array.array("q" if types == (int,) else "d") for field, types in fields.items()}

    def append(self, line):
        for field, column in self.columns.items():
            value = line.get(field)
            column.append(math.nan if value is None else value)

    def __len__(self):
        return len(self.columns["step"])

    def __getitem__(self, place):
        if isinstance(place, slice):
            return StepLines({field: column[place] for field, column in self.columns.items()})
        values = {field: column[place] for field, column in self.columns.items()}
        return {"kind": "step"} | {field: None if value != value else value for field, value in values.items()}

    def column(self, field):
        """Returns the array of a field's values, with NaN for null."""
        return self.columns[field]


class Metrics:
    """The lines of a run's metrics.jsonl. update() reads the complete lines appended since the last call, or the whole
    file again after a resumed run has cut off the lines behind its checkpoint."""

    def __init__(self, run):
        self.path = os.path.join(run, "metrics.jsonl")
        self.forget()
        self.update()

    def forget(self):
        self.position, self.last, self.count = 0, b"", 0
        self.lines = {"step": StepLines()}  # by kind
        self.cut_off = False  # the last line has no end yet

    def keep(self, line):
        self.lines.setdefault(line["kind"], []).append(line)

    def update(self):
        if not os.path.isfile(self.path):
            raise BadRun(f"{self.path}: missing")
        try:
            with open(self.path, "rb") as file:
                file.seek(self.position - len(self.last))
                if file.read(len(self.last)) != self.last:
                    self.forget()
                    file.seek(0)
                self._read_lines(file)
        except OSError as error:
            raise BadRun(f"{self.path}: {error.strerror}") from None

    def _read_lines(self, file):
        self.cut_off = False
        for text in file:
            if not text.endswith(b"\n"):
                self.cut_off = True
                break
            where = f"{self.path}: line {self.count + 1}"
            self.keep(check_line(parse_object(text.decode(errors="replace"), where), where))
            self.position, self.last, self.count = self.position + len(text), text, self.count + 1

    def of_kind(self, kind):
        return self.lines.get(kind, [])


def is_done(config, metrics):
    """Returns whether the last step and the evaluation after it are in the log."""
    total = config["run"]["steps"]
    steps, evals = metrics.of_kind("step"), metrics.of_kind("eval")
    return (bool(steps) and steps[-1]["step"] >= total
            and (not config["data"]["val"] or bool(evals) and evals[-1]["step"] >= total))


def recent(steps, field):
    """Returns the median of a field over the last steps, or None without a value."""
    values = [value for value in steps.column(field)[-50:] if math.isfinite(value)]
    return statistics.median(values) if values else None


def open_run(run):
    return read_config(run), Metrics(run)


def visible(names):
    """Returns the names, sorted, without those of hidden files and folders."""
    return sorted(name for name in names if not name.startswith("."))


def find_runs(pattern):
    """Returns the folders of runs for a path or glob, sorted: each matching folder that is a run, or the runs in it.
    Follows links, and enters each folder once, but none that is hidden."""
    found, entered = [], set()
    for top in [pattern] if os.path.isdir(pattern) else sorted(filter(os.path.isdir, glob.glob(pattern))):
        for folder, below, files in os.walk(top, followlinks=True):
            if (place := os.path.realpath(folder)) in entered:
                below.clear()
                continue
            entered.add(place)
            if "metrics.jsonl" in files or folder == top and "config.json" in files:
                found.append(folder)
                below.clear()
            below[:] = visible(below)
    return found


def find_checkpoint(folder):
    """Returns the folder itself if it is a checkpoint, otherwise the newest checkpoint of the run."""
    if os.path.isfile(os.path.join(folder, "trainer.json")):
        return str(folder)
    found = [path for path in glob.glob(os.path.join(glob.escape(str(folder)), "step_*"))
             if re.fullmatch(r"step_\d{8,}", os.path.basename(path))]
    if not found:
        raise BadRun(f"{folder}: no checkpoint, and no run with one")
    return max(found, key=lambda path: int(path.rpartition("_")[2]))


def finite(x):
    return isinstance(x, (int, float)) and math.isfinite(x)


def short(n):
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.3g}"
