"""Groups runs of one experiment, and groups of one method at several learning rates."""

import dataclasses
import hashlib
import json
import os
import statistics

from common.run_folder import finite
from common.startup import printable

from experiments import Fault, significance

# If these and the seed are equal, two runs begin with the same weights and see the same batches: they are a pair.
START = {"program", "layers", "channels", "heads", "kv_heads", "head_size", "ffn", "mlp", "vocab_size", "context",
         "tied_head", "init_from", "data", "seq-len", "batch-tokens", "shuffle", "document-mask"}
# The shape of a model: one of these usually identifies it.
SHAPE = {"layers", "channels", "heads", "kv_heads", "head_size", "ffn", "context"}
RATE, EMBEDDING_RATE = "lr", "adamw-lr"


@dataclasses.dataclass
class Group:
    label: str
    runs: list

    @property
    def losses(self):
        """The final losses."""
        return [run.loss for run in self.runs]


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
                                                       "adamw-lr", "diagnose", "update-", "decay-at")),
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
        differs -= {"tokenizer", "val-data", "eval_windows"}  # vocab_size identifies the tokenizer
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

    @property
    def rates(self):
        return sorted({*self.groups, *self.diverged})

    @property
    def best_rate(self):
        """The rate with the lowest mean loss; one with a diverged run only if all have one."""
        return min(self.groups, key=lambda rate: (rate in self.diverged, statistics.fmean(self.groups[rate].losses)))

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
                         key=lambda g: statistics.fmean(g.losses)))
    if not fitting:
        raise Fault(f"--baseline {name}: no run of this folder, row or optimizer; the rows are "
                    f"{', '.join(g.label for g in groups)}")
    return [fitting[0], *(g for g in groups if g is not fitting[0])]


def comparisons(groups):
    """Returns each group's comparison with the first one (None for itself); p is corrected over all comparisons."""
    def losses(group):
        return {run.seed: run.loss for run in group.runs}

    def start(group):
        return {k: v for k, v in group.runs[0].facts.items() if k in START}

    first = groups[0]
    compared = [significance.compared(losses(g), losses(first), pairs=start(g) == start(first)) for g in groups[1:]]
    significance.correct(compared)
    return [None, *compared]


def reach(run, target):
    """Returns (step, tokens, seconds) at which the validation loss first reaches the target, interpolated linearly
    between evaluations, or None."""
    seconds, before = run.seconds_at(), None
    for m in run.evals:
        place = m["step"], m["tokens"], seconds[m["step"]]
        if m["loss"] <= target and before is None:
            return place
        if m["loss"] <= target:
            share = (before[0] - target) / (before[0] - m["loss"])
            return tuple(a + share * (b - a) for a, b in zip(before[1], place))
        before = m["loss"], place
    return None
