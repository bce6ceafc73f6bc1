"""Measures a table's rows: each method at its best rate and at the paper's equal rate, beside the paper's figures."""
import dataclasses
import math
import statistics

import compare
import significance
from significance import Comparison

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
    """The results that did not diverge."""
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
    found = []
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
        found += by_row.values()
    comparisons = [c for m in found for c in (m.against_best, m.against_equal)]
    for comparison, p in zip(comparisons, significance.holm([c.p for c in comparisons])):
        comparison.p = p
    return found


# ---- as text ---------------------------------------------------------------------------------------------------------


def text_of_perplexity(results):
    values = perplexities(results)
    if not values:
        return DIVERGED if results else NOT_RUN
    diverged = len(results) - len(values)
    return compare.mean_spread(values, 2) + (f", {diverged} {DIVERGED}" if diverged else "")


def text_of_rate(rate, edge=False):
    return "" if rate is None else f"{rate:g}" + (" (end of the grid)" if edge else "")


def percent(x):
    return "" if math.isnan(x) else f"{100 * x:+.1f}%"


def text_of_p(p):
    return "" if math.isnan(p) else "< .001" if p < 0.001 else f"{p:.3f}"[1:] if p < 1 else "1"


def text_of_difference(comparison):
    """Returns the difference in perplexity with its 95% interval, as "-2.1%, -2.6% to -1.7%"."""
    difference, low, high = (percent(relative(x)) for x in (comparison.difference, comparison.low, comparison.high))
    return f"{difference}, {low} to {high}" if low else difference


def texts_of(comparison):
    return text_of_difference(comparison), text_of_p(comparison.p)


HEADER = ["", "lr", "seeds", "perplexity", "against its rival", "p", "at equal lr", "against", "p", "paper", "against"]


def lines_of(table, found, model):
    rows = []
    for m in (m for m in found if m.model is model):
        equal = m.against_equal if not math.isnan(m.against_equal.difference) else None
        paper = m.row.paper.get(model.name)
        rows.append([m.row.name, text_of_rate(m.rate, m.edge), str(len(whole(m.best)) or ""),
                     text_of_perplexity(m.best), *texts_of(m.against_best),
                     f"{text_of_perplexity(m.equal)} ({text_of_rate(m.equal_rate)})" if equal else "",
                     *(texts_of(equal) if equal else ("", "")),
                     f"{paper:.2f}" if paper else "-", percent(m.paper_difference(table))])
    return rows


def variance_lines(table, found, model):
    """Returns rows in the layout of the paper's table of means and variances."""
    rows = []
    for m in (m for m in found if m.model is model):
        values = perplexities(m.best)
        paper, variance = m.row.paper.get(model.name), m.row.paper_variance.get(model.name)
        rows.append([m.row.name, text_of_rate(m.rate, m.edge), str(len(values) or ""),
                     f"{statistics.mean(values):.3f}" if values else text_of_perplexity(m.best),
                     f"{statistics.variance(values):.4f}" if len(values) > 1 and max(values) < math.inf else "",
                     *texts_of(m.against_best), f"{paper:.2f}", f"{variance:.4f}",
                     percent(m.paper_difference(table))])
    return rows


VARIANCE_HEADER = ["", "lr", "seeds", "mean perplexity", "variance", "against its rival", "p", "paper: mean",
                   "variance", "against"]


def describe(model):
    """Returns the model's flags of size and training, as "layers 4, channels 96, ..."."""
    return ", ".join(f"{flag} {value:g}" if isinstance(value, (int, float)) else f"{flag} {value}"
                     for flag, value in model.flags.items())


def without_empty_columns(header, rows):
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] not in ("", "-") for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def render(table, runs, formatted=compare.as_markdown):
    """Returns the table as text, one part per model, with remarks."""
    found = measure(table, runs)
    header, lines = (VARIANCE_HEADER, variance_lines) if table.variance else (HEADER, lines_of)
    parts = []
    for name in table.models:
        model = runs.scale.models.get(name)
        if model is None:
            parts.append(f"{name}: not at this scale.")
            continue
        columns = without_empty_columns(header, lines(table, found, model))
        parts.append(f"{name} ({describe(model)}):\n\n{formatted(*columns)}")
    return "\n\n".join(parts + remarks(table, found, runs))


def remarks(table, found, runs):
    """Returns remarks on cells that ran with another engine or other options than the current ones."""
    results = {r.cell: r for m in found for r in m.best + m.equal}
    today, notes = runs.engine(table.program), []
    engines = {r.engine for r in results.values()}
    if today and engines - {today}:
        notes.append(f"Ran with an engine that gives other bits than today's ({today}): "
                     f"{', '.join(sorted(engines - {today}))}.")
    elif len(engines) > 1:
        notes.append(f"Ran with engines that give different bits: {', '.join(sorted(engines))}.")
    cells = {runs.name(c): c for m in found for c in runs.cells(table, m.row, m.model, {m.rate, m.equal_rate})}
    changed = sorted(name for name, r in results.items() if r.options != runs.options(cells[name]))
    if changed:
        notes.append(f"Ran with other options than the table now has: {', '.join(changed)}.")
    return notes


def verdict(table, found):
    """Returns (comparison, the paper's difference or "-", our answer from pairs of one seed) for each comparison."""
    sentences = []
    for m in (m for m in found if m.row.against):
        claimed, measured = m.paper_difference(table), m.against_best
        known = not math.isnan(measured.difference)
        if not known:
            answer = DIVERGED if m.best and not whole(m.best) else NOT_RUN
        elif not measured.p < 0.05:
            answer = "not decided"
        elif math.isnan(claimed):
            answer = "lower" if measured.difference < 0 else "higher"
        elif (measured.difference < 0) == (claimed < 0):
            answer = "agrees in sign"
        else:
            answer = "the opposite"
        if known:
            answer += f" ({text_of_difference(measured)}, p {text_of_p(measured.p) or 'unknown: one seed'})"
        sentences.append((f"{m.model.name}: {m.row.name} against {m.row.against}", percent(claimed) or "-", answer))
    return sentences
