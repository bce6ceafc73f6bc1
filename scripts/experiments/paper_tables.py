"""Measures a table's rows: each method at its best rate and at the paper's equal rate, beside the paper's figures."""

import dataclasses
import math
import statistics

from experiments import paper, paper_runs, significance
from experiments.significance import Comparison
from experiments.tables import as_markdown, mean_spread, percent, text_of_p

NOT_RUN, DIVERGED = "not run", "diverged"


@dataclasses.dataclass
class Measured:
    """One row of a table for one model."""
    table: paper.Table
    row: paper.Row
    model: paper.Model
    vocabulary_size: int
    losses: dict         # {rate: loss} of the search for the best rate
    rate: float          # the best one; None before all have run
    equal_rate: float = None  # that of its Muon
    cells: dict = dataclasses.field(default_factory=dict)  # {rate: cells of all seeds}
    best: list = ()      # results at the row's own best rate
    equal: list = ()     # and at the rate of its Muon
    # Comparisons of losses with the row's rival; p is corrected over the table (Holm).
    against_best: Comparison = dataclasses.field(default_factory=Comparison)
    against_equal: Comparison = dataclasses.field(default_factory=Comparison)

    @property
    def is_at_edge(self):
        return len(self.losses) > 1 and self.rate in (min(self.losses), max(self.losses))

    @property
    def paper_difference(self):
        """The paper's relative difference between the row and its rival, or nan."""
        own = self.row.paper.get(self.model.name)
        rival = self.row.against and self.table.row(self.row.against).paper.get(self.model.name)
        return own / rival - 1 if own and rival else math.nan


def whole(results):
    """Returns the results that did not diverge."""
    return [r for r in results if not r.diverged]


def perplexities(results):
    return [r.perplexity for r in whole(results)]


def compared(own, rival):
    return significance.compared(*({r.options["seed"]: r.loss for r in whole(results)} for results in (own, rival)))


def relative(difference):
    """Converts a difference of losses to a relative difference of perplexities: -0.03 is three per cent lower."""
    return math.inf if difference > 700 else math.expm1(difference)


def measure(table, runs):
    """Returns a Measured for every row and every model of the scale. If runs.may_run is set, runs what is missing."""
    measured = []
    for model in table.models_at(runs.scale):
        adamw_rate, by_row = runs.adamw_rate(table.program, model), {}
        for row in table.rows:
            losses = runs.search(table.method(row, model, adamw_rate))
            by_row[row.name] = Measured(table, row, model, runs.scale.vocabulary_size(table.program), losses,
                                        paper_runs.best_rate(losses))
        for m in by_row.values():
            rival, method = by_row.get(m.row.against), table.method(m.row, model, adamw_rate)
            m.equal_rate = rival.rate if rival and rival.row.flags["optimizer"] != "adamw" else m.rate
            m.cells = {rate: [method.cell(rate, seed) for seed in range(1, table.seeds(runs.scale) + 1)]
                       for rate in (m.rate, m.equal_rate) if rate is not None}
            m.best, m.equal = ([r for r in map(runs.result, m.cells.get(rate, [])) if r]
                               for rate in (m.rate, m.equal_rate))
        for m in by_row.values():
            if rival := by_row.get(m.row.against):
                m.against_best = compared(m.best, rival.best)
                if m.equal_rate != m.rate:  # otherwise these are the same runs
                    m.against_equal = compared(m.equal, rival.equal)
        measured += by_row.values()
    significance.correct([c for m in measured for c in (m.against_best, m.against_equal)])
    return measured


# ---- as text ---------------------------------------------------------------------------------------------------------


def text_of_perplexity(results):
    values = perplexities(results)
    if not values:
        return DIVERGED if results else NOT_RUN
    diverged = len(results) - len(values)
    return mean_spread(values, 2) + (f", {diverged} {DIVERGED}" if diverged else "")


def text_of_rate(rate, edge=False):
    return "" if rate is None else f"{rate:g}" + (" (end of the grid)" if edge else "")


