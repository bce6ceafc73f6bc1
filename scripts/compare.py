#!/usr/bin/env python3
"""Compares training runs:

    python3 scripts/compare.py runs/demo-*        runs, and folders that contain runs

Prints a table and writes it to compare/ beside the runs (--out) as compare.md, with loss.png (validation loss against
steps, tokens and time) and alignment.png (the measurements of --diagnose-every) if matplotlib is installed. Runs that
differ only in their seed share a row. Each row is compared with the first one (--baseline): by pairs if seeds coincide,
otherwise by Welch's t test. If rows differ in their learning rate, a second table has each method's best rate, and
rates.png the loss against the rate. If tokenizers differ, bits per byte are compared instead of nats per token. Names
and omits runs that are unfinished, damaged, not finite, duplicates, or validated on other text. Exit status: 0; 1 if a
run was omitted for another reason than being unfinished or a duplicate, or if no run remains; 2 usage.
"""

if __name__ == "__main__":
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import sys

import pictures
import significance
from arguments import Parser, decimal
from run_folder import BadRun, Unfinished, find_runs, finite, is_done, open_run, read_object, short
from startup import printable
from written_files import replacing

# Options that do not define the experiment: paths, intervals of output, and options that change only the last digits.
IGNORED = {"seed", "out", "data", "val-data", "log-every", "memory", "plan-only", "checkpoint-every", "checkpoint-sync",
           "checkpoint-minutes", "save-dtype", "keep-last", "keep-every", "on-save-error", "resume", "time-limit",
           "max-skipped", "warn-spikes", "diagnose-every", "profile-steps", "check-ranks", "rank-logs", "comm-timeout",
           "recompute", "autotune", "algorithms", "graphs", "gelu-fusion", "attention", "micro-batch",
           "steps", "tokens", "epochs"}  # the resulting number of steps is compared
# Options of later versions, with their value in runs of earlier versions.
SINCE = {"grad-comm-dtype": "float", "matmul-dtype": "same"}
# If these and the seed are equal, two runs begin with the same weights and see the same batches: they are a pair.
START = {"program", "model", "layers", "channels", "heads", "kv_heads", "kv-heads", "head_size", "ffn", "mlp",
         "vocab_size", "vocab-size", "context", "tied_head", "init_from", "init-from", "data", "seq-len",
         "batch-tokens", "shuffle", "document-mask"}
# The shape of a model: one of these usually identifies it.
SHAPE = {"layers", "channels", "heads", "kv_heads", "kv-heads", "head_size", "ffn", "context"}
RATE, EMBEDDING_RATE = "lr", "adamw-lr"


class Diverged(BadRun):
    """A run whose validation loss is not finite, or that the engine ended because updates were skipped."""

    def __init__(self, message, run):
        super().__init__(message)
        self.run = run  # without evaluations


class Usage(Exception):
    """A wrong argument; the message is one sentence."""


class Duplicate(BadRun):
    """A second run of the same experiment and seed."""


@dataclasses.dataclass
class Run:
    folder: str
    config: dict
    steps: list      # of kind "step"
    evals: list      # each with "loss", in nats per token or bits per byte
    diagnoses: list
    remarks: list = dataclasses.field(default_factory=list)

    @property
    def seed(self):
        seed = self.config.get("seed")
        return self.config["options"]["seed"] if seed is None else seed

    @property
    def optimizer(self):
        return self.config["options"]["optimizer"]

    @functools.cached_property
    def facts(self):
        """{name: value} of everything that identifies the experiment except the seed: "experiment" of config.json, or
        its equivalent from an older version's config.json."""
        config = self.config
        if recorded := config.get("experiment"):
            facts = {k: v for k, v in recorded.items() if k not in ("options", "model", "data")}
            data = recorded.get("data") or {}
            facts |= SINCE | (recorded.get("options") or {}) | (recorded.get("model") or {})
            facts |= {"data": data.get("train"), "val-data": data.get("val"), "tokenizer": self.tokenizer[0]}
            return {k: v for k, v in facts.items() if k in ("data", "val-data", "steps") or k not in IGNORED}
        facts = {k: v for k, v in (SINCE | config["options"]).items() if k not in IGNORED}
        facts |= {k: v for k, v in (config.get("model") or {}).items() if k not in ("family", "preset")}
        weights = re.findall(r":([\d.eE+-]+)(?=,|$)", str(config["options"].get("data", "")))
        return facts | {"program": config["program"], "steps": config["run"]["steps"],
                        "eval_windows": config["run"].get("eval_windows"),
                        "dtype": (config.get("storage") or {}).get("dtype", facts.get("dtype")),
                        "data": [self._shards("train"), weights], "val-data": self._shards("val")}

    def _shards(self, part):
        return [(os.path.basename(s["path"]), s["tokens"]) for s in self.config["data"][part]]

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
        """Seconds of training until each step, without evaluations."""
        total, at = 0.0, {}
        for m in self.steps:
            total += m["ms"] / 1000
            at[m["step"]] = total
        return at


