"""Measures a table's rows: each method at its best rate and at the paper's equal rate, beside the paper's figures."""

import dataclasses
import math
import statistics

from experiments import significance
from experiments.significance import Comparison
from experiments.tables import as_markdown, mean_spread, percent, text_of_p

NOT_RUN, DIVERGED = "not run", "diverged"


@dataclasses.dataclass
class Measured:
    """One row for one model."""
    row: object
    model: object
    best: list           # results at the row's own best rate
    equal: list          # at the rate of its Muon
    rate: float
    equal_rate: float
    edge: bool           # the best rate is an end of the grid
    # Comparisons of losses with the row's rival; p is corrected over the table (Holm).
    against_best: Comparison = dataclasses.field(default_factory=Comparison)
    against_equal: Comparison = dataclasses.field(default_factory=Comparison)

    def paper_difference(self, table):
        """Returns the paper's relative difference between the row and its rival, or nan."""
        own, rival = self.row.paper.get(self.model.name), None
        if self.row.against:
            rival = table.row(self.row.against).paper.get(self.model.name)
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
    """Returns a Measured for every row and every model of the scale."""
    measured = []
    for model in table.models_at(runs.scale):
        by_row = {}
        for row in table.rows:
            rate, equal_rate = runs.best_rate(table, row, model), runs.equal_rate(table, row, model)
            by_row[row.name] = Measured(row, model, runs.seeds(table, row, model, rate),
                                        runs.seeds(table, row, model, equal_rate),
                                        rate, equal_rate, runs.at_edge(table, row, model))
        for m in by_row.values():
            rival = by_row.get(m.row.against)
            if rival:
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


def lines_of(table, measured, model):
    """Returns the table's rows for one model; the variance only in the paper's table of variances."""
    rows = []
    for m in (m for m in measured if m.model is model):
        values, paper = perplexities(m.best), m.row.paper.get(model.name)
        has_variance = table.variance and len(values) > 1 and max(values) < math.inf
        rows.append([m.row.name, text_of_rate(m.rate, m.edge), str(len(values) or ""), text_of_perplexity(m.best),
                     f"{statistics.variance(values):.4f}" if has_variance else "", *texts_of(m.against_best),
                     *equal_texts(m), f"{paper:.2f}" if paper else "-",
                     f"{m.row.paper_variance[model.name]:.4f}" if table.variance else "",
                     percent(m.paper_difference(table))])
    return rows


def texts_of(comparison):
    if math.isnan(comparison.difference):
        return "", ""
    return text_of_difference(comparison), text_of_p(comparison.p)


def equal_texts(m):
    difference, p = texts_of(m.against_equal)
    return (f"{text_of_perplexity(m.equal)} ({text_of_rate(m.equal_rate)})" if difference else "", difference, p)


def describe(model):
    """Returns the model's flags of size and training, as "layers 4, channels 96, ..."."""
    return ", ".join(f"{flag} {value:g}" if isinstance(value, (int, float)) else f"{flag} {value}"
                     for flag, value in model.flags.items())


def without_empty_columns(header, rows):
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] not in ("", "-") for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def render(table, runs, formatted=as_markdown):
    """Returns the table as text, one part per model, with remarks."""
    measured, parts = measure(table, runs), []
    for name in table.models:
        model = runs.scale.models.get(name)
        if model is None:
            parts.append(f"{name}: not at this scale.")
            continue
        columns = without_empty_columns(HEADER, lines_of(table, measured, model))
        parts.append(f"{name} ({describe(model)}):\n\n{formatted(*columns)}")
    return "\n\n".join(parts + remarks(table, measured, runs))


def remarks(table, measured, runs):
    """Returns remarks on cells that ran with another engine or other options than the current ones."""
    results = {r.cell: r for m in measured for r in m.best + m.equal}
    today, notes = runs.engine(table.program), []
    engines = {r.engine for r in results.values()}
    if today and engines - {today}:
        notes.append(f"Ran with an engine that gives other bits than today's ({today}): "
                     f"{', '.join(sorted(engines - {today}))}.")
    elif len(engines) > 1:
        notes.append(f"Ran with engines that give different bits: {', '.join(sorted(engines))}.")
    cells = {runs.name(c): c for m in measured for c in runs.cells(table, m.row, m.model, {m.rate, m.equal_rate})}
    changed = sorted(name for name, r in results.items() if r.options != runs.options(cells[name]))
    if changed:
        notes.append(f"Ran with other options than the table now has: {', '.join(changed)}.")
    return notes


def verdict(table, measured):
    """Returns (comparison, the paper's difference or "-", our answer from pairs of one seed) for each comparison."""
    sentences = []
    for m in (m for m in measured if m.row.against):
        claimed, comparison = m.paper_difference(table), m.against_best
        if math.isnan(comparison.difference):
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
