"""Draws the paper's figures and additional ones from the cells of a scale. Each figure's function returns whether it
drew anything."""
import math
import os
import statistics

import compare
import pictures

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


def style(table, name):
    """Teon's lines are dashed, because they often coincide with Muon's."""
    return {"color": colors(table)[name], "ls": "--" if name.startswith("Teon") else "-", "lw": 1.6}


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
    """Training loss in the first fifth and in the last half of the steps, at each method's best rate, one row per
    model. Omits methods with another orthogonalizer than PolarExpress."""
    names = [r.name for r in table.rows if (table.flags | r.flags).get("ortho", "polar-express") == "polar-express"]
    models = [m for m in table.models_at(runs.scale) if list(best_of(table, runs, m, names))]
    if not models:
        return False
    figure, axes = axes_of(2 * len(models), plt)
    for i, model in enumerate(models):
        for name, results in best_of(table, runs, model, names):
            steps = [step for step, _ in results[0].losses]
            curve = [math.nan if None in x else statistics.mean(x)
                     for x in zip(*([loss for _, loss in r.losses] for r in results))]
            cut, tail = len(steps) // 5, len(steps) // 2
            axes[2 * i].plot(steps[:cut], curve[:cut], label=name, **style(table, name))
            axes[2 * i + 1].plot(steps[tail:], curve[tail:], label=name, **style(table, name))
        for axis, part in zip(axes[2 * i:2 * i + 2], ("early", "late")):
            pictures.prepare_axis(axis, f"{model.name}: {part}", "steps", "training loss, nats per token")
    legend_below(figure, axes)
    pictures.save_figure(figure, f"{table.title}: training loss", path, plt)
    return True


def validation_curves(table, runs, path, plt):
    """Validation perplexity over training, mean and standard deviation over seeds."""
    models = begun(table, runs)
    if not models:
        return False
    figure, axes = axes_of(len(models), plt)
    drawn = False
    for axis, model in zip(axes, models):
        last = []
        for name, results in best_of(table, runs, model, [r.name for r in table.rows]):
            steps = [step for step, _ in results[0].evals]
            values = list(zip(*([compare.perplexity(loss) for _, loss in r.evals] for r in results)))
            mean = [statistics.fmean(v) for v in values]
            spread = [statistics.stdev(v) if len(v) > 1 and math.isfinite(m) else 0 for v, m in zip(values, mean)]
            (line,) = axis.plot(steps, mean, label=name, marker="o", ms=2.5, **style(table, name))
            axis.fill_between(steps, [m - s for m, s in zip(mean, spread)], [m + s for m, s in zip(mean, spread)],
                              color=line.get_color(), alpha=0.2, lw=0)
            last += filter(math.isfinite, mean[len(mean) // 3:])
            drawn = True
        if last:
            axis.set_ylim(0.97 * min(last), 1.03 * max(last))
            pictures.mark_cut_off(axis)
        pictures.prepare_axis(axis, model.name, "steps", "validation perplexity")
    legend_below(figure, axes)
    pictures.save_figure(figure, f"{table.title}: validation perplexity, mean ± deviation over seeds", path, plt)
    return drawn


def rates(table, runs, path, plt):
    """Validation loss against learning rate, over the grid of each row."""
    models = begun(table, runs)
    if not models:
        return False
    figure, axes = axes_of(len(models), plt)
    drawn = False
    for axis, model in zip(axes, models):
        worst, tried = [], set()
        for row in table.rows:
            points = [(rate, runs.loss(cell)) for rate, cell in runs.tuning(table, row, model).items()]
            points = [(x, y) for x, y in points if y is not None and math.isfinite(y)]
            if len(points) > 1:
                axis.plot(*zip(*points), marker="o", ms=4, label=row.name, **style(table, row.name))
                worst.append(sorted(y for _, y in points))
                tried.update(x for x, _ in points)
                drawn = True
        if worst:
            low, high = min(w[0] for w in worst), max(w[len(w) // 2] for w in worst)
            axis.set_ylim(low - 0.05 * (high - low), high + 0.2 * (high - low))
            pictures.mark_cut_off(axis)
        axis.set_xscale("log")
        pictures.prepare_axis(axis, model.name, "learning rate", "validation loss, nats per token")
        axis.set_xticks(sorted(tried), [f"{x:g}" for x in sorted(tried)], rotation=45, fontsize=8)
        axis.set_xticks([], minor=True)
    legend_below(figure, axes)
    pictures.save_figure(figure, f"{table.title}: loss against learning rate (one seed)", path, plt)
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
                    axis.plot(*zip(*points), lw=1.5, label=role)
            axis.set_ylim(0, 1)
            pictures.prepare_axis(axis, f"{model.name}: {side} singular vectors", "steps",
                                 "|inner product|, mean over neighbouring layers")
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
                found.setdefault(m.model.name, []).append(m)
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
        pictures.prepare_axis(axis, model.name, "time of a step: forward and backward (1), optimizer", "")
    pictures.save_figure(figure, f"{table.title}: time per step", path, plt)
    return True


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


def draw_controls(controls, runs, folder):
    """Draws one forest plot of all tables of controls; returns as draw()."""
    path = os.path.join(folder, "controls.png")
    return path if forest_of(controls, "Difference to Muon", runs, path, pyplot()) else None
