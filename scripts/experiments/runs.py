"""Reads the runs that are compared, and checks that their validation losses can be compared."""

import array
import dataclasses
import functools
import itertools
import json
import math
import operator
import os

from common.run_folder import BadRun, StepLines, Unfinished, find_runs, finite, is_done, open_run, read_object

# Options, also of earlier versions, that do not define the experiment: paths, intervals of output, and what changes
# only the last digits.
IGNORED = {"seed", "out", "data", "val-data", "log-every", "memory", "plan-only", "checkpoint-every", "checkpoint-end",
           "checkpoint-sync", "checkpoint-minutes", "save-dtype", "keep-last", "keep-every", "keep-best",
           "on-save-error", "resume", "time-limit", "max-skipped", "warn-spikes", "diagnose-every", "profile-steps",
           "check-ranks", "rank-logs", "comm-timeout", "recompute", "autotune", "algorithms", "graphs", "gelu-fusion",
           "attention", "micro-batch", "steps", "tokens", "epochs"}  # the resulting number of steps is compared
# Properties of models and options that came after 0.2.0, with their value in earlier runs.
SINCE = {"dropout": 0.0}


class Diverged(BadRun):
    """A run whose validation loss is not finite, or that the engine ended because updates were skipped."""

    def __init__(self, message, run):
        super().__init__(message)
        self.run = run  # without evaluations


class Duplicate(BadRun):
    """A second run of the same experiment and seed."""


@dataclasses.dataclass
class Run:
    folder: str
    config: dict
    steps: StepLines
    evals: list      # each with "loss", in nats per token or bits per byte
    diagnoses: list
    remarks: list = dataclasses.field(default_factory=list)

    @property
    def seed(self):
        return self.config["options"]["seed"]

    @property
    def optimizer(self):
        return self.config["options"]["optimizer"]

    @property
    def loss(self):
        return self.evals[-1]["loss"]

    @functools.cached_property
    def facts(self):
        """{name: value} of everything that identifies the experiment except the seed."""
        recorded = self.config["experiment"]
        data = recorded.get("data") or {}
        facts = {k: v for k, v in recorded.items() if k not in ("options", "model", "data")}
        facts |= SINCE | (recorded.get("options") or {}) | (recorded.get("model") or {})
        facts |= {"data": data.get("train"), "val-data": data.get("val"), "tokenizer": self.tokenizer[0]}
        return {k: v for k, v in facts.items() if k in ("data", "val-data", "steps") or k not in IGNORED}

    @property
    def experiment(self):
        return json.dumps(self.facts, sort_keys=True)

    @property
    def tokenizer(self):
        """(SHA-256 of its tokens, vocabulary); None if unknown."""
        return self.config["data"].get("tokenizer"), (self.config.get("model") or {}).get("vocab_size")

    def has_other_tokenizer(self, other):
        return (self.facts["val-data"] != other.facts["val-data"]
                and any(a and b and a != b for a, b in zip(self.tokenizer, other.tokenizer)))

    def data_text(self):
        """The training data for a label: --data without parent folders."""
        items = str(self.config["options"].get("data", "")).split(",")
        return ",".join(os.path.basename(item.replace("/:", ":").rstrip("/")) for item in items)

    def seconds_at(self):
        """Seconds of training from the beginning until each step, by its number, without evaluations."""
        return array.array("d", itertools.accumulate((ms / 1000 for ms in self.steps.column("ms")), initial=0.0))


def perplexity(loss):
    return math.exp(loss) if loss < 700 else math.inf


def skipped_updates(metrics):
    """Returns the steps whose update was skipped."""
    return ({m["step"] for m in metrics.of_kind("event") if m["event"] == "update_skipped"}
            | {step for step, loss in zip(*map(metrics.of_kind("step").column, ("step", "loss")))
               if not math.isfinite(loss)})


def gave_up(config, metrics):
    """Returns whether the engine ended the run because the last --max-skipped updates were skipped."""
    limit, steps = config["options"].get("max-skipped"), metrics.of_kind("step").column("step")
    return type(limit) is int and 0 < limit <= len(steps) and skipped_updates(metrics).issuperset(steps[-limit:])


def validation_changed_after(config):
    """Returns the last step after which a resumed run got other validation data, or 0."""
    return max((c["step"] for c in config.get("changes") or [] if c["event"] == "validation_changed"), default=0)


def read_run(folder):
    """Reads the finished run in this folder. Raises Unfinished or BadRun."""
    config, metrics = open_run(folder)
    if not config.get("experiment"):
        raise BadRun(f"{folder}: does not record its experiment, as versions before 0.2 did not; run it again")
    return checked(folder, config, metrics)