def perplexity(loss):
    return math.exp(loss) if loss < 700 else math.inf


def skipped_updates(metrics):
    """Returns the steps whose update was skipped. In logs of older versions only a loss that is not finite shows it."""
    return ({m["step"] for m in metrics.of_kind("event") if m["event"] == "update_skipped"}
            | {m["step"] for m in metrics.of_kind("step") if not finite(m["loss"])})


def gave_up(config, metrics):
    """Returns whether the engine ended the run because the last --max-skipped updates were skipped."""
    limit, steps = config["options"].get("max-skipped"), [m["step"] for m in metrics.of_kind("step")]
    return type(limit) is int and 0 < limit <= len(steps) and skipped_updates(metrics).issuperset(steps[-limit:])


def validation_changed_after(config):
    """Returns the last step after which a resumed run got other validation data, or 0."""
    return max((c["step"] for c in config.get("changes") or [] if c["event"] == "validation_changed"), default=0)


def read_run(folder):
    """Reads the finished run in this folder. Raises Unfinished or BadRun."""
    return checked(folder, *open_run(folder))


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
                         + (", without the evaluation after them" if len(steps) == total else ""))
    if [m["step"] for m in steps] != list(range(1, total + 1)):
        raise BadRun(f"{metrics.path}: its {len(steps)} steps are not the steps 1 to {total}")
    if not evals:
        raise BadRun(f"{folder}: has no validation loss; give the run --val-data")
    bad = next((m["step"] for m in evals if not finite(m["val_loss"])), None)
    if bad is not None:
        raise Diverged(f"{folder}: the validation loss of step {bad} is not finite", without_evals)
    if any(m["step"] > total or m["step"] < 1 for m in evals):
        raise BadRun(f"{metrics.path}: an evaluation at a step that the run does not have")
    if any(not finite(m[key]) for m in steps for key in ("ms", "tokens_per_s", "optimizer_ms")) or any(
            m["ms"] <= 0 for m in steps):
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
    """Returns how the validation texts of two runs differ (data/text_identity.h), or "" if they are the same."""
    texts = [r.config["data"].get("val_text") or {} for r in (run, first)]
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
        return path.endswith(".json") and bool(read_object(path, [("flags", dict)]))
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
    return runs, faults


def in_bits_per_byte(runs):
    return any(run.has_other_tokenizer(runs[0]) for run in runs)


# ---- groups ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Group:
    label: str
    runs: list

    def values(self, f):
        return [f(run) for run in self.runs]


def setting(flag, value):
    """Returns `flag=value` in short form, or "" for a flag that is off or empty."""
    if value is False or value is None or value == {} or value == []:
        return ""
    return flag if value is True else f"{flag}={shortened(text_of(value))}"


def shortened(text, most=40):
    return text if len(text) <= most else f"{text[:most // 2 - 1]}...{text[-most // 2 + 2:]}"


def text_of(value):
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{k}={text_of(v)}" for k, v in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


RELEVANT = {"adamw": lambda flag: not flag.startswith(("teon-", "ns-", "ortho", "momentum", "nesterov", "lr-scale",
                                                       "adamw-lr", "diagnose")),
            "muon": lambda flag: not flag.startswith("teon-")}