def text_of_difference(comparison):
    """Returns the difference in perplexity with its 95% interval, as "-2.1%, -2.6% to -1.7%"."""
    difference, low, high = (percent(relative(x)) for x in (comparison.difference, comparison.low, comparison.high))
    return f"{difference}, {low} to {high}" if low else difference


HEADER = ["", "lr", "seeds", "perplexity", "variance", "against its rival", "p", "at equal lr", "against", "p", "paper",
          "variance", "against"]


def texts_of(comparison):
    return (text_of_difference(comparison), text_of_p(comparison.p)) if comparison.method else ("", "")


def cells_of(m):
    """Returns the cells of a row; the variance only in the paper's table of variances."""
    values, published, (difference, p) = perplexities(m.best), m.row.paper.get(m.model.name), texts_of(m.against_equal)
    has_variance = m.table.variance and len(values) > 1 and max(values) < math.inf
    return [m.row.name, text_of_rate(m.rate, m.is_at_edge), str(len(values) or ""), text_of_perplexity(m.best),
            f"{statistics.variance(values):.4f}" if has_variance else "", *texts_of(m.against_best),
            f"{text_of_perplexity(m.equal)} ({text_of_rate(m.equal_rate)})" if difference else "", difference, p,
            f"{published:.2f}" if published else "-",
            f"{m.row.paper_variance[m.model.name]:.4f}" if m.table.variance else "", percent(m.paper_difference)]


def describe(model):
    """Returns the model's flags of size and training, as "layers 4, channels 96, ..."."""
    return ", ".join(f"{flag} {value:g}" if isinstance(value, (int, float)) else f"{flag} {value}"
                     for flag, value in model.flags.items())


def without_empty_columns(header, rows):
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] not in ("", "-") for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def render(measured, runs, formatted=as_markdown):
    """Returns the table as text, one part per model, with remarks."""
    parts = []
    for name in measured[0].table.models:
        if model := runs.scale.models.get(name):
            columns = without_empty_columns(HEADER, [cells_of(m) for m in measured if m.model.name == name])
            parts.append(f"{name} ({describe(model)}):\n\n{formatted(*columns)}")
        else:
            parts.append(f"{name}: not at this scale.")
    return "\n\n".join(parts + remarks(measured, runs))


def remarks(measured, runs):
    """Returns remarks on cells that ran with another engine or other options than the current ones."""
    cells = {c.name: c for m in measured for at_rate in m.cells.values() for c in at_rate if c.name in runs.results}
    today, notes = runs.engine(measured[0].table.program), []
    engines = {runs.results[name].engine for name in cells}
    if today and engines - {today}:
        notes.append(f"Ran with an engine that gives other bits than today's ({today}): "
                     f"{', '.join(sorted(engines - {today}))}.")
    elif len(engines) > 1:
        notes.append(f"Ran with engines that give different bits: {', '.join(sorted(engines))}.")
    changed = sorted(name for name, cell in cells.items() if runs.results[name].options != runs.options(cell))
    if changed:
        notes.append(f"Ran with other options than the table now has: {', '.join(changed)}.")
    return notes


def verdict(measured):
    """Returns (comparison, the paper's difference or "-", our answer from pairs of one seed) for each comparison."""
    sentences = []
    for m in (m for m in measured if m.row.against):
        claimed, comparison = m.paper_difference, m.against_best
        if not comparison.method:
            answer = DIVERGED if m.best and not whole(m.best) else NOT_RUN
        else:
            if not comparison.p < 0.05:
                answer = "not decided"
            elif math.isnan(claimed):
                answer = "lower" if comparison.difference < 0 else "higher"
            else:
                answer = "agrees in sign" if (comparison.difference < 0) == (claimed < 0) else "the opposite"
            p = "unknown: one seed" if math.isnan(comparison.p) else text_of_p(comparison.p)
            answer += f" ({text_of_difference(comparison)}, p {p})"
        sentences.append((f"{m.model.name}: {m.row.name} against {m.row.against}", percent(claimed) or "-", answer))
    return sentences