def checked(folder, config, metrics):
    """Does the work of read_run() for a run that open_run() has read."""
    total = config["run"]["steps"]
    steps, evals = metrics.of_kind("step"), metrics.of_kind("eval")
    without_evals = Run(folder, config, steps, [], [])
    if gave_up(config, metrics):
        raise Diverged(f"{folder}: ended after step {steps[-1]['step']} of {total}: too many updates were skipped",
                       without_evals)
    if metrics.cut_off or not is_done(config, metrics):
        raise Unfinished(f"{folder}: unfinished: {len(steps)} of {total} steps"
                         + (", without the evaluation after them" if len(steps) == total else ""),
                         folder, [(m["step"], m["val_loss"]) for m in evals if finite(m["val_loss"])])
    if len(steps) != total or any(map(operator.ne, steps.column("step"), range(1, total + 1))):
        raise BadRun(f"{metrics.path}: its {len(steps)} steps are not the steps 1 to {total}")
    if not evals:
        raise BadRun(f"{folder}: has no validation loss; give the run --val-data")
    bad = next((m["step"] for m in evals if not finite(m["val_loss"])), None)
    if bad is not None:
        raise Diverged(f"{folder}: the validation loss of step {bad} is not finite", without_evals)
    if any(m["step"] > total or m["step"] < 1 for m in evals):
        raise BadRun(f"{metrics.path}: an evaluation at a step that the run does not have")
    if not all(all(map(math.isfinite, steps.column(key))) for key in ("ms", "tokens_per_s", "optimizer_ms")) or any(
            ms <= 0 for ms in steps.column("ms")):
        raise BadRun(f"{metrics.path}: a step without its time")
    remarks = [f"{folder}: {change['event'].replace('_', ' ')} after step {change['step']}"
               for change in config.get("changes") or []]
    skipped = skipped_updates(metrics)
    if skipped:
        remarks.append(f"{folder}: {len(skipped)} update{'s' * (len(skipped) > 1)} skipped")
    changed = validation_changed_after(config)
    evals = [m | {"loss": m["val_loss"]} for m in evals if m["step"] > changed]  # earlier ones are of other data
    if not evals:
        raise BadRun(f"{folder}: was not evaluated since its validation data changed after step {changed}")
    return Run(folder, config, steps, evals, metrics.of_kind("diagnose"), remarks)


def has_bits_per_byte(run):
    return all(finite(m.get("val_bits_per_byte")) for m in run.evals)


LARGEST_SHARE_OF_END = 0.02  # of two validation texts that count as one: tokenizers cut the last window differently


def other_text(run, first):
    """Returns how the validation texts of two runs differ, or "" if they are the same: the texts that were prepared, if
    runs are validated on all of them, or those that tokens spell (data/text_identity.h)."""
    texts = [r.config["data"].get("val_text") or {} for r in (run, first)]
    sources = [text.get("source") for text in texts]
    if sources[0] and sources[0] == sources[1]:
        return ""
    for r, text in zip((run, first), texts):
        if not text.get("bytes") or not text.get("beginnings"):
            return f"{r.folder} does not record the text that it was validated on"
    sizes = [text["bytes"] for text in texts]
    if max(sizes) - min(sizes) > LARGEST_SHARE_OF_END * max(sizes):
        return f"it was validated on {sizes[0]:,} bytes of text, {first.folder} on {sizes[1]:,}, without white space"
    ours, theirs = (text["beginnings"] for text in texts)
    common = max((size for size in ours.keys() & theirs.keys() if size.isdecimal()), key=int, default=None)
    return "" if common and ours[common] == theirs[common] else f"it was validated on other text than {first.folder}"


def check_comparable(run, first):
    """Raises BadRun if the validation losses of two runs are not comparable."""
    if run.has_other_tokenizer(first):
        for r in (run, first):
            if not has_bits_per_byte(r):
                raise BadRun(f"{run.folder}: has another tokenizer than {first.folder}, and {r.folder} was not "
                             f"evaluated in bits per byte; losses per token cannot be compared")
        if difference := other_text(run, first):
            raise BadRun(f"{run.folder}: has another tokenizer than {first.folder}, and {difference}")
    elif run.facts["val-data"] != first.facts["val-data"]:
        raise BadRun(f"{run.folder}: validated on other data than {first.folder}")
    elif run.facts.get("eval_windows") != first.facts.get("eval_windows"):
        raise BadRun(f"{run.folder}: validated on another number of windows than {first.folder}")


def is_companion(path):
    """Returns whether a glob over a sweep's folder finds this beside its runs: sweep.py's record of a cell, or
    compare.py's output."""
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "compare.md"))
    try:
        return path.endswith(".json") and bool(read_object(path, {"flags": dict}))
    except BadRun:
        return False


def read_runs(patterns):
    """Returns the usable runs in the given order, and a BadRun for each of the others. If tokenizers differ, losses are
    in bits per byte."""
    runs, faults, places = [], [], set()
    for pattern in patterns:
        folders = find_runs(pattern)
        if not folders and not is_companion(pattern):
            faults.append(BadRun(f"{pattern}: no run in it" if os.path.isdir(pattern)
                                 else f"{pattern}: no such folder"))
        for folder in folders:
            if (place := os.path.realpath(folder)) in places:
                continue
            places.add(place)
            try:
                run = read_run(folder)
                if runs:
                    check_comparable(run, runs[0])
                same = next((r for r in runs if (r.seed, r.experiment) == (run.seed, run.experiment)), None)
                if same:
                    raise Duplicate(f"{folder}: the experiment and seed {run.seed} of {same.folder}; counted once")
                runs.append(run)
            except BadRun as fault:
                faults.append(fault)
    if in_bits_per_byte(runs):
        faults += [BadRun(f"{run.folder}: was not evaluated in bits per byte, which are compared as tokenizers differ")
                   for run in runs if not has_bits_per_byte(run)]  # and has the first run's tokenizer
        runs = list(filter(has_bits_per_byte, runs))
        for run in runs:
            run.evals = [m | {"loss": m["val_bits_per_byte"]} for m in run.evals]
            if run.config["data"].get("val_bytes_of") != "source":
                run.remarks.append(f"{run.folder}: its bytes are those that the tokens spell, which may differ from "
                                   "the text's by some percent; prepare its validation data again for exact bits per "
                                   "byte")
    return runs, faults


def in_bits_per_byte(runs):
    return any(run.has_other_tokenizer(runs[0]) for run in runs)
