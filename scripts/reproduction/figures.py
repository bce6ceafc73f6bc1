"""Draws the paper's figures and additional ones from the cells of a scale. Each figure's function returns whether it
drew anything."""
import math
import os
import statistics

import pictures
import significance
from run_folder import short

from reproduction import plan, tables


def axes_of(count, plt, columns=2):
    """Returns a figure and `count` axes in rows of `columns`."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.2 * columns, 4.2 * rows), squeeze=False)
    return figure, axes.flatten()


# The colours of rows that occur in several tables, with this name or with ", PolarExpress" added.
COLORS = {"AdamW": pictures.COLORS["adamw"], "Muon": pictures.COLORS["muon"], "Teon": pictures.COLORS["teon"],
          "Muon, Q K V at lr / sqrt(2)": "#17becf", "Teon, rms-match": "#ff7f0e", "Teon, mode 2": "#9467bd",
          "Muon, SVD": "#2ca02c", "Muon, Jordan": "#8c564b", "Muon, You": "#bcbd22", "Teon, Jordan": "#e377c2",
          "Teon, You": "#e7ba52"}


def colors(table):
    """{row: colour}, the same in all figures."""
    names = {row.name: row.name.removesuffix(", PolarExpress") for row in table.rows}
    found = pictures.colors_of(names.values(), COLORS)
    return {name: found[plain] for name, plain in names.items()}


VOCABULARIES = {"bytes": 257, "gpt2": 50257, "llama2": 32000}
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP*X<>"


def style(table, name):
    """Colour, dashes and marker of a row: each alone tells most rows apart, also without colours."""
    number = [row.name for row in table.rows].index(name)
    return {"color": colors(table)[name], "ls": DASHES[number % len(DASHES)], "lw": 1.6,
            "marker": MARKERS[number % len(MARKERS)], "ms": 5, "markerfacecolor": "white"}


def parameters_of(table, scale, model):
    """Returns the number of parameters of a model whose flags state its size, otherwise None."""
    f = model.flags
    if not {"layers", "channels", "seq-len"} <= f.keys():
        return None
    vocabulary = scale.vocabulary[table.program]
    size = int(vocabulary[6:]) if vocabulary.startswith("train:") else VOCABULARIES[vocabulary]
    channels, layers = f["channels"], f["layers"]
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


def reference(table):
    """Returns the name of the row that differences are taken to: the first Muon."""
    return next((row.name for row in table.rows if row.flags.get("optimizer") == "muon"), None)


def difference_of(results, others, points):
    """Returns (x, mean, deviation) of the difference in perplexity to `others`, per cent, over pairs of one seed.
    `points` returns [[step, loss], ...] of a result."""
    rival = {r.options["seed"]: dict(map(tuple, points(r))) for r in others}
    found = {}
    for r in results:
        for step, loss in points(r):
            other = rival.get(r.options["seed"], {}).get(step)
            if loss is not None and other is not None:
                found.setdefault(step, []).append(100 * min(tables.relative(loss - other), 1e6))
    values = [pictures.mean_and_deviation(found[step]) for step in sorted(found)]
    return sorted(found), [mean for mean, _ in values], [deviation for _, deviation in values]


def difference_panels(table, runs, plt, points, names, ylabel):
    """Draws each row's difference to Muon over training, a panel per model. Returns the figure, or None."""
    models = [m for m in table.models_at(runs.scale)
              if reference(table) and list(best_of(table, runs, m, [reference(table)]))]
    if not models:
        return None
    figure, axes = axes_of(len(models), plt)
    for axis, model in zip(axes, models):
        rows = dict(best_of(table, runs, model, names))
        for name, results in rows.items():
            x, mean, deviation = difference_of(results, rows[reference(table)], points)
            axis.plot(x, mean, label=name, markevery=pictures.marked(len(x)), **style(table, name))
            axis.fill_between(x, [m - d for m, d in zip(mean, deviation)], [m + d for m, d in zip(mean, deviation)],
                              color=colors(table)[name], alpha=0.15, lw=0)
        axis.set_yscale("symlog", linthresh=4, linscale=2)
        shown = [y for line in axis.lines for y in line.get_ydata()[len(line.get_ydata()) // 4:]]
        low, high = 1.3 * min(shown + [-1]), 1.3 * max(shown + [1])
        ticks = [t for t in (-50, -20, -10, -5, -3, -2, -1, 0, 1, 2, 3, 5, 10, 20, 50, 100) if low <= t <= high]
        axis.set_ylim(low, high)
        axis.set_yticks(ticks, [f"{t:+d}%" if t else "0" for t in ticks])
        axis.set_yticks([], minor=True)
        pictures.prepare_axis(axis, title_of(table, runs.scale, model), "steps", ylabel)
    legend_below(figure, axes)
    return figure


def legend_below(figure, axes):
    """Draws one legend for all panels, below them."""
    lines = {line.get_label(): line for axis in axes for line in axis.lines if line.get_label()[0] != "_"}
    figure.legend(lines.values(), lines.keys(), loc="upper center", bbox_to_anchor=(0.5, 0), fontsize=8,
                  frameon=False, ncol=max(1, int(figure.get_figwidth() / 3.5)))


def best_of(table, runs, model, names):
    for name in names:
        row = table.row(name)
        results = tables.whole(runs.seeds(table, row, model, runs.best_rate(table, row, model)))
        if results:
            yield name, results


def begun(table, runs):
    """The models with at least one finished cell."""
    return [m for m in table.models_at(runs.scale)
            if any(runs.loss(c) is not None for r in table.rows for c in runs.tuning(table, r, m).values())]


def training_curves(table, runs, path, plt):
    """The training loss as difference to Muon's, at each method's best rate. Omits methods with another orthogonalizer
    than PolarExpress."""
    names = [r.name for r in table.rows if (table.flags | r.flags).get("ortho", "polar-express") == "polar-express"]
    figure = difference_panels(table, runs, plt, lambda r: r.losses, names,
                               "perplexity of training, difference to Muon")
    if not figure:
        return False
    pictures.save_figure(figure, f"{table.title}: training", path, plt)
    return True


def validation_curves(table, runs, path, plt):
    """The validation perplexity as difference to Muon's over training, mean and standard deviation over seeds."""
    figure = difference_panels(table, runs, plt, lambda r: r.evals, [r.name for r in table.rows],
                               "validation perplexity, difference to Muon")
    if not figure:
        return False
    pictures.save_figure(figure, f"{table.title}: validation, mean and deviation over seeds", path, plt)
    return True


def rates(table, runs, path, plt):
    """Validation perplexity against learning rate, over the grid of each row, relative to the best of all."""
    models = begun(table, runs)
    if not models:
        return False
    figure, axes = axes_of(len(models), plt)
    drawn = False
    for axis, model in zip(axes, models):
        losses = {row.name: {rate: loss for rate, cell in runs.tuning(table, row, model).items()
                             if (loss := runs.loss(cell)) is not None and math.isfinite(loss)} for row in table.rows}
        losses = {name: points for name, points in losses.items() if len(points) > 1}
        if losses:
            best = min(min(points.values()) for points in losses.values())
            pictures.draw_rates(axis, [
                (name, {rate: [100 * min(tables.relative(loss - best), 1e6)] for rate, loss in points.items()},
                 style(table, name)) for name, points in losses.items()],
                title_of(table, runs.scale, model), "perplexity above the best")
            drawn = True
    legend_below(figure, axes)
    pictures.save_figure(figure, f"{table.title}: learning rates (one seed; filled: best)", path, plt)
    return drawn


ROLES = ("q", "k", "v", "o", "mlp-up", "mlp-down")


def measured_alignment(table, runs):
    """Yields (model, row, [[step, role, left, right], ...]) of Muon's training, if measured."""
    row = next((r for r in table.rows if r.flags.get("optimizer") == "muon"
                and r.flags.get("ortho", "polar-express") == "polar-express"), None)
    for model in table.models_at(runs.scale) if row else ():
        for _, results in best_of(table, runs, model, [row.name]):
            if results[0].alignment:
                yield model, row, results[0].alignment


def alignment(table, runs, path, plt):
    """|<u, u'>| and |<v, v'>| of the top singular vectors of neighbouring layers' momenta over Muon's training, by
    role."""
    found = list(measured_alignment(table, runs))
    if not found:
        return False
    figure, axes = axes_of(2 * len(found), plt)
    for k, (model, _, measured) in enumerate(found):
        for i, side in enumerate(("left", "right")):
            axis = axes[2 * k + i]
            for role in ROLES:
                points = sorted((step, sides[i]) for step, of, *sides in measured if of == role)
                if points:
                    number = ROLES.index(role)
                    axis.plot(*zip(*points), lw=1.5, label=role, ls=DASHES[number], marker=MARKERS[number], ms=4,
                              markerfacecolor="white", markevery=pictures.marked(len(points)))
            axis.set_ylim(0, 1)
            pictures.prepare_axis(axis, f"{title_of(table, runs.scale, model)}:\n{side} singular vectors", "steps",
                                 "|inner product|, mean")
    legend_below(figure, axes)
    pictures.save_figure(figure, f"Alignment of the top singular vectors of momenta ({found[0][1].name})", path, plt)
    return True


def forest(table, runs, path, plt):
    return forest_of([table], f"{table.title}: difference to Muon", runs, path, plt)


def forest_of(all_tables, title, runs, path, plt):
    """The difference in perplexity between each row and its Muon, each at its best rate, with the 95% interval. Rows of
    one name share a line."""
    found, names = {}, []
    for table in all_tables:
        for m in tables.measure(table, runs):
            if m.row.against and table.row(m.row.against).flags["optimizer"] == "muon" and m.against_best.n:
                found.setdefault(title_of(table, runs.scale, m.model), []).append(m)
                names += [] if m.row.name in names else [m.row.name]
    if not found:
        return False
    color_of = {name: color for table in all_tables for name, color in colors(table).items()}
    figure, axes = plt.subplots(1, len(found), figsize=(3 + 4 * len(found), 1.6 + 0.42 * len(names)), squeeze=False,
                                sharey=True)
    for axis, (model, rows) in zip(axes[0], found.items()):
        axis.axvline(0, color=COLORS["Muon"], lw=1.6)
        for m in rows:
            place, color, comparison = names.index(m.row.name), color_of[m.row.name], m.against_best
            low, middle, high = (100 * tables.relative(x) for x in (comparison.low, comparison.difference,
                                                                    comparison.high))
            known = not math.isnan(low)
            if known:
                axis.plot((low, high), (place, place), color=color, lw=2.4, solid_capstyle="butt")
            axis.plot(middle, place, "o", color=color, ms=7, mfc=color if known else "white")
            axis.annotate(f"{middle:+.1f}%", (middle, place), xytext=(0, 7), textcoords="offset points", ha="center",
                          fontsize=8, bbox={"fc": "white", "ec": "none", "pad": 0.6})
        seeds = sorted({m.against_best.n for m in rows})
        pictures.prepare_axis(axis, f"{model}, {' to '.join(map(str, seeds))} pairs of runs",
                             "perplexity, difference to Muon in per cent", "")
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")
        axis.set_yticks(range(len(names)), names, fontsize=9)
        axis.set_ylim(len(names) - 0.4, -0.7)
        axis.margins(x=0.15)
    pictures.save_figure(figure, f"{title}, mean and 95% interval (left is better)", path, plt)
    return True


def step_times(table, runs, path, plt):
    """Median time of the optimizer relative to forward and backward of the same run, because other work on the machine
    slows both equally."""
    models = [m for m in table.models_at(runs.scale) if list(best_of(table, runs, m, [r.name for r in table.rows]))]
    if not models:
        return False
    figure, axes = axes_of(len(models), plt)
    for axis, model in zip(axes, models):
        found = list(best_of(table, runs, model, [r.name for r in table.rows]))
        own = [statistics.median(r.optimizer_ms / (r.ms - r.optimizer_ms) for r in results) for _, results in found]
        places = range(len(found))
        axis.barh(places, [1] * len(found), color="#9db8d6")
        axis.barh(places, own, left=1, color="#2f5d8a")
        axis.set_yticks(places, [name for name, _ in found], fontsize=8)
        axis.set_xlim(0, 1.12 * (1 + max(own)))
        for place, share in zip(places, own):
            axis.text(1.02 + share, place, f"+{100 * share:.0f}%", va="center", fontsize=8)
        axis.invert_yaxis()
        pictures.prepare_axis(axis, title_of(table, runs.scale, model),
                              "time of a step: forward and backward (1), optimizer", "")
    pictures.save_figure(figure, f"{table.title}: time per step", path, plt)
    return True


def headline(controls, runs, path, plt):
    """The final perplexity of AdamW, Muon and Teon, mean and 95% interval over seeds, a panel per table of controls."""
    panels = []
    for table in controls:
        for model in table.models_at(runs.scale):
            rows = {m.row.name: m for m in tables.measure(table, runs) if m.model is model}
            if all(name in rows and tables.perplexities(rows[name].best) for name in HEADLINE):
                panels.append((table, model, [rows[name] for name in HEADLINE]))
    if not panels:
        return False
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 2.6), squeeze=False, sharey=True)
    for axis, (table, model, rows) in zip(axes[0], panels):
        for place, m in enumerate(rows):
            values = tables.perplexities(m.best)
            mean, deviation = pictures.mean_and_deviation(values)
            error = deviation / math.sqrt(len(values))
            half = significance.student_t(0.05, len(values) - 1) * error if error else 0
            axis.barh(place, mean, color=COLORS[m.row.name], height=0.6, xerr=half, capsize=3)
            note = (f"  {tables.percent(tables.relative(m.against_best.difference))} to {m.row.against}"
                    if m.row.against else "")
            axis.text(mean + half, place, f" {mean:.1f}{note}", va="center", fontsize=9)
        axis.set_yticks(range(len(rows)), HEADLINE)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlim(0, 1.35 * max(statistics.fmean(tables.perplexities(m.best)) for m in rows))
        pictures.prepare_axis(axis, title_of(table, runs.scale, model), "validation perplexity (lower is better)", "")
        axis.grid(axis="y", visible=False)
    seeds = min(len(tables.perplexities(m.best)) for *_, rows in panels for m in rows)
    pictures.save_figure(figure, f"Each method at its best learning rate, {seeds} seeds", path, plt)
    return True


HEADLINE = ("AdamW", "Muon", "Teon")
FIGURES = {"training": training_curves, "validation": validation_curves, "rates": rates, "alignment": alignment,
           "time": step_times, "forest": forest}


def pyplot():
    """Returns matplotlib's pyplot. Raises a Fault that states how to install it if it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise plan.Fault("figures need matplotlib; `make setup` installs it into .venv") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def draw(name, table, runs, folder):
    """Draws the figure and returns its path, or None if none of its cells has run."""
    plt = pyplot()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{table.id}-{name}.png")
    return path if FIGURES[name](table, runs, path, plt) else None


def draw_headline(controls, runs, folder):
    """Draws AdamW, Muon and Teon only; returns as draw()."""
    path = os.path.join(folder, "headline.png")
    return path if headline(controls, runs, path, pyplot()) else None


def draw_controls(controls, runs, folder):
    """Draws one forest plot of all tables of controls; returns as draw()."""
    path = os.path.join(folder, "controls.png")
    return path if forest_of(controls, "Difference to Muon", runs, path, pyplot()) else None
