#!/usr/bin/env python3
"""Compares training runs:

    python3 scripts/compare.py runs/demo-*        runs, and folders that contain runs

Prints a table and writes it to --out as compare.md, with loss.png (validation loss against steps, tokens and time) and
alignment.png (the measurements of --diagnose-every) if matplotlib is installed. Runs that differ only in their seed
share a row. Each row is compared with the first one: by pairs if seeds coincide, otherwise by Welch's t test. If
tokenizers differ, bits per byte are compared instead of nats per token. Names and omits runs that are unfinished,
damaged, not finite, duplicates, or validated on other data. Exit status: 0; 1 if a run was omitted for another reason
than being unfinished or a duplicate, or if no run remains; 2 usage.
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
import textwrap

import significance
from arguments import Parser, decimal
from run_folder import BadRun, Unfinished, find_runs, is_done, open_run
from startup import printable
from written_files import replacing, target_of

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


class Diverged(BadRun):
    """A run whose validation loss is not finite, or that the engine ended because updates were skipped."""


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


def finite(x):
    return isinstance(x, (int, float)) and math.isfinite(x)


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
    if gave_up(config, metrics):
        raise Diverged(f"{folder}: ended after step {steps[-1]['step']} of {total}: too many updates were skipped")
    if metrics.cut_off or not is_done(config, metrics):
        raise Unfinished(f"{folder}: unfinished: {len(steps)} of {total} steps"
                         + (", without the evaluation after them" if len(steps) == total else ""))
    if [m["step"] for m in steps] != list(range(1, total + 1)):
        raise BadRun(f"{metrics.path}: its {len(steps)} steps are not the steps 1 to {total}")
    if not evals:
        raise BadRun(f"{folder}: has no validation loss; give the run --val-data")
    bad = next((m["step"] for m in evals if not finite(m["val_loss"])), None)
    if bad is not None:
        raise Diverged(f"{folder}: the validation loss of step {bad} is not finite")
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


def check_comparable(run, first):
    """Raises BadRun if the validation losses of two runs are not comparable."""
    if run.has_other_tokenizer(first):
        for r in (run, first):
            if not has_bits_per_byte(r):
                raise BadRun(f"{run.folder}: has another tokenizer than {first.folder}, and {r.folder} was not "
                             f"evaluated in bits per byte; losses per token cannot be compared")
    elif run.facts["val-data"] != first.facts["val-data"]:
        raise BadRun(f"{run.folder}: validated on other data than {first.folder}")
    elif run.facts.get("eval_windows") != first.facts.get("eval_windows"):
        raise BadRun(f"{run.folder}: validated on another number of windows than {first.folder}")


def read_runs(patterns):
    """Returns the usable runs in the given order, and a BadRun for each of the others. If tokenizers differ, losses are
    in bits per byte."""
    runs, faults = [], []
    for pattern in patterns:
        folders = find_runs(pattern)
        if not folders:
            faults.append(BadRun(f"{pattern}: no run in it" if os.path.isdir(pattern)
                                 else f"{pattern}: no such folder"))
        for folder in folders:
            if any(os.path.realpath(folder) == os.path.realpath(r.folder) for r in runs):
                continue
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
    return flag if value is True else f"{flag}={text_of(value)}"


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


def label_of(run, rivals):
    mine, relevant = run.facts, RELEVANT.get(run.optimizer, lambda flag: True)
    differs = {k for r in rivals for k in mine if r.facts.get(k) != mine[k]
               and (k in START | {"steps", "dtype"} or r.optimizer == run.optimizer and relevant(k))}
    if "vocab_size" in differs:
        differs -= {"tokenizer", "val-data", "eval_windows", "vocab-size"}  # vocab_size identifies the tokenizer
    settings = [setting(k, mine[k]) for k in mine if k in differs and k not in ("optimizer", "data")]
    if "data" in differs:
        text = run.data_text()
        namesakes = any(r.data_text() == text and r.facts.get("data") != mine["data"] for r in rivals)
        settings.append(f"data={text}" + (f"#{digest(mine['data'])}" if namesakes else ""))
    return printable(" ".join([run.optimizer, *filter(None, settings)]))


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


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


def short(n):
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.3g}"


def text_of_p(p):
    return "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def text_of_interval(low, high):
    return "-" if math.isnan(low) else f"{low:+.4f} to {high:+.4f}"


def text_of_test(comparison):
    return f"{comparison.n} pair{'s' * (comparison.n > 1)}" if comparison.method == "pairs" else comparison.method


def table(groups, target, bits=False):
    """Returns (header, rows). `bits`: losses are in bits per byte; perplexities, which are per token, are omitted."""
    header = ["run", "seeds", "bits/byte" if bits else "val loss", "best", *([] if bits else ["perplexity"]),
              "vs first", "95% interval", "p", "test", "steps to target", "tokens", "seconds", "tokens/s", "optimizer"]
    rows = []
    for g, against in zip(groups, comparisons(groups)):
        losses = g.values(lambda r: r.evals[-1]["loss"])
        reached = [reach(r, target) for r in g.runs]
        if all(reached):
            to_target = [statistics.mean(x) for x in zip(*reached)]
            to_target = [f"{to_target[0]:.0f}", short(to_target[1]), f"{to_target[2]:.1f}"]
        else:
            to_target = ["not reached" if not any(reached) else f"{sum(map(bool, reached))} of {len(reached)}", "-",
                         "-"]
        later = [m for r in g.runs for m in r.steps[len(r.steps) // 10:]]
        rows.append([g.label, str(len(g.runs)), mean_spread(losses),
                     mean_spread(g.values(lambda r: min(m["loss"] for m in r.evals))),
                     *([] if bits else [mean_spread([perplexity(x) for x in losses], 3)]),
                     *([f"{against.difference:+.4f}", text_of_interval(against.low, against.high),
                        text_of_p(against.p), text_of_test(against)] if against else [""] * 4), *to_target,
                     short(statistics.median(m["tokens_per_s"] for m in later)),
                     f"{100 * sum(m['optimizer_ms'] for m in later) / sum(m['ms'] for m in later):.1f}%"])
    return header, rows


def notes(groups, target, bits):
    """Returns lines that explain the table's columns, and the remarks on its runs."""
    unit = "bits per byte, as tokenizers differ" if bits else "nats per token"
    lines = [f"Validation loss in {unit}, mean ± standard deviation over seeds; target: validation loss {target:.4f}."]
    found = [c for c in comparisons(groups)[1:] if not math.isnan(c.p)]
    used = [name for method, name in (("pairs", "Student's t test on pairs of one seed"),
                                      ("Welch", "Welch's t test of independent runs, where seeds do not pair"))
            if any(c.method == method for c in found)]
    if used:
        lines.append(f"vs first: mean difference and its 95% interval, by {' or '.join(used)}; p corrected over "
                     f"{len(found)} comparison{'s' * (len(found) > 1)} (Holm).")
    sizes = sorted({r.evals[-1]["val_bytes"] for g in groups for r in g.runs if "val_bytes" in r.evals[-1]})
    if bits and len(sizes) > 1:
        lines.append(f"Runs were validated on {sizes[0]:,} to {sizes[-1]:,} bytes of text.")
    return lines + [printable(f"{remark}.") for g in groups for r in g.runs for remark in r.remarks]


