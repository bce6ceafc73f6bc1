"""Writes a page of a scale's tables and figures, from the finished cells only, and estimates the cost of cells."""

import collections
import os
import statistics

from common.run_folder import short
from common.written_files import replacing

from experiments import paper, paper_figures, paper_tables
from experiments.tables import as_markdown

INTRODUCTION = """# The paper, reproduced at scale {scale}

Made by `python3 scripts/reproduce.py report --scale {scale} --results {results}{text}`,
from the finished runs in that file; a row without a finished run says "not run". docs/REPRODUCTION.md explains it.

{ran}

## What agrees and what does not

"""


def names(paths):
    return ", ".join(map(os.path.basename, paths))


def summary(scale, runs):
    results = list(runs.results.values())
    if not results:
        return "Nothing has run yet."
    hours = sum(r.ms * r.losses[-1][0] for r in results) / 3.6e6
    devices, types = collections.Counter(r.device for r in results), collections.Counter(r.dtype for r in results)
    return (f"Scale `{scale.name}` ({scale.about}): {len(results)} runs on {', '.join(devices)} ({', '.join(types)}), "
            f"{hours:.1f} hours of training by the median step of each, evaluations not counted. "
            f"Text: {names(runs.data.train or scale.source)}"
            f"{'; validation: ' + names(runs.data.val) if runs.data.val else ''}; tokenizers: "
            f"{', '.join(sorted(set(scale.vocabulary.values())))}.")


def sizes(measured, scale):
    """Describes Teon, Muon and Muon with smaller updates at one rate, for each model."""
    models, others = collections.defaultdict(list), {"teon-mode", "teon-roles", "teon-normalize-slices"}
    for m in measured:
        if (m.row.flags["optimizer"] != "adamw" and len(m.equal) == m.table.seeds(scale)
                and not others & m.row.flags.keys()):
            models[m.model.name, m.equal_rate].append(f"{m.row.name} {paper_tables.text_of_perplexity(m.equal)}")
    return "; ".join(f"{name} at {rate:g}: {', '.join(rows)}" for (name, rate), rows in models.items())


def alignment(measured):
    """Returns (header, rows) of the alignment of singular vectors over the second half of Muon's training, by role."""
    rows = []
    for m, lines in paper_figures.measured_alignment(measured):
        half = max(step for step, *_ in lines) / 2
        for i, side in enumerate(("left", "right")):
            by_role = collections.defaultdict(list)
            for step, role, *sides in lines:
                if step >= half:
                    by_role[role].append(sides[i])
            rows.append({"model": m.model.name, "side": side}
                        | {role: f"{statistics.mean(values):.2f}" for role, values in by_role.items()})
    return (list(rows[0]), [list(row.values()) for row in rows]) if rows else ([], [])


def section_of(measured, runs, folder):
    """Returns the lines about one table; draws its figures into the folder."""
    table = measured[0].table
    place = "Not in the paper. To test" if table.place == "not in the paper" else f"{table.place}. The paper"
    lines = [f"## {table.title}", f"{place}: {table.claim}.", paper_tables.render(measured, runs)]
    is_controls = table.id.endswith("controls")
    if is_controls:
        updates = sizes(measured, runs.scale) or paper_tables.NOT_RUN
        lines.append(f"At Muon's best rate, in perplexity: {updates}.")
        header, rows = alignment(measured)
        lines += ["Alignment of neighbouring layers' momenta:", as_markdown(header, rows)] if rows else []
    for figure in paper_figures.FIGURES if table.headline and not table.variance else ("rates", "forest"):
        if figure != "forest" or not is_controls:  # one plot shows all controls
            lines.append(picture(paper_figures.draw(figure, measured, folder), f"{table.title}: {figure}"))
    return filter(None, lines)


def picture(path, title):
    return path and f"![{title}]({os.path.basename(os.path.dirname(path))}/{os.path.basename(path)})"


def write(page, tables, runs, costs_of_all, tflops):
    """Writes the page on the tables, each as measure() returns it, and its figures into the folder `figures` beside it.
    `costs_of_all`: costs() of the full scale."""
    scale, folder, (header, rows, total) = runs.scale, os.path.join(os.path.dirname(page), "figures"), costs_of_all
    os.makedirs(folder, exist_ok=True)
    controls = [m for measured in tables for m in measured if m.table.id.endswith("controls")]
    files = "".join(f" {flag} {' '.join(map(os.path.basename, paths))}"
                    for flag, paths in (("--text", runs.data.train), ("--val-text", runs.data.val)) if paths)
    verdicts = [[measured[0].table.id, *sentence] for measured in tables
                for sentence in paper_tables.verdict(measured)]
    parts = [
        picture(paper_figures.plot_headline(controls, os.path.join(folder, "headline.png")), "The methods"),
        picture(paper_figures.plot_controls(controls, os.path.join(folder, "controls.png")), "Controls"),
        as_markdown(["table", "comparison", "the paper", "here"], verdicts),
        *(line for measured in tables for line in section_of(measured, runs, folder)),
        "## What it would take to settle the rest", as_markdown(header, rows),
        f"At most {total:.0f} hours on one GPU that sustains {tflops:g} TFLOP/s (6 FLOPs per parameter and token); "
        "cells that several tables share are counted in each. `reproduce.py all --estimate --scale full` prints it."]
    with replacing(page) as file:
        file.write(INTRODUCTION.format(scale=scale.name, results=os.path.relpath(runs.path), text=files,
                                       ran=summary(scale, runs)) + "\n\n".join(filter(None, parts)) + "\n")


def costs(all_tables, scale, tflops):
    """Returns (header, rows, total hours) of a scale's cost by table: the grid with one seed, and all seeds at two
    rates. Tables share cells, so the total is an upper bound."""
    header, rows, total = ["table", "model", "cells", "parameters", "tokens", "GiB on the device", "GiB of disk",
                           "hours"], [], 0
    for table in all_tables:
        grid, seeds = len(scale.grid), table.seeds(scale)
        for model in table.models_at(scale):
            cells = (seeds if grid == 1 else grid + 2 * (seeds - 1)) * len(table.rows)
            parameters, memory, disk = paper.plan_of(table.program, model, scale.vocabulary_size(table.program))
            tokens = float(model.flags.get("tokens", 0)) or float(model.flags["steps"]) * model.flags["batch-tokens"]
            hours = cells * 6 * parameters * tokens / (tflops * 1e12) / 3600  # without attention
            total += hours
            rows.append([table.id, model.name, str(cells), short(parameters), short(tokens), f"{memory / 2**30:.1f}",
                         f"{cells * disk / 2**30:.1f}", f"{hours:.1f}"])
    return header, rows, total