def group_runs(runs):
    """Groups runs by experiment. A group's label has its optimizer and all settings in which groups of this optimizer
    differ."""
    groups = []
    for run in runs:
        group = next((g for g in groups if g.runs[0].experiment == run.experiment), None)
        if group is None:
            groups.append(group := Group("", []))
        group.runs.append(run)
    for group in groups:
        rivals = [g.runs[0] for g in groups if g is not group]
        group.label = label_of(group.runs[0], rivals)
    for number, group in enumerate(groups):
        if any(g.label == group.label for g in groups[:number]):
            group.label += f" #{number + 1}"  # they differ in a setting that only one of them has recorded
    return groups


def implied(settings, mine, rivals):
    """Returns those of the settings that a label can omit, because the others tell the same rivals apart."""
    kept = sorted(settings)
    for name in sorted(settings, reverse=True):
        rest = [k for k in kept if k != name]
        if all(any(r.facts.get(k) != mine[k] for k in rest) for r in rivals if r.facts.get(name) != mine[name]):
            kept = rest
    return settings - set(kept)


def label_of(run, rivals, without=frozenset()):
    """Returns the run's optimizer and the settings in which it differs from its rivals, except those of `without`."""
    mine, relevant = run.facts, RELEVANT.get(run.optimizer, lambda flag: True)
    differs = {k for r in rivals for k in mine if r.facts.get(k) != mine[k]
               and (k in START | {"steps", "dtype"} or r.optimizer == run.optimizer and relevant(k))}
    if mine.get(EMBEDDING_RATE) == mine.get(RATE) and RATE in differs:
        differs.discard(EMBEDDING_RATE)  # it follows
    if "vocab_size" in differs:
        differs -= {"tokenizer", "val-data", "eval_windows", "vocab-size"}  # vocab_size identifies the tokenizer
    differs -= without | implied(differs & SHAPE, mine, rivals)
    settings = [setting(k, mine[k]) for k in mine if k in differs and k not in ("optimizer", "data")]
    if "data" in differs:
        text = run.data_text()
        namesakes = any(r.data_text() == text and r.facts.get("data") != mine["data"] for r in rivals)
        settings.append(f"data={text}" + (f"#{digest(mine['data'])}" if namesakes else ""))
    return printable(" ".join([run.optimizer, *filter(None, settings)]))


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


@dataclasses.dataclass
class Method:
    """The groups that differ only in their learning rate."""
    label: str
    groups: dict                                     # by rate
    diverged: set = dataclasses.field(default_factory=set)  # rates of which a run diverged

    def loss(self, rate):
        return statistics.fmean(self.groups[rate].values(lambda r: r.evals[-1]["loss"]))

    @property
    def rates(self):
        return sorted({*self.groups, *self.diverged})

    @property
    def best_rate(self):
        """The rate with the lowest mean loss; one with a diverged run only if all have one."""
        return min(self.groups, key=lambda rate: (rate in self.diverged, self.loss(rate)))

    @property
    def best(self):
        return self.groups[self.best_rate]

    @property
    def inside(self):
        """Whether a lower and a higher rate are worse, so that no better rate is to be expected outside."""
        return self.rates[0] < self.best_rate < self.rates[-1]


def method_facts(run):
    """What identifies a run except its rate, and the embeddings' rate if it follows."""
    facts = {k: v for k, v in run.facts.items() if k != RATE}
    if facts.get(EMBEDDING_RATE) == run.facts.get(RATE):
        facts.pop(EMBEDDING_RATE, None)
    return json.dumps(facts, sort_keys=True)


def methods_of(groups, diverged=()):
    """Returns the Methods of groups whose rate is known, in the order of the groups, if one of them has several rates;
    otherwise nothing. `diverged`: runs."""
    methods = {}
    for group in groups:
        rate = group.runs[0].facts.get(RATE)
        if not finite(rate):
            return []
        methods.setdefault(method_facts(group.runs[0]), Method("", {})).groups[rate] = group
    for run in diverged:
        if (method := methods.get(method_facts(run))) and finite(rate := run.facts.get(RATE)):
            method.diverged.add(rate)
    all_methods = list(methods.values())
    if not any(len(m.rates) > 1 for m in all_methods):
        return []
    for method in all_methods:
        rivals = [g.runs[0] for m in all_methods if m is not method for g in m.groups.values()]
        method.label = label_of(method.best.runs[0], rivals, {RATE, EMBEDDING_RATE})
    return all_methods