def as_text(header, rows):
    """Returns the table as text that fits the terminal, or 128 characters without one, if possible. Columns that do not
    fit follow below, with the first column repeated."""
    most = shutil.get_terminal_size((128, 24)).columns
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


# ---- pictures --------------------------------------------------------------------------------------------------------


# The colour of an optimizer in all figures, and the colours of everything else.
COLORS = {"adamw": "#7f7f7f", "muon": "#1f77b4", "teon": "#d62728"}
OTHER_COLORS = ("#ff7f0e", "#2ca02c", "#9467bd", "#17becf", "#8c564b", "#e377c2", "#bcbd22", "#393b79", "#637939",
                "#e7ba52", "#843c39", "#e7969c", "#6b6ecf", "#a55194", "#8ca252", "#000000")


def colors_of(names, known):
    """Returns {name: colour}. Names in `known` have their own colour, which no other name gets."""
    free = [c for c in OTHER_COLORS if c not in known.values()]
    others = [name for name in names if name not in known]
    return {name: known.get(name) or free[others.index(name) % len(free)] for name in names}


def colors_of_groups(groups):
    """Returns {label: colour}. The first group of an optimizer has the optimizer's colour."""
    known = {}
    for g in groups:
        color = COLORS.get(g.runs[0].optimizer)
        if color and color not in known.values():
            known[g.label] = color
    return colors_of([g.label for g in groups], known)


