"""Writes the page of a scale, docs/reproduction_SCALE.md, from the finished cells only."""
import collections
import os
import statistics

import compare
from written_files import replacing

from reproduction import figures, tables

INTRODUCTION = """# The paper, reproduced at scale {scale}

Made by `python3 scripts/reproduce.py report --scale {scale} --results {results}{text}`,
from the finished runs in that file; a row without a finished run says "not run". The paper is
[arXiv 2601.23261](https://arxiv.org/abs/2601.23261); its tables are `experiments/*.toml`.
[REPRODUCTION.md](REPRODUCTION.md) summarizes all scales.

## What was run

{ran}

A scale changes model and tokens, never the method. Each row tries the same grid of learning rates with one seed
(factors {grid} of a first guess). All its seeds then run at the best rate, and at the best rate of the Muon row that it
is compared with (the paper compares at equal rates). The seed sets both the initial weights and the order of the data,
so runs of one seed are pairs: Student's t test on the differences of their losses gives the differences of perplexity,
their 95% intervals and p. Holm's method corrects p over all comparisons of a table, but not the intervals.
"""

THEORY = """## What theory predicts, and what was measured

- **Size of updates.** For square matrices a slice of a semi-orthogonal stack of K has 1/K of Muon's squared norm:
  at equal learning rate Teon moves Q, K and V sqrt(K) less ([docs/teon.md](teon.md)). The paper has no control for
  it; the rows "Q K V at lr / sqrt(2)" and "rms-match" of {controls} are these controls. If size
  were all that differs, Teon would equal the first, and with rms-match Muon itself. Measured at Muon's best rate,
  in perplexity: {sizes}.
- **Alignment.** Mode 1 gains where neighbouring layers' momenta share left singular vectors, mode 2 where they
  share right ones, the reverse of the paper's statement ([docs/teon.md](teon.md)). Measured over the second half of
  Muon's training (|inner product| of the top singular vectors of neighbouring layers): {alignment}.
"""


def anchor(title):
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def names(paths):
    return ", ".join(map(os.path.basename, paths))


def summary(scale, runs):
    results = list(runs.results.values())
    if not results:
        return "Nothing yet."
    hours = sum(r.ms * r.losses[-1][0] for r in results) / 3.6e6
    devices, types = collections.Counter(r.device for r in results), collections.Counter(r.dtype for r in results)
    return (f"Scale `{scale.name}` ({scale.about}): {len(results)} runs on {', '.join(devices)} ({', '.join(types)}), "
            f"{hours:.1f} hours of training by the median step of each, evaluations not counted. "
            f"Text: {names(runs.data.train or scale.source)}"
            f"{'; validation: ' + names(runs.data.val) if runs.data.val else ''}; tokenizers: "
            f"{', '.join(sorted(set(scale.vocabulary.values())))}.")


def sizes(table, found, scale):
    """Describes Teon, Muon and Muon with smaller updates at one rate, for each model."""
    models, others = collections.defaultdict(list), {"teon-mode", "teon-roles", "teon-normalize-slices"}
    for m in found:
        if m.row.flags["optimizer"] == "adamw":
            continue
        if len(m.equal) == table.seeds(scale) and not others & m.row.flags.keys():
            models[m.model.name, m.equal_rate].append(f"{m.row.name} {tables.text_of_perplexity(m.equal)}")
    return "; ".join(f"{name} at {rate:g}: {', '.join(rows)}" for (name, rate), rows in models.items())


def alignment(table, runs):
    """Describes the alignment of left and right singular vectors, for each role."""
    models = []
    for model, _, measured in figures.measured_alignment(table, runs):
        half = max(step for step, *_ in measured) / 2
        roles = []
        for role in figures.ROLES:
            pairs = [sides for step, of, *sides in measured if of == role and step >= half]
            if pairs:
                left, right = (statistics.mean(side) for side in zip(*pairs))
                roles.append(f"{role} {left:.2f} left, {right:.2f} right")
        models.append(f"{model.name}: {'; '.join(roles)}")
    return ". ".join(models)


def write(path, all_tables, runs, costs):
    """Writes the page. `costs` are lines about the cost of the full scale."""
    scale, folder = runs.scale, os.path.splitext(path)[0].lower()
    name = os.path.basename(folder)
    controls = [table for table in all_tables if table.id.endswith("controls")]
    parts, verdicts, theory = [], [], {"controls": [], "sizes": [], "alignment": []}
    for table in all_tables:
        found = tables.measure(table, runs)
        if table in controls:
            theory["controls"].append(f"[{table.id}](#{anchor(table.title)})")
            theory["sizes"].append(sizes(table, found, scale))
            theory["alignment"].append(alignment(table, runs))
        parts += [f"## {table.title}\n\n{table.place}. The paper: {table.claim}." if table.place != "not in the paper"
                  else f"## {table.title}\n\nNot in the paper. To test: {table.claim}.", tables.render(table, runs)]
        for figure in figures.FIGURES if table.headline and not table.variance else ("rates", "forest"):
            if table in controls and figure == "forest":
                continue  # one plot shows all controls
            drawn = figures.draw(figure, table, runs, folder)
            if drawn:
                parts.append(f"![{table.title}: {figure}]({name}/{os.path.basename(drawn)})")
        verdicts += [(table.id, *sentence) for sentence in tables.verdict(table, found)]
    files = "".join(f" {flag} {' '.join(map(os.path.basename, paths))}"
                    for flag, paths in (("--text", runs.data.train), ("--val-text", runs.data.val)) if paths)
    text = INTRODUCTION.format(scale=scale.name, results=os.path.relpath(runs.path), text=files,
                               ran=summary(scale, runs), grid=", ".join(f"{g:g}" for g in scale.grid))
    text += "\n## What agrees and what does not\n\n"
    drawn = figures.draw_headline(controls, runs, folder)
    if drawn:
        text += f"![AdamW, Muon and Teon]({name}/{os.path.basename(drawn)})\n\n"
    drawn = figures.draw_controls(controls, runs, folder)
    if drawn:
        text += f"![Difference to Muon]({name}/{os.path.basename(drawn)})\n\n"
    text += compare.as_markdown(["table", "comparison", "the paper", "here"], [list(v) for v in verdicts]) + "\n\n"
    joined = {key: (" and " if key == "controls" else "; ").join(filter(None, found)) or tables.NOT_RUN
              for key, found in theory.items()}
    text += THEORY.format(**joined) + "\n" + "\n\n".join(parts)
    text += "\n\n## What it would take to settle the rest\n\n" + "\n".join(costs) + "\n"
    with replacing(path) as file:
        file.write(text)
    return len(verdicts)


