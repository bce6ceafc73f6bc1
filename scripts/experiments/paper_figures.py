"""The figures of reproduce.py, from the rows that paper_tables.measure() returns. Each function draws one and returns
its path, or None if none of its cells has run."""

import math
import os
import statistics

from common.run_folder import short

from experiments import Fault, figures, paper, significance
from experiments.paper_tables import perplexities, relative, whole
from experiments.tables import percent

# The colours of rows that occur in several tables, with this name or with ", PolarExpress" added.
COLORS = {"AdamW": figures.COLORS["adamw"], "Muon": figures.COLORS["muon"], "Teon": figures.COLORS["teon"],
          "Muon, Q K V at lr / sqrt(2)": "#17becf", "Teon, rms-match": "#ff7f0e", "Teon, mode 2": "#9467bd",
          "Muon, SVD": "#2ca02c", "Muon, Jordan": "#8c564b", "Muon, You": "#bcbd22", "Teon, Jordan": "#e377c2",
          "Teon, You": "#e7ba52"}
HEADLINE = ("AdamW", "Muon", "Teon")


def colors(table):
    """{row: colour}, the same in all figures."""
    names = {row.name: row.name.removesuffix(", PolarExpress") for row in table.rows}
    plain_colors = figures.colors_of(names.values(), COLORS)
    return {name: plain_colors[plain] for name, plain in names.items()}


def title_of(m):
    """Returns the model's family and own size, as the paper's name says another model's size at a smaller scale."""
    family = {"train_gpt2": "GPT-2", "train_llama": "LLaMA"}[m.table.program]
    try:
        return f"{family}, {short(paper.plan_of(m.table.program, m.model, m.vocabulary_size)[0])} parameters"
    except (OSError, Fault):  # the program is not built, or of another version
        return m.model.name


def by_model(measured, keep=lambda m: whole(m.best)):
    """Returns the rows to draw, a list for each model of each table."""
    models = {}
    for m in filter(keep, measured):
        models.setdefault((m.table.id, m.model.name), []).append(m)
    return list(models.values())


# ---- over training ---------------------------------------------------------------------------------------------------


def has_default_orthogonalizer(m):
    return (m.table.flags | m.row.flags).get("ortho", "polar-express") == "polar-express"


def reference(rows):
    """Returns the row to which curves show differences: Muon with PolarExpress, otherwise the first Muon; None without
    one."""
    muons = [m for m in rows if m.row.flags.get("optimizer") == "muon"]
    return next(filter(has_default_orthogonalizer, muons), muons[0] if muons else None)


def difference_of(results, others, points):
    """Returns {x: [differences in perplexity to `others`, per cent]} over pairs of one seed. `points` returns [[step,
    loss], ...] of a result."""
    rivals = {r.options["seed"]: dict(map(tuple, points(r))) for r in others}
    differences = {}
    for r in results:
        for step, loss in points(r):
            other = rivals.get(r.options["seed"], {}).get(step)
            if loss is not None and other is not None:
                differences.setdefault(step, []).append(100 * min(relative(loss - other), 1e6))
    return differences