def with_baseline_first(groups, name):
    """Returns the groups in an order that begins with the baseline: the group of this label or of this run's folder, or
    the best one of this optimizer."""
    place = os.path.realpath(name)
    fitting = ([g for g in groups if g.label == name]
               or [g for g in groups if any(os.path.realpath(r.folder) == place for r in g.runs)]
               or sorted((g for g in groups if g.runs[0].optimizer == name),
                         key=lambda g: statistics.fmean(g.values(lambda r: r.evals[-1]["loss"]))))
    if not fitting:
        raise Usage(f"--baseline {name}: no run of this folder, row or optimizer; the rows are "
                    f"{', '.join(g.label for g in groups)}")
    return [fitting[0], *(g for g in groups if g is not fitting[0])]


def comparisons(groups):
    """Returns each group's comparison with the first one (None for itself); p is corrected over all comparisons."""
    def losses(group):
        return {run.seed: run.evals[-1]["loss"] for run in group.runs}

    def start(group):
        return {k: v for k, v in group.runs[0].facts.items() if k in START}

    first = groups[0]
    found = [significance.compared(losses(g), losses(first), pairs=start(g) == start(first)) for g in groups[1:]]
    for comparison, p in zip(found, significance.holm([c.p for c in found])):
        comparison.p = p
    return [None, *found]


def reach(run, target):
    """Returns (step, tokens, seconds) at which the validation loss first reaches the target, interpolated linearly
    between evaluations, or None."""
    seconds = run.seconds_at()
    before = None
    for m in run.evals:
        if m["loss"] <= target:
            if before is None or before["loss"] == m["loss"]:
                return m["step"], m["tokens"], seconds[m["step"]]
            share = (before["loss"] - target) / (before["loss"] - m["loss"])

            def mix(a, b):
                return a + share * (b - a)

            return (mix(before["step"], m["step"]), mix(before["tokens"], m["tokens"]),
                    mix(seconds[before["step"]], seconds[m["step"]]))
        before = m
    return None


# ---- the table -------------------------------------------------------------------------------------------------------


def mean_spread(values, digits=4):
    """Returns the mean as text, with the standard deviation if there are several values and all are finite."""
    mean = text_of_number(statistics.fmean(values), digits)
    if len(values) == 1 or not all(map(finite, values)):
        return mean
    return f"{mean} ± {text_of_number(statistics.stdev(values), digits)}"


def text_of_number(x, digits):
    """Returns the number with these digits after the point; a huge one, of a run that diverged, with few digits."""
    if math.isinf(x):
        return "over 1e304"  # a perplexity; losses in a log are finite
    return f"{x:.{digits}f}" if abs(x) < 1e7 else f"{x:.4g}"


def text_of_p(p):
    return "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def text_of_interval(low, high):
    return "-" if math.isnan(low) else f"{low:+.4f} to {high:+.4f}"


def text_of_test(comparison):
    return f"{comparison.n} pair{'s' * (comparison.n > 1)}" if comparison.method == "pairs" else comparison.method


def columns_of_comparison(groups):
    """Returns the header of the columns that compare rows with the first one, and their cells for each group. Interval,
    p and test only if a row has several seeds."""
    found = comparisons(groups)
    header = ["vs first", "95% interval", "p", "test"]
    cells = [[f"{c.difference:+.4f}", text_of_interval(c.low, c.high), text_of_p(c.p), text_of_test(c)] if c
             else [""] * 4 for c in found]
    if len(groups) == 1:
        return [], [[] for _ in groups]
    tested = any(not math.isnan(c.p) for c in found[1:])
    return (header, cells) if tested else (header[:1], [row[:1] for row in cells])


