"""Figures of runs: their style, what several of them share, and those that compare.py draws."""

import math
import re
import statistics
import textwrap

from common.run_folder import finite, short
from common.startup import printable
from common.written_files import target_of

from experiments import Fault

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


DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X<>"


def styles(colors):
    """Returns {name: line style} for curves in these colours, {name: colour}. Later curves are drawn over earlier ones
    and are thinner and broken, so that curves that coincide are all visible. Colour, dashes and marker each tell most
    curves apart."""
    widths = [1.2 + 3 * (len(colors) - 1 - i) / max(1, len(colors) - 1) for i in range(len(colors))]
    return {name: {"color": colors[name], "linestyle": DASHES[i % len(DASHES)], "lw": width,
                   "marker": MARKERS[i % len(MARKERS)], "ms": width + 3.5, "markerfacecolor": "white"}
            for i, (name, width) in enumerate(zip(colors, widths))}


def pyplot():
    """Returns matplotlib's pyplot."""
    try:
        import matplotlib
    except ImportError:
        raise Fault("figures need matplotlib; `make setup` installs it into .venv") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def marked(count, limit=12):
    """Returns the points of a curve that get markers: at most about `limit`, including the last one."""
    return sorted({*range(0, count, math.ceil(count / limit) or 1), count - 1} - {-1})


def mark_cut_off(axis):
    """Draws a triangle at the upper edge for each point above it, those of several curves beside each other."""
    import matplotlib.transforms as transforms

    top = axis.get_ylim()[1]
    for place, line in enumerate(list(axis.lines)):
        beside = transforms.ScaledTranslation(place * 7 / 72, 0, axis.figure.dpi_scale_trans)
        above = [x for x, y in zip(line.get_xdata(), line.get_ydata()) if y > top]
        if above:
            axis.plot(above, [top] * len(above), ls="", marker="^", ms=6, color=line.get_color(), clip_on=False,
                      transform=axis.transData + beside)


def prepare_axis(axis, title, xlabel, ylabel):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.xaxis.set_major_formatter(lambda value, _: short(value))
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure, title, path, legend=None):
    """Writes the figure and returns its path. `legend`: the title of a legend for all panels, below them."""
    if legend is not None:
        lines = {line.get_label(): line for axis in figure.axes for line in axis.lines if line.get_label()[0] != "_"}
        width = 0.9 + 0.08 * max(map(len, lines), default=0)  # of an entry, in inches
        figure.legend(lines.values(), lines.keys(), loc="upper center", bbox_to_anchor=(0.5, 0), fontsize=9,
                      title=legend, ncols=max(1, int(figure.get_figwidth() / width)), handlelength=5)
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))
    texts = [figure._suptitle, *(text for axis in figure.axes for text in (axis.title, *axis.texts)),
             *(text for legend in figure.legends for text in (*legend.get_texts(), legend.get_title()))]
    for text in texts:  # of runs and folders: a $ in a name does not begin a formula
        text.set_text(re.sub(r"(?<!\\)\$", r"\\$", text.get_text()))
    figure.tight_layout()
    figure.savefig(target_of(path), dpi=130, bbox_inches="tight", format="png")
    pyplot().close(figure)
    return path


def draw_panels(draw_panel, parts, title, path, legend=None, columns=2, size=(5.2, 4.2), **how):
    """Draws a figure with a panel of this size, in inches, for each part, by draw_panel(axis, part). Returns its path,
    or None without a part."""
    if not parts:
        return None
    columns = min(columns, len(parts))
    rows = math.ceil(len(parts) / columns)
    figure, axes = pyplot().subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False, **how)
    for axis, part in zip(axes.flatten(), parts):
        draw_panel(axis, part)
    return save_figure(figure, title, path, legend)


def title_of(groups):
    runs = [run for g in groups for run in g.runs]
    programs = " and ".join(sorted({run.config["program"] for run in runs}))
    data = " and ".join(sorted({run.data_text() for run in runs} - {""}))
    return printable(f"{programs}{data and ' on ' + data}")


