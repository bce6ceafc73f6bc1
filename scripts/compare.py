#!/usr/bin/env python3
"""Compares training runs:

    python3 scripts/compare.py runs/demo-*        runs, and folders that hold runs

Runs that differ only in their seed are one row. Prints a table, writes it as compare.md and, where matplotlib is
installed, loss.png (validation loss against steps, tokens and time) and alignment.png (what --diagnose-every measured)
into --out. A run that is unfinished, damaged, not finite or trained on other data is named and left out. Exit status:
0; 1 where that was for another reason than being unfinished, or where nothing is left; 2 usage.
"""

import argparse
import dataclasses
import math
import os
import statistics
import sys
import textwrap

from run_folder import BadRun, Unfinished, exit_code, find_runs, is_done, open_run

# Options that do not make a run another experiment.
IGNORED = {"seed", "out", "data", "val-data", "log-every", "memory", "plan-only", "checkpoint-every", "checkpoint-sync",
           "keep-last", "keep-every", "on-save-error", "resume", "time-limit", "max-skipped", "warn-spikes",
           "diagnose-every", "profile-steps", "check-ranks", "rank-logs", "comm-timeout", "recompute", "autotune",
           "algorithms", "graphs"}


@dataclasses.dataclass
class Run:
    folder: str
    config: dict
    steps: list      # of kind "step"
    evals: list
    diagnoses: list

    @property
    def seed(self):
        return self.config["options"]["seed"]

    @property
    def experiment(self):
        return {k: v for k, v in self.config["options"].items()
                if k not in IGNORED} | {"program": self.config["program"]}

    @property
    def data(self):
        return [(os.path.basename(s["path"]), s["tokens"]) for part in ("train", "val")
                for s in self.config["data"][part]]

    def seconds_at(self):
        """Seconds of training after each step, evaluation not counted."""
        total, at = 0.0, {}
        for m in self.steps:
            total += m["ms"] / 1000
            at[m["step"]] = total
        return at


def finite(x):
    return isinstance(x, (int, float)) and math.isfinite(x)


def read_run(folder):
    """The finished run in this folder; else BadRun, or Unfinished."""
    config, metrics = open_run(folder)
    total = config["run"]["steps"]
    steps, evals = metrics.of_kind("step"), metrics.of_kind("eval")
    if metrics.cut_off or not is_done(config, metrics):
        raise Unfinished(f"{folder}: unfinished: {len(steps)} of {total} steps")
    if [m["step"] for m in steps] != list(range(1, total + 1)):
        raise BadRun(f"{metrics.path}: {len(steps)} lines of steps, which are not the steps 1 to {total}")
    bad = next((m["step"] for m in steps + evals if not finite(m.get("loss", m.get("val_loss")))), None)
    if bad is not None:
        raise BadRun(f"{folder}: the loss of step {bad} is not finite")
    if not evals:
        raise BadRun(f"{folder}: has no validation loss; give the run --val-data")
    if any(m["step"] > total or m["step"] < 1 for m in evals):
        raise BadRun(f"{metrics.path}: an evaluation at a step that the run does not have")
    if any(not finite(m[key]) for m in steps for key in ("ms", "tokens_per_s", "optimizer_ms")):
        raise BadRun(f"{metrics.path}: a step without its time")
    return Run(folder, config, steps, evals, metrics.of_kind("diagnose"))


def read_runs(patterns):
    """All good runs in the order given, and a BadRun for each other."""
    runs, faults = [], []
    for pattern in patterns:
        folders = find_runs(pattern)
        if not folders:
            faults.append(BadRun(f"{pattern}: no run in it" if os.path.isdir(pattern)
                                 else f"{pattern}: no such folder"))
        for folder in folders:
            try:
                run = read_run(folder)
                if runs and run.data != runs[0].data:
                    raise BadRun(f"{folder}: trained on other data than {runs[0].folder}")
                if runs and run.config["run"].get("eval_windows") != runs[0].config["run"].get("eval_windows"):
                    raise BadRun(f"{folder}: validated on another number of windows than {runs[0].folder}")
                if all(os.path.realpath(folder) != os.path.realpath(r.folder) for r in runs):
                    runs.append(run)
            except BadRun as fault:
                faults.append(fault)
    return runs, faults


# ---- groups ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Group:
    label: str
    runs: list

    def values(self, f):
        return [f(run) for run in self.runs]


def setting(flag, value):
    """`flag=value`, as short as it can be: flags that are off or empty go without saying."""
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
    """Runs by experiment; the label says the optimizer and whatever else differs between groups of that optimizer."""
    groups = []
    for run in runs:
        group = next((g for g in groups if g.runs[0].experiment == run.experiment), None)
        if group is None:
            groups.append(group := Group("", []))
        group.runs.append(run)
    for group in groups:
        mine = group.runs[0].experiment
        rivals = [g.runs[0].experiment for g in groups if g is not group]
        same = [r for r in rivals if r["optimizer"] == mine["optimizer"]]
        relevant = RELEVANT.get(mine["optimizer"], lambda flag: True)
        differs = {k for r in same for k in mine if r.get(k) != mine[k] and relevant(k)}
        differs |= {k for r in rivals for k in ("program", "model", "steps") if r.get(k) != mine.get(k)}
        settings = [setting(k, mine[k]) for k in mine if k in differs and k != "optimizer"]
        group.label = " ".join([mine["optimizer"], *filter(None, settings)])
    return groups


