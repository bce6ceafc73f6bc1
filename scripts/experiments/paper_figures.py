"""The figures of reproduce.py, from the results of a scale. Each function draws one and returns its path, or None if
none of its cells has run."""

import math
import os
import statistics

from run_folder import short

from experiments import figures, paper_tables, significance
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


def styles(table):
    return dict(zip(colors(table), figures.styles(colors(table).values())))


def parameters_of(table, scale, model):
    """Returns the number of parameters of a model whose flags state its size, otherwise None."""
    f = model.flags
    if not {"layers", "channels", "seq-len"} <= f.keys():
        return None
    size, channels, layers = scale.vocabulary_size(table.program), f["channels"], f["layers"]
    if table.program == "train_gpt2":
        ffn = f.get("ffn", 4 * channels)
        block = 4 * channels**2 + 2 * channels * ffn + 4 * channels + channels + ffn + 4 * channels
        return size * channels + f["seq-len"] * channels + layers * block + 2 * channels
    if "ffn" not in f:
        return None
    return 2 * size * channels + layers * (4 * channels**2 + 3 * channels * f["ffn"] + 2 * channels) + channels


def title_of(table, scale, model):
    """Returns the model's family and own size, as the paper's name says another model's size at a smaller scale."""
    parameters = parameters_of(table, scale, model)
    family = {"train_gpt2": "GPT-2", "train_llama": "LLaMA"}[table.program]
    return f"{family}, {short(parameters)} parameters" if parameters else model.name


def best_of(table, runs, model, rows):
    """Returns {row: results at its best rate that did not diverge}, without rows that have none."""
    results = {row.name: paper_tables.whole(runs.seeds(table, row, model, runs.best_rate(table, row, model)))
               for row in rows}
    return {name: seeds for name, seeds in results.items() if seeds}


def panels(items, width=5.2, height=4.2):
    """Returns a figure and pairs of an axis and an item, two in a row."""
    figure, axes = figures.panels_of(len(items), 2, width, height)
    return figure, list(zip(axes, items))


# ---- over training ---------------------------------------------------------------------------------------------------


def has_default_orthogonalizer(table, row):
    return (table.flags | row.flags).get("ortho", "polar-express") == "polar-express"


def reference(table):
    """Returns the row to which curves show differences: Muon with PolarExpress, otherwise the first Muon; None without
    one."""
    muons = [row for row in table.rows if row.flags.get("optimizer") == "muon"]
    return next((row for row in muons if has_default_orthogonalizer(table, row)), muons[0] if muons else None)


def difference_of(results, others, points):
    """Returns {x: [differences in perplexity to `others`, per cent]} over pairs of one seed. `points` returns [[step,
    loss], ...] of a result."""
    rivals = {r.options["seed"]: dict(map(tuple, points(r))) for r in others}
    differences = {}
    for r in results:
        for step, loss in points(r):
            other = rivals.get(r.options["seed"], {}).get(step)
            if loss is not None and other is not None:
                differences.setdefault(step, []).append(100 * min(paper_tables.relative(loss - other), 1e6))
    return differences