def styles(colors):
    """Returns line styles for curves in these colours. Later curves are drawn over earlier ones and are thinner and
    broken, so that curves that coincide are all visible."""
    dashes = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
    markers = "osD^vP*X"
    widths = [1.2 + 3 * (len(colors) - 1 - i) / max(1, len(colors) - 1) for i in range(len(colors))]
    return [{"color": color, "linestyle": dashes[i % len(dashes)], "lw": width,
             "marker": markers[i % len(markers)], "ms": width + 3.5, "markerfacecolor": "white"}
            for i, (color, width) in enumerate(zip(colors, widths))]


def marked(count, most=12):
    """Returns the points of a curve that get markers: at most about `most`, including the last one."""
    return sorted({*range(0, count, math.ceil(count / most) or 1), count - 1} - {-1})


def mark_cut_off(axis):
    """Draws a triangle at the upper edge for each point above it."""
    top = axis.get_ylim()[1]
    for line in list(axis.lines):
        above = [x for x, y in zip(line.get_xdata(), line.get_ydata()) if y > top]
        if above:
            axis.plot(above, [top] * len(above), ls="", marker="^", ms=6, color=line.get_color(), clip_on=False)


def prepare_axis(axis, title, xlabel, ylabel):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.xaxis.set_major_formatter(lambda value, _: short(value))
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure, title, path, plt):
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))
    legends = [*figure.legends, *filter(None, (axis.get_legend() for axis in figure.axes))]
    texts = [figure._suptitle, *(text for axis in figure.axes for text in (axis.title, *axis.texts)),
             *(text for legend in legends for text in (*legend.get_texts(), legend.get_title()))]
    for text in texts:  # of runs and folders: a $ in a name does not begin a formula
        text.set_text(re.sub(r"(?<!\\)\$", r"\\$", text.get_text()))
    figure.tight_layout()
    figure.savefig(target_of(path), dpi=130, bbox_inches="tight", format="png")
    plt.close(figure)


def title_of(groups):
    runs = [run for g in groups for run in g.runs]
    programs = " and ".join(sorted({run.config["program"] for run in runs}))
    data = " and ".join(sorted({run.data_text() for run in runs} - {""}))
    return printable(f"{programs}{data and ' on ' + data}")