def table(groups, target, bits=False):
    """Returns (header, rows). `bits`: losses are in bits per byte; perplexities, which are per token, are omitted."""
    compared, cells_of_comparison = columns_of_comparison(groups)
    best = {id(g): mean_spread(g.values(lambda r: min(m["loss"] for m in r.evals))) for g in groups}
    shows_best = any(best[id(g)] != mean_spread(g.values(lambda r: r.evals[-1]["loss"])) for g in groups)
    header = ["run", "seeds", "bits/byte" if bits else "val loss", *["best"] * shows_best,
              *([] if bits else ["perplexity"]), *compared, "steps to target", "tokens", "seconds", "tokens/s",
              "optimizer"]
    rows = []
    for g, cells in zip(groups, cells_of_comparison):
        losses = g.values(lambda r: r.evals[-1]["loss"])
        reached = [reach(r, target) for r in g.runs]
        if all(reached):
            to_target = [statistics.mean(x) for x in zip(*reached)]
            to_target = [f"{to_target[0]:.0f}", short(to_target[1]), f"{to_target[2]:.1f}"]
        else:
            to_target = ["not reached" if not any(reached) else f"{sum(map(bool, reached))} of {len(reached)}", "-",
                         "-"]
        later = [m for r in g.runs for m in r.steps[len(r.steps) // 10:]]
        rows.append([g.label, str(len(g.runs)), mean_spread(losses), *[best[id(g)]] * shows_best,
                     *([] if bits else [mean_spread([perplexity(x) for x in losses], 3)]), *cells, *to_target,
                     short(statistics.median(m["tokens_per_s"] for m in later)),
                     f"{100 * sum(m['optimizer_ms'] for m in later) / sum(m['ms'] for m in later):.1f}%"])
    return header, rows


def table_of_methods(methods, bits=False):
    """Returns (header, rows) of each method's best rate."""
    compared, cells_of_comparison = columns_of_comparison([m.best for m in methods])
    header = ["method", "rates", "best rate", "lies inside", "seeds", "bits/byte" if bits else "val loss", *compared]
    rows = []
    for m, cells in zip(methods, cells_of_comparison):
        end = "lowest" if m.best_rate == m.rates[0] else "highest"
        rows.append([m.label, f"{m.rates[0]:g} to {m.rates[-1]:g} ({len(m.rates)})" if len(m.rates) > 1 else "1",
                     f"{m.best_rate:g}", "yes" if m.inside else f"no: the {end}" if len(m.rates) > 1 else "-",
                     str(len(m.best.runs)), mean_spread(m.best.values(lambda r: r.evals[-1]["loss"])), *cells])
    return header, rows


def notes_of_methods(methods):
    lines = ["Each method at its best learning rate, the one with the lowest mean validation loss."]
    if diverged := [f"{m.label} at {', '.join(f'{r:g}' for r in sorted(m.diverged))}" for m in methods if m.diverged]:
        lines.append(f"Diverged: {'; '.join(diverged)}.")
    if ends := [m for m in methods if len(m.rates) > 1 and not m.inside]:
        lines.append(f"The best rate of {', '.join(m.label for m in ends)} is an end of its rates; a better one may "
                     f"lie beyond (sweep.py --extend-grid).")
    return list(map(printable, lines))


def notes(groups, target, bits):
    """Returns lines that explain the table's columns, and the remarks on its runs."""
    unit = "bits per byte, as tokenizers differ" if bits else "nats per token"
    lines = [f"Validation loss in {unit}, mean ± standard deviation over seeds; target: validation loss {target:.4f}.",
             "best: lowest loss of all evaluations, if another than the last; tokens, seconds: until the target; "
             "optimizer: its share of a step's time."]
    found = [c for c in comparisons(groups)[1:] if not math.isnan(c.p)]
    used = [name for method, name in (("pairs", "Student's t test on pairs of one seed"),
                                      ("Welch", "Welch's t test of independent runs, where seeds do not pair"))
            if any(c.method == method for c in found)]
    if used:
        lines.append(f"vs first: mean difference and its 95% interval, by {' or '.join(used)}; p corrected over "
                     f"{len(found)} comparison{'s' * (len(found) > 1)} (Holm).")
    sizes = sorted({r.evals[-1]["val_bytes"] for g in groups for r in g.runs if "val_bytes" in r.evals[-1]})
    if bits and len(sizes) > 1:
        lines.append(f"Runs were validated on {sizes[0]:,} to {sizes[-1]:,} bytes of the same text.")
    return lines + [printable(f"{remark}.") for g in groups for r in g.runs for remark in r.remarks]


def as_text(header, rows):
    """Returns the table as text that fits the terminal, or 100 characters without one, if possible. Columns that do not
    fit follow below, with the first column repeated."""
    most = shutil.get_terminal_size((100, 24)).columns
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    parts = [[0]]
    for i in range(1, len(header)):
        if len(parts[-1]) > 1 and sum(widths[j] + 2 for j in parts[-1]) + widths[i] > most:
            parts.append([0])
        parts[-1].append(i)
    return "\n\n".join("\n".join("  ".join(row[i].rjust(widths[i]) if i else row[i].ljust(widths[i]) for i in part)
                                 for row in [header, *rows])
                       for part in parts)


def as_markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])