def plot_differences(table, runs, path, rows, points, what):
    """Draws each row's difference to Muon over training, a panel for each model."""
    muon = reference(table)
    models = [m for m in table.models_at(runs.scale) if muon and best_of(table, runs, m, [muon])]
    if not models:
        return None
    figure, parts = panels(models)
    for axis, model in parts:
        seeds_of = best_of(table, runs, model, rows)
        for name, results in seeds_of.items():
            if points_of := difference_of(results, seeds_of[muon.name], points):
                figures.draw_curve(axis, points_of, name, styles(table)[name])
        axis.set_yscale("symlog", linthresh=4, linscale=2)
        shown = [y for line in axis.lines for y in line.get_ydata()[len(line.get_ydata()) // 4:]]
        low, high = 1.3 * min([*shown, -1]), 1.3 * max([*shown, 1])
        ticks = [t for t in (-50, -20, -10, -5, -3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50, 100) if low <= t <= high]
        axis.set_ylim(low, high)
        axis.set_yticks(ticks, [f"{t:+d}%" if t else "0" for t in ticks])
        axis.set_yticks([], minor=True)
        figures.prepare_axis(axis, title_of(table, runs.scale, model), "steps", f"{what}, difference to Muon")
    figures.legend_below(figure, [axis for axis, _ in parts])
    return figures.save_figure(figure, f"{table.title}: {what}, mean and deviation over seeds", path)


def plot_training(table, runs, path):
    """The training loss of methods with PolarExpress, or Muon's orthogonalizer, at each one's best rate."""
    rows = [row for row in table.rows if row is reference(table) or has_default_orthogonalizer(table, row)]
    return plot_differences(table, runs, path, rows, lambda r: r.losses, "perplexity of training")


def plot_validation(table, runs, path):
    return plot_differences(table, runs, path, table.rows, lambda r: r.evals, "validation perplexity")


def measured_alignment(table, runs):
    """Returns [(model, [[step, role, left, right], ...])] of Muon's training, where it was measured."""
    muon = reference(table)
    if muon is None or not has_default_orthogonalizer(table, muon):
        return []
    models = [(model, best_of(table, runs, model, [muon]).get(muon.name)) for model in table.models_at(runs.scale)]
    return [(model, results[0].alignment) for model, results in models if results and results[0].alignment]


def plot_alignment(table, runs, path):
    measured = measured_alignment(table, runs)
    if not measured:
        return None
    figure, parts = panels([(*of_model, side) for of_model in measured for side in (0, 1)])
    for axis, (model, lines, side) in parts:
        figures.draw_alignment(axis, [(step, role, sides[side]) for step, role, *sides in lines],
                               ("left", "right")[side], title_of(table, runs.scale, model))
    figures.legend_below(figure, [axis for axis, _ in parts], "role")
    return figures.save_figure(figure, f"Alignment of the top singular vectors of momenta ({reference(table).name})",
                               path)


# ---- at the end ------------------------------------------------------------------------------------------------------


def losses_by_rate(table, runs, model):
    """Returns {row: {rate: loss}} of the rows with several finite losses on their grid."""
    losses = {row.name: {rate: loss for rate, cell in runs.tuning(table, row, model).items()
                         if (loss := runs.loss(cell)) is not None and math.isfinite(loss)} for row in table.rows}
    return {name: points for name, points in losses.items() if len(points) > 1}


def plot_rates(table, runs, path):
    """Validation perplexity against learning rate, over the grid of each row, relative to the best of all."""
    models = [(m, losses) for m in table.models_at(runs.scale) if (losses := losses_by_rate(table, runs, m))]
    if not models:
        return None
    figure, parts = panels(models)
    for axis, (model, losses) in parts:
        best = min(min(points.values()) for points in losses.values())
        figures.draw_rates(axis, [
            (name, {rate: [100 * min(paper_tables.relative(loss - best), 1e6)] for rate, loss in points.items()},
             styles(table)[name]) for name, points in losses.items()],
            title_of(table, runs.scale, model), "perplexity above the best")
    figures.legend_below(figure, [axis for axis, _ in parts])
    return figures.save_figure(figure, f"{table.title}: learning rates (one seed; filled: best)", path)


def plot_times(table, runs, path):
    """Median time of the optimizer relative to forward and backward of the same run, because other work on the machine
    slows both equally."""
    models = [(m, rows) for m in table.models_at(runs.scale) if (rows := best_of(table, runs, m, table.rows))]
    if not models:
        return None
    figure, parts = panels(models)
    for axis, (model, rows) in parts:
        shares = [statistics.median(r.optimizer_ms / (r.ms - r.optimizer_ms) for r in results)
                  for results in rows.values()]
        places = range(len(rows))
        axis.barh(places, [1] * len(rows), color="#9db8d6")
        axis.barh(places, shares, left=1, color="#2f5d8a")
        axis.set_yticks(places, list(rows), fontsize=8)
        axis.set_xlim(0, 1.12 * (1 + max(shares)))
        for place, share in zip(places, shares):
            axis.text(1.02 + share, place, f"+{100 * share:.0f}%", va="center", fontsize=8)
        axis.invert_yaxis()
        figures.prepare_axis(axis, title_of(table, runs.scale, model),
                             "time of a step: forward and backward (1), optimizer", "")
    return figures.save_figure(figure, f"{table.title}: time per step", path)


def plot_forest(table, runs, path):
    return plot_controls([table], runs, path, f"{table.title}: difference to Muon")


def plot_controls(all_tables, runs, path, title="Difference to Muon"):
    """The difference in perplexity between each row and its Muon, each at its best rate, with the 95% interval. Rows of
    one name share a line."""
    models, names = {}, {}
    for table in all_tables:
        for m in paper_tables.measure(table, runs):
            if m.row.against and table.row(m.row.against).flags["optimizer"] == "muon" and m.against_best.n:
                models.setdefault(title_of(table, runs.scale, m.model), []).append(m)
                names.setdefault(m.row.name, colors(table)[m.row.name])
    if not models:
        return None
    places = {name: place for place, name in enumerate(names)}
    figure, axes = figures.pyplot().subplots(1, len(models), squeeze=False, sharey=True,
                                             figsize=(3 + 4 * len(models), 1.6 + 0.42 * len(names)))
    for axis, (model, rows) in zip(axes[0], models.items()):
        axis.axvline(0, color=COLORS["Muon"], lw=1.6)
        for m in rows:
            place, color, comparison = places[m.row.name], names[m.row.name], m.against_best
            low, middle, high = (100 * paper_tables.relative(x) for x in (comparison.low, comparison.difference,
                                                                          comparison.high))
            has_interval = not math.isnan(low)
            if has_interval:
                axis.plot((low, high), (place, place), color=color, lw=2.4, solid_capstyle="butt")
            axis.plot(middle, place, "o", color=color, ms=7, mfc=color if has_interval else "white")
            axis.annotate(f"{middle:+.1f}%", (middle, place), xytext=(0, 7), textcoords="offset points", ha="center",
                          fontsize=8, bbox={"fc": "white", "ec": "none", "pad": 0.6})
        seeds = sorted({m.against_best.n for m in rows})
        figures.prepare_axis(axis, f"{model}, {' to '.join(map(str, seeds))} pairs of runs",
                             "perplexity, difference to Muon in per cent", "")
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")
        axis.set_yticks(range(len(names)), names, fontsize=9)
        axis.set_ylim(len(names) - 0.4, -0.7)
        axis.margins(x=0.15)
    return figures.save_figure(figure, f"{title}, mean and 95% interval (left is better)", path)


def plot_headline(controls, runs, path):
    """The final perplexity of AdamW, Muon and Teon, mean and 95% interval over seeds, a panel per table of controls."""
    rows_of = [(table, model, {m.row.name: m for m in paper_tables.measure(table, runs) if m.model is model})
               for table in controls for model in table.models_at(runs.scale)]
    parts = [(table, model, [rows[name] for name in HEADLINE]) for table, model, rows in rows_of
             if all(name in rows and paper_tables.perplexities(rows[name].best) for name in HEADLINE)]
    if not parts:
        return None
    figure, axes = figures.panels_of(len(parts), len(parts), 5.5, 2.6, sharey=True)
    for axis, (table, model, rows) in zip(axes, parts):
        for place, m in enumerate(rows):
            values = paper_tables.perplexities(m.best)
            mean, deviation = figures.mean_and_deviation(values)
            error = deviation / math.sqrt(len(values))
            half = significance.student_t(0.05, len(values) - 1) * error if error else 0
            axis.barh(place, mean, color=COLORS[m.row.name], height=0.6, xerr=half, capsize=3)
            note = (f"  {percent(paper_tables.relative(m.against_best.difference))} to {m.row.against}"
                    if m.row.against else "")
            axis.text(mean + half, place, f" {mean:.1f}{note}", va="center", fontsize=9)
        axis.set_yticks(range(len(rows)), HEADLINE)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlim(0, 1.35 * max(statistics.fmean(paper_tables.perplexities(m.best)) for m in rows))
        figures.prepare_axis(axis, title_of(table, runs.scale, model), "validation perplexity (lower is better)", "")
        axis.grid(axis="y", visible=False)
    seeds = min(len(paper_tables.perplexities(m.best)) for *_, rows in parts for m in rows)
    return figures.save_figure(figure, f"Each method at its best learning rate, {seeds} seeds", path)


FIGURES = {"training": plot_training, "validation": plot_validation, "rates": plot_rates, "alignment": plot_alignment,
           "time": plot_times, "forest": plot_forest}


def draw(name, table, runs, folder):
    os.makedirs(folder, exist_ok=True)
    return FIGURES[name](table, runs, os.path.join(folder, f"{table.id}-{name}.png"))