def plot_losses(groups, path, plt, unit):
    figure, axes = plt.subplots(1, 3, figsize=(16, 5))
    final = [statistics.mean(g.values(lambda r: r.evals[-1]["loss"])) for g in groups]
    low = min(m["loss"] for g in groups for r in g.runs for m in r.evals)
    high = max(m["loss"] for g in groups for r in g.runs for m in r.evals[len(r.evals) // 4:])
    colors = colors_of_groups(groups).values()
    margin = 0.05 * (high - low) or 0.01
    for axis, name in zip(axes, ("steps", "tokens", "seconds of training")):
        for g, loss, style in zip(groups, final, styles(colors)):
            for run in g.runs:
                seconds = run.seconds_at()
                x = [{"steps": m["step"], "tokens": m["tokens"]}.get(name, seconds[m["step"]]) for m in run.evals]
                label = f"{g.label}: {loss:.4f}" if run is g.runs[0] else None
                axis.plot(x, [m["loss"] for m in run.evals], alpha=0.85, label=label, markevery=marked(len(x)), **style)
        axis.set_ylim(low - margin, high + margin)
        mark_cut_off(axis)
        prepare_axis(axis, f"against {name}", name, f"validation loss, {unit}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0), fontsize=9,
                  ncols=2 if max(len(g.label) for g in groups) > 40 else 4, handlelength=5,
                  title="one curve per seed; mean of the last values over seeds; triangles: points above the figure")
    save_figure(figure, f"Validation loss of {title_of(groups)}", path, plt)


def plot_alignment(groups, path, plt):
    groups = [g for g in groups if any(run.diagnoses for run in g.runs)]
    if not groups:
        return False
    measures = (("left", "left singular vectors", "|<u, u'>|"), ("right", "right singular vectors", "|<v, v'>|"),
                ("norm_ratio", "possible gain of stacking", "nuclear norms: slices / unfolding"))
    figure, axes = plt.subplots(len(groups), 3, figsize=(15, 3.6 * len(groups)), squeeze=False)
    for row, g in zip(axes, groups):
        roles = list(dict.fromkeys(d["role"] for r in g.runs for d in r.diagnoses))
        for axis, (key, title, ylabel) in zip(row, measures):
            for role, style in zip(roles, styles(colors_of(roles, {}).values())):
                by_step = {}
                for d in (d for r in g.runs for d in r.diagnoses if d["role"] == role and finite(d[key])):
                    by_step.setdefault(d["step"], []).append(d[key])
                axis.plot(sorted(by_step), [statistics.mean(by_step[s]) for s in sorted(by_step)], label=role,
                          markevery=marked(len(by_step)), **style)
            if key != "norm_ratio":
                axis.set_ylim(0, 1)
            prepare_axis(axis, f"{g.label}\n{title}", "steps", ylabel)
        row[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9, handlelength=5, title="role")
    save_figure(figure, "Momenta of consecutive layers, mean over pairs and seeds", path, plt)
    return True


def main():
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run or of several runs, or a glob")
    parser.add_argument("--target", type=decimal(),
                        help="validation loss to reach (default: the first row's final one)")
    parser.add_argument("--out", default="compare", help="folder for compare.md and the plots (default compare)")
    args = parser.parse_args()
    runs, faults = read_runs(args.runs)
    for fault in faults:
        print(printable(f"compare.py: left out: {fault}"), file=sys.stderr)
    if not runs:
        raise BadRun("no finished run among these")
    groups = group_runs(runs)
    target = args.target
    if target is None:
        target = max(groups[0].values(lambda r: r.evals[-1]["loss"]))
    bits = in_bits_per_byte(runs)
    header, rows = table(groups, target, bits)
    note = "\n".join(notes(groups, target, bits))
    print(f"{as_text(header, rows)}\n{note}")
    os.makedirs(args.out, exist_ok=True)
    with replacing(os.path.join(args.out, "compare.md")) as file:
        file.write(as_markdown(header, rows) + f"\n\n{note}\n")
    written = ["compare.md"]
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("compare.py: no plots: matplotlib is not installed (make setup)", file=sys.stderr)
    else:
        plot_losses(groups, os.path.join(args.out, "loss.png"), plt,
                    "bits per byte" if bits else "nats per token")
        written.append("loss.png")
        if plot_alignment(groups, os.path.join(args.out, "alignment.png"), plt):
            written.append("alignment.png")
    print(f"written: {', '.join(os.path.join(args.out, name) for name in written)}")
    return int(any(not isinstance(fault, (Unfinished, Duplicate)) for fault in faults))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1}))