def default_out(runs):
    """Returns the folder beside the runs for compare.py's output: compare/ in the deepest folder that has all runs."""
    top = os.path.commonpath([os.path.dirname(os.path.abspath(run.folder)) for run in runs])
    if top == os.path.sep:
        return "compare"
    relative = os.path.relpath(top)
    return os.path.normpath(os.path.join(top if relative.startswith("..") else relative, "compare"))


def pyplot():
    """Returns matplotlib's pyplot, or None after a line that it is missing."""
    try:
        import matplotlib
    except ImportError:
        print("compare.py: no plots: matplotlib is not installed (make setup)", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw(groups, methods, out, bits):
    """Draws all figures and returns their names. After a sweep, curves are those of each method's best rate."""
    plt = pyplot()
    if not plt:
        return []
    groups = [m.best for m in methods] or groups
    pictures.plot_losses(groups, os.path.join(out, "loss.png"), plt, "bits per byte" if bits else "nats per token")
    drawn = ["loss.png"]
    if methods:
        pictures.plot_rates(methods, os.path.join(out, "rates.png"), plt, bits)
        drawn.append("rates.png")
    if pictures.plot_alignment(groups, os.path.join(out, "alignment.png"), plt):
        drawn.append("alignment.png")
    return drawn


def main():
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run or of several runs, or a glob")
    parser.add_argument("--baseline", metavar="ROW",
                        help="compare with this row instead of the first one: an optimizer (its best row), a row's "
                             "name or the folder of a run")
    parser.add_argument("--target", type=decimal(),
                        help="validation loss to reach (default: the first row's final one)")
    parser.add_argument("--out", help="folder for compare.md and the plots (default: compare/ beside the runs)")
    args = parser.parse_args()
    runs, faults = read_runs(args.runs)
    for fault in faults:
        print(printable(f"compare.py: left out: {fault}"), file=sys.stderr)
    if not runs:
        raise BadRun("no finished run among these")
    groups = group_runs(runs)
    if args.baseline is not None:
        groups = with_baseline_first(groups, args.baseline)
    target = args.target
    if target is None:
        target = max(groups[0].values(lambda r: r.evals[-1]["loss"]))
    bits = in_bits_per_byte(runs)
    methods = methods_of(groups, [fault.run for fault in faults if isinstance(fault, Diverged)])
    parts = [(*table(groups, target, bits), notes(groups, target, bits))]
    if methods:
        parts.append((*table_of_methods(methods, bits), notes_of_methods(methods)))
    print("\n\n".join("\n".join([as_text(header, rows), *lines]) for header, rows, lines in parts))
    out = default_out(runs) if args.out is None else args.out
    os.makedirs(out, exist_ok=True)
    with replacing(os.path.join(out, "compare.md")) as file:
        file.write("\n".join("\n\n".join([as_markdown(header, rows), "\n".join(lines) + "\n"])
                             for header, rows, lines in parts))
    written = ["compare.md", *draw(groups, methods, out, bits)]
    print(f"written: {', '.join(os.path.join(out, name) for name in written)}")
    return int(any(not isinstance(fault, (Unfinished, Duplicate)) for fault in faults))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1, Usage: 2}))