def spread(values):
    return statistics.stdev(values) if len(values) > 1 else float("nan")


def student_p(t, freedom):
    """Two-sided p value of Student's distribution."""
    # With t = sqrt(freedom) tan(x) its density is cos(x)^(freedom - 1) up to a constant: Simpson's rule on [0, pi/2].
    limit, n = math.atan(abs(t) / math.sqrt(freedom)), 2000

    def integral(to):
        h = to / n
        weights = (1 if i in (0, n) else 4 if i % 2 else 2 for i in range(n + 1))
        return h / 3 * sum(w * max(math.cos(i * h), 0.0) ** (freedom - 1) for i, w in enumerate(weights))

    return max(0.0, 1 - integral(limit) / integral(math.pi / 2))


def welch_p(a, b):
    """Two-sided p value of Welch's t test (unequal variances); nan with fewer than two values on a side."""
    if len(a) < 2 or len(b) < 2:
        return float("nan")
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    difference = statistics.mean(a) - statistics.mean(b)
    if va + vb == 0:
        return 1.0 if difference == 0 else 0.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return student_p(difference / math.sqrt(va + vb), freedom)


def paired_p(differences):
    """Two-sided p value of Student's t test of pairs, from their differences; nan with fewer than two."""
    if len(differences) < 2:
        return float("nan")
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return student_p(mean / error, len(differences) - 1)


def reach(run, target):
    """(step, tokens, seconds) at which the validation loss first is at most target, linearly between evaluations; or
    None."""
    seconds = run.seconds_at()
    before = None
    for m in run.evals:
        if m["val_loss"] <= target:
            if before is None or before["val_loss"] == m["val_loss"]:
                return m["step"], m["tokens"], seconds[m["step"]]
            share = (before["val_loss"] - target) / (before["val_loss"] - m["val_loss"])

            def mix(a, b):
                return a + share * (b - a)

            return (mix(before["step"], m["step"]), mix(before["tokens"], m["tokens"]),
                    mix(seconds[before["step"]], seconds[m["step"]]))
        before = m
    return None


# ---- the table -------------------------------------------------------------------------------------------------------


def mean_spread(values, digits=4):
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {spread(values):.{digits}f}"


def short(n):
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.3g}"


def table(groups, target):
    header = ["run", "seeds", "val loss", "best", "perplexity", "vs first", "p", "steps to target", "tokens", "seconds",
              "tokens/s",
              "optimizer"]
    rows = []
    final = [g.values(lambda r: r.evals[-1]["val_loss"]) for g in groups]
    for g, losses in zip(groups, final):
        difference, p = "", ""
        if g is not groups[0]:
            difference = f"{statistics.mean(losses) - statistics.mean(final[0]):+.4f}"
            p = welch_p(losses, final[0])
            p = "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
        reached = [reach(r, target) for r in g.runs]
        if all(reached):
            to_target = [statistics.mean(x) for x in zip(*reached)]
            to_target = [f"{to_target[0]:.0f}", short(to_target[1]), f"{to_target[2]:.1f}"]
        else:
            to_target = ["not reached" if not any(reached) else f"{sum(map(bool, reached))} of {len(reached)}", "-",
                         "-"]
        later = [m for r in g.runs for m in r.steps[len(r.steps) // 10:]]
        rows.append([g.label, str(len(g.runs)), mean_spread(losses),
                     mean_spread(g.values(lambda r: min(m["val_loss"] for m in r.evals))),
                     mean_spread([math.exp(x) for x in losses], 3), difference, p, *to_target,
                     short(statistics.median(m["tokens_per_s"] for m in later)),
                     f"{100 * sum(m['optimizer_ms'] for m in later) / sum(m['ms'] for m in later):.1f}%"])
    return header, rows


def as_text(header, rows):
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                               for i, (cell, w) in enumerate(zip(row, widths)))
                     for row in [header, *rows])


def as_markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


# ---- pictures --------------------------------------------------------------------------------------------------------


def styles(plt, count):
    """How to draw each of `count` curves, the first below the others: where they coincide, thick solid lines show
    beneath thin broken ones."""
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    dashes = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
    markers = "osD^vP*X"
    widths = [1.2 + 3 * (count - 1 - i) / max(1, count - 1) for i in range(count)]
    return [{"color": colors[i % len(colors)], "linestyle": dashes[i % len(dashes)], "lw": width,
             "marker": markers[i % len(markers)], "ms": width + 3.5, "markevery": 0.08, "markerfacecolor": "white"}
            for i, width in enumerate(widths)]