def plot_differences(measured, path, points, what, keep=lambda m: True):
    """Draws each row's difference to Muon over training, a panel for each model."""
    def draw_panel(axis, rows):
        for m in filter(keep, rows):
            if differences := difference_of(whole(m.best), whole(reference(rows).best), points):
                figures.draw_curve(axis, differences, m.row.name, figures.styles(colors(m.table))[m.row.name])
        axis.set_yscale("symlog", linthresh=4, linscale=2)
        shown = [y for line in axis.lines for y in line.get_ydata()[len(line.get_ydata()) // 4:]]
        low, high = 1.3 * min([*shown, -1]), 1.3 * max([*shown, 1])
        ticks = [t for t in (-50, -20, -10, -5, -3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50, 100) if low <= t <= high]
        axis.set_ylim(low, high)
        axis.set_yticks(ticks, [f"{t:+d}%" if t else "0" for t in ticks])
        axis.set_yticks([], minor=True)
        figures.prepare_axis(axis, title_of(rows[0]), "steps", f"{what}, difference to Muon")

    return figures.draw_panels(draw_panel, list(filter(reference, by_model(measured))),
                       f"{measured[0].table.title}: {what}, mean and deviation over seeds", path, "")


def plot_training(measured, path):
    """The training loss of methods with PolarExpress, or Muon's orthogonalizer, at each one's best rate."""
    return plot_differences(measured, path, lambda r: r.losses, "perplexity of training",
                            lambda m: m.row is reference(measured).row or has_default_orthogonalizer(m))


def plot_validation(measured, path):
    return plot_differences(measured, path, lambda r: r.evals, "validation perplexity")


def measured_alignment(measured):
    """Returns [(row, [[step, role, left, right], ...])] of Muon's training, where it was measured."""
    muons = [m for m in map(reference, by_model(measured)) if m and has_default_orthogonalizer(m)]
    return [(m, lines) for m in muons if (lines := whole(m.best)[0].alignment)]


def plot_alignment(measured, path):
    def draw_panel(axis, part):
        side, m, lines = part
        figures.draw_alignment(axis, [(step, role, sides[side]) for step, role, *sides in lines],
                               ("left", "right")[side], title_of(m))

    parts = [(side, *part) for part in measured_alignment(measured) for side in (0, 1)]
    return figures.draw_panels(draw_panel, parts, "Alignment of the top singular vectors of momenta "
                       f"({parts and parts[0][1].row.name})", path, "role")


# ---- at the end ------------------------------------------------------------------------------------------------------


def plot_rates(measured, path):
    """Validation perplexity against learning rate, over the grid of each row, relative to the best of all."""
    def finite_losses(m):
        return {rate: loss for rate, loss in m.losses.items() if loss is not None and math.isfinite(loss)}

    def draw_panel(axis, rows):
        best = min(loss for m in rows for loss in finite_losses(m).values())
        style_of = figures.styles(colors(rows[0].table))
        figures.draw_rates(axis, [
            (m.row.name, {rate: [100 * min(relative(loss - best), 1e6)] for rate, loss in finite_losses(m).items()},
             style_of[m.row.name]) for m in rows], title_of(rows[0]), "perplexity above the best")

    return figures.draw_panels(draw_panel, by_model(measured, lambda m: len(finite_losses(m)) > 1),
                       f"{measured[0].table.title}: learning rates (one seed; filled: best)", path, "")


def plot_times(measured, path):
    """Median time of the optimizer relative to forward and backward of the same run, because other work on the machine
    slows both equally."""
    def draw_panel(axis, rows):
        shares = [statistics.median(r.optimizer_ms / (r.ms - r.optimizer_ms) for r in whole(m.best)) for m in rows]
        places = range(len(rows))
        axis.barh(places, [1] * len(rows), color="#9db8d6")
        axis.barh(places, shares, left=1, color="#2f5d8a")
        axis.set_yticks(places, [m.row.name for m in rows], fontsize=8)
        axis.set_xlim(0, 1.12 * (1 + max(shares)))
        for place, share in zip(places, shares):
            axis.text(1.02 + share, place, f"+{100 * share:.0f}%", va="center", fontsize=8)
        axis.invert_yaxis()
        figures.prepare_axis(axis, title_of(rows[0]), "time of a step: forward and backward (1), optimizer", "")

    return figures.draw_panels(draw_panel, by_model(measured), f"{measured[0].table.title}: time per step", path)


def plot_forest(measured, path):
    return plot_controls(measured, path, f"{measured[0].table.title}: difference to Muon")


def plot_controls(measured, path, title="Difference to Muon"):
    """The difference in perplexity between each row and its Muon, each at its best rate, with the 95% interval. Rows of
    one name share a line."""
    models = by_model(measured, lambda m: m.against_best.n and m.table.row(m.row.against).flags["optimizer"] == "muon")
    names = {m.row.name: colors(m.table)[m.row.name] for rows in models for m in rows}
    places = {name: place for place, name in enumerate(names)}

    def draw_panel(axis, rows):
        axis.axvline(0, color=COLORS["Muon"], lw=1.6)
        for m in rows:
            place, color, comparison = places[m.row.name], names[m.row.name], m.against_best
            low, middle, high = (100 * relative(x) for x in (comparison.low, comparison.difference, comparison.high))
            has_interval = not math.isnan(low)
            if has_interval:
                axis.plot((low, high), (place, place), color=color, lw=2.4, solid_capstyle="butt")
            axis.plot(middle, place, "o", color=color, ms=7, mfc=color if has_interval else "white")
            axis.annotate(f"{middle:+.1f}%", (middle, place), xytext=(0, 7), textcoords="offset points", ha="center",
                          fontsize=8, bbox={"fc": "white", "ec": "none", "pad": 0.6})
        seeds = sorted({m.against_best.n for m in rows})
        figures.prepare_axis(axis, f"{title_of(rows[0])}, {' to '.join(map(str, seeds))} pairs of runs",
                             "perplexity, difference to Muon in per cent", "")
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")
        axis.set_yticks(range(len(names)), names, fontsize=9)
        axis.set_ylim(len(names) - 0.4, -0.7)
        axis.margins(x=0.15)

    count = max(1, len(models))
    return figures.draw_panels(draw_panel, models, f"{title}, mean and 95% interval (left is better)", path,
                               columns=count, size=(4 + 3 / count, 1.6 + 0.42 * len(names)), sharey=True)


def plot_headline(measured, path):
    """The final perplexity of AdamW, Muon and Teon, mean and 95% interval over seeds, a panel per model."""
    parts = [rows for rows in by_model(measured, lambda m: m.row.name in HEADLINE and whole(m.best))
             if len(rows) == len(HEADLINE)]

    def draw_panel(axis, rows):
        means = []
        for place, m in enumerate(rows):
            values = perplexities(m.best)
            mean, deviation = figures.mean_and_deviation(values)
            error = deviation / math.sqrt(len(values))
            half = significance.student_t(0.05, len(values) - 1) * error if error else 0
            axis.barh(place, mean, color=COLORS[m.row.name], height=0.6, xerr=half, capsize=3)
            note = f"  {percent(relative(m.against_best.difference))} to {m.row.against}" if m.row.against else ""
            axis.text(mean + half, place, f" {mean:.1f}{note}", va="center", fontsize=9)
            means.append(mean)
        axis.set_yticks(range(len(rows)), HEADLINE)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlim(0, 1.35 * max(means))
        figures.prepare_axis(axis, title_of(rows[0]), "validation perplexity (lower is better)", "")
        axis.grid(axis="y", visible=False)

    seeds = min((len(whole(m.best)) for rows in parts for m in rows), default=0)
    return figures.draw_panels(draw_panel, parts, f"Each method at its best learning rate, {seeds} seeds", path,
                               columns=len(parts), size=(5.5, 2.6), sharey=True)


FIGURES = {"training": plot_training, "validation": plot_validation, "rates": plot_rates, "alignment": plot_alignment,
           "time": plot_times, "forest": plot_forest}


def draw(name, measured, folder):
    os.makedirs(folder, exist_ok=True)
    return FIGURES[name](measured, os.path.join(folder, f"{measured[0].table.id}-{name}.png"))