def mean_and_deviation(values):
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 and all(map(finite, values)) else 0.0


def draw_curve(axis, points, label, style):
    """Draws {x: [values over seeds]} as their mean with a band of one standard deviation."""
    x = sorted(points)
    mean, deviation = zip(*(mean_and_deviation(points[at]) for at in x))
    axis.plot(x, mean, alpha=0.85, label=label, markevery=marked(len(x)), **style)
    if any(deviation):
        axis.fill_between(x, [m - d for m, d in zip(mean, deviation)], [m + d for m, d in zip(mean, deviation)],
                          color=style["color"], alpha=0.2, lw=0)


def losses_of(group, name):
    """Returns {x: [validation losses]} of a group's seeds, at the evaluations that all of them have."""
    steps = set.intersection(*({m["step"] for m in run.evals} for run in group.runs))
    times = [run.seconds_at() for run in group.runs]
    losses = [{m["step"]: m["loss"] for m in run.evals} for run in group.runs]
    tokens = {m["step"]: m["tokens"] for m in group.runs[0].evals}
    x = {"steps": lambda s: s, "tokens": tokens.get, "seconds of training": lambda s: statistics.fmean(
        t[s] for t in times)}[name]
    return {x(step): [loss[step] for loss in losses] for step in steps}


def tokens_per_step(groups):
    """Returns the tokens of a step if all evaluations of all groups agree on it, otherwise None."""
    ratios = {m["tokens"] / m["step"] for g in groups for r in g.runs for m in r.evals}
    return ratios.pop() if len(ratios) == 1 else None


def add_token_axis(axis, per_step):
    """Adds the tokens of the steps at the upper edge."""
    top = axis.secondary_xaxis("top", functions=(lambda x: x * per_step, lambda x: x / per_step))
    top.xaxis.set_major_formatter(lambda value, _: short(value))
    top.set_xlabel("tokens", fontsize=9)
    top.tick_params(labelsize=8)
    axis.set_title("")