def prepare_axis(axis, title, xlabel, ylabel):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.xaxis.set_major_formatter(lambda value, _: short(value))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure, title, path, plt):
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))
    figure.tight_layout()
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def title_of(groups):
    runs = [run for g in groups for run in g.runs]
    programs = " and ".join(sorted({run.config["program"] for run in runs}))
    data = os.path.basename(os.path.dirname(runs[0].config["data"]["train"][0]["path"])) if runs[0].data else ""
    return f"{programs}{data and ' on ' + data}"


def plot_losses(groups, path, plt):
    figure, axes = plt.subplots(1, 3, figsize=(16, 5))
    final = [statistics.mean(g.values(lambda r: r.evals[-1]["val_loss"])) for g in groups]
    low = min(m["val_loss"] for g in groups for r in g.runs for m in r.evals)
    high = max(m["val_loss"] for g in groups for r in g.runs for m in r.evals[len(r.evals) // 4:])
    margin = 0.05 * (high - low) or 0.01
    for axis, name in zip(axes, ("steps", "tokens", "seconds of training")):
        for g, loss, style in zip(groups, final, styles(plt, len(groups))):
            for run in g.runs:
                seconds = run.seconds_at()
                x = [{"steps": m["step"], "tokens": m["tokens"]}.get(name, seconds[m["step"]]) for m in run.evals]
                label = f"{g.label}: {loss:.4f}" if run is g.runs[0] else None
                axis.plot(x, [m["val_loss"] for m in run.evals], alpha=0.85, label=label, **style)
        axis.set_ylim(low - margin, high + margin)
        prepare_axis(axis, f"against {name}", name, "validation loss, nats per token")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0), fontsize=9,
                  ncols=2 if max(len(g.label) for g in groups) > 40 else 4, handlelength=5,
                  title="a curve per seed; the last value's mean over seeds")
    save_figure(figure, f"Validation loss of {title_of(groups)}", path, plt)


def plot_alignment(groups, path, plt):
    groups = [g for g in groups if any(run.diagnoses for run in g.runs)]
    if not groups:
        return False
    measures = (("left", "left singular vectors", "|<u, u'>|"), ("right", "right singular vectors", "|<v, v'>|"),
                ("norm_ratio", "what stacking can gain", "nuclear norms: slices / unfolding"))
    figure, axes = plt.subplots(len(groups), 3, figsize=(15, 3.6 * len(groups)), squeeze=False)
    for row, g in zip(axes, groups):
        roles = list(dict.fromkeys(d["role"] for r in g.runs for d in r.diagnoses))
        for axis, (key, title, ylabel) in zip(row, measures):
            for role, style in zip(roles, styles(plt, len(roles))):
                by_step = {}
                for d in (d for r in g.runs for d in r.diagnoses if d["role"] == role and finite(d[key])):
                    by_step.setdefault(d["step"], []).append(d[key])
                axis.plot(sorted(by_step), [statistics.mean(by_step[s]) for s in sorted(by_step)], label=role, **style)
            if key != "norm_ratio":
                axis.set_ylim(0, 1)
            prepare_axis(axis, f"{g.label}\n{title}", "steps", ylabel)
        row[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9, handlelength=5, title="role")
    save_figure(figure, "Momenta of consecutive layers, mean over pairs and seeds", path, plt)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run or of runs, or a glob of them")
    parser.add_argument("--target", type=float, help="validation loss to reach (default: the first row's final one)")
    parser.add_argument("--out", default="compare", help="folder for compare.md and the plots (default compare)")
    args = parser.parse_args()
    runs, faults = read_runs(args.runs)
    for fault in faults:
        print(f"compare.py: left out: {fault}", file=sys.stderr)
    if not runs:
        raise BadRun("no finished run among these")
    groups = group_runs(runs)
    target = args.target
    if target is None:
        target = max(groups[0].values(lambda r: r.evals[-1]["val_loss"]))
    header, rows = table(groups, target)
    print(as_text(header, rows))
    note = (f"Validation loss in nats per token, mean ± standard deviation over seeds; p: Welch's t test against the "
            f"first row; target: validation loss {target:.4f}.")
    print(note)
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "compare.md"), "w", encoding="utf-8") as file:
        file.write(as_markdown(header, rows) + f"\n\n{note}\n")
    written = ["compare.md"]
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("compare.py: no plots: matplotlib is not installed (make setup)", file=sys.stderr)
    else:
        plot_losses(groups, os.path.join(args.out, "loss.png"), plt)
        written.append("loss.png")
        if plot_alignment(groups, os.path.join(args.out, "alignment.png"), plt):
            written.append("alignment.png")
    print(f"written: {', '.join(os.path.join(args.out, name) for name in written)}")
    return int(any(not isinstance(fault, Unfinished) for fault in faults))


if __name__ == "__main__":
    sys.exit(exit_code(main))