def plot_losses(groups, path, bits):
    """Draws the validation loss of each group, mean and standard deviation over seeds, against steps, tokens and
    time."""
    per_step = tokens_per_step(groups)
    names = ["steps", "seconds of training"] if per_step else ["steps", "tokens", "seconds of training"]
    low = min(m["loss"] for g in groups for r in g.runs for m in r.evals)
    high = max(m["loss"] for g in groups for r in g.runs for m in r.evals[len(r.evals) // 4:])
    margin, style_of = 0.05 * (high - low) or 0.01, styles(colors_of_groups(groups))

    def draw_panel(axis, name):
        for g in groups:
            draw_curve(axis, losses_of(g, name), f"{g.label}: {statistics.fmean(g.losses):.4f}", style_of[g.label])
        axis.set_ylim(low - margin, high + margin)
        mark_cut_off(axis)
        prepare_axis(axis, "", name, f"validation loss, {'bits per byte' if bits else 'nats per token'}")
        if name == "steps" and per_step:
            add_token_axis(axis, per_step)

    several = any(len(g.runs) > 1 for g in groups)
    return draw_panels(draw_panel, names, f"Validation loss of {title_of(groups)}", path,
                       f"{'mean over seeds; band: standard deviation' if several else 'one seed'}; triangles: points "
                       "above the figure", 3, (5.5, 5))


# Values above the best one, on a scale on which a difference of the smallest and one of the largest can both be read.
EXCESS_TICKS = (0, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def draw_rates(axis, curves, title, ylabel):
    """Draws curves, (label, {rate: [values over seeds]}, style), whose values say by how much they exceed the best of
    all (per cent). The lowest point of each curve is filled."""
    ticks = set()
    for label, points, style in curves:
        rates = sorted(points)
        mean, deviation = zip(*(mean_and_deviation(points[rate]) for rate in rates))
        (line,) = axis.plot(rates, mean, label=label, **style)
        if any(deviation):
            axis.errorbar(rates, mean, yerr=deviation, fmt="none", ecolor=line.get_color(), elinewidth=1, capsize=2)
        best = min(range(len(rates)), key=mean.__getitem__)
        axis.plot(rates[best], mean[best], marker=style.get("marker", "o"), ms=style.get("ms", 5) + 3, ls="",
                  color=line.get_color(), zorder=4)
        ticks.update(rates)
    highest = max(y for line in axis.lines for y in line.get_ydata())
    axis.set_yscale("symlog", linthresh=1, linscale=1)
    axis.set_yticks(shown := [t for t in EXCESS_TICKS if t <= 1.3 * highest] or [0], [f"{t:g}%" for t in shown])
    axis.set_yticks([], minor=True)
    axis.set_ylim(-0.15, max(1, 1.3 * highest))
    axis.set_xscale("log")
    prepare_axis(axis, title, "learning rate", ylabel)
    axis.set_xticks(sorted(ticks), [f"{x:g}" for x in sorted(ticks)], rotation=45, fontsize=8)
    axis.set_xticks([], minor=True)


def plot_rates(methods, path, bits):
    """Draws each method's final loss against its learning rate, relative to the best of all, in per cent."""
    best = min(statistics.fmean(group.losses) for m in methods for group in m.groups.values())
    excess = (lambda loss: 100 * (loss / best - 1)) if bits else (lambda loss: 100 * math.expm1(min(loss - best, 500)))
    style_of, unit = styles(colors_of_groups([m.best for m in methods])), "bits per byte" if bits else "perplexity"
    curves = [(f"{m.label}: best at {m.best_rate:g}" + ("" if m.inside else ", an end of its rates"),
               {rate: list(map(excess, group.losses)) for rate, group in m.groups.items()}, style_of[m.best.label])
              for m in methods]
    return draw_panels(lambda axis, _: draw_rates(axis, curves, "", f"{unit} above the best"), [curves],
                       f"Learning rates of {title_of([m.best for m in methods])}", path,
                       "mean over seeds; bars: standard deviation; filled: best rate", size=(8, 5))


MEASURES = {"left": ("left singular vectors", "|<u, u'>|"), "right": ("right singular vectors", "|<v, v'>|"),
            "norm_ratio": ("possible gain of stacking", "nuclear norms: slices / unfolding")}


def draw_alignment(axis, measured, key, label):
    """Draws a measurement of --diagnose-every over training, a curve for each role. `measured`: [(step, role,
    value)], of which those of one step and role are averaged."""
    roles = list(dict.fromkeys(role for _, role, _ in measured))
    for role, style in styles(colors_of(roles, {})).items():
        by_step = {}
        for step, value in ((step, value) for step, of, value in measured if of == role and finite(value)):
            by_step.setdefault(step, []).append(value)
        axis.plot(sorted(by_step), [statistics.mean(by_step[s]) for s in sorted(by_step)], label=role,
                  markevery=marked(len(by_step)), **style)
    title, ylabel = MEASURES[key]
    if key != "norm_ratio":
        axis.set_ylim(0, 1)
    prepare_axis(axis, f"{label}\n{title}", "steps", ylabel)


def plot_alignment(groups, path):
    """Returns the path, or None if nothing was measured."""
    def draw_panel(axis, part):
        label, lines, key = part
        draw_alignment(axis, [(d["step"], d["role"], d[key]) for d in lines], key, label)

    measured = [(g.label, [d for r in g.runs for d in r.diagnoses]) for g in groups]
    parts = [(label, lines, key) for label, lines in measured if lines for key in MEASURES]
    return draw_panels(draw_panel, parts, "Momenta of consecutive layers, mean over pairs and seeds", path, "role", 3,
                       (5, 3.6))
