"""Tests whether two methods differ: by pairs if runs share seeds, otherwise by Welch's t test. Corrects p by Holm."""

import dataclasses
import math
import statistics


@dataclasses.dataclass
class Comparison:
    """The comparison of two methods' losses. A field is nan if there are too few runs."""
    method: str = ""             # "pairs", "Welch" or "" if there is nothing to compare
    n: int = 0                   # number of pairs; for Welch's test: of all runs of both methods
    difference: float = math.nan  # of the means of the losses; for pairs: mean difference
    low: float = math.nan        # 95% interval of the difference, not corrected
    high: float = math.nan
    p: float = math.nan          # two-sided


def student_p(t, freedom):
    """Returns the two-sided p value of Student's distribution with 1 to 1000 (also fractional) degrees of freedom."""
    # With t = sqrt(freedom) / tan(x) the density is sin(x)^(freedom - 1) up to a constant, and p is its share below x.
    # Integrates over s with x = s^3 by Simpson's rule, because sin(x)^(freedom - 1) is not smooth at 0.
    n = 2000

    def integral(to):
        h = to ** (1 / 3) / n
        weights = (1 if i in (0, n) else 4 if i % 2 else 2 for i in range(n + 1))
        return h / 3 * sum(w * 3 * (i * h) ** 2 * math.sin((i * h) ** 3) ** (freedom - 1)
                           for i, w in enumerate(weights))

    return integral(math.atan2(math.sqrt(freedom), abs(t))) / integral(math.pi / 2)


def student_t(p, freedom):
    """Returns the t with this two-sided p value: half the width of an interval, in standard errors."""
    low, high = 0.0, 1.0
    while student_p(high, freedom) > p:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > p else (low, middle)
    return (low + high) / 2


def judged(method, n, difference, error, freedom):
    """Returns the Comparison for a difference with this standard error."""
    if error == 0:
        return Comparison(method, n, difference, difference, difference, 1.0 if difference == 0 else 0.0)
    half = student_t(0.05, freedom) * error
    return Comparison(method, n, difference, difference - half, difference + half,
                      student_p(difference / error, freedom))


def paired(differences):
    """Performs Student's t test on pairs, from their differences (at least one)."""
    mean, n = statistics.mean(differences), len(differences)
    if n < 2:
        return Comparison("pairs", n, mean)
    return judged("pairs", n, mean, statistics.stdev(differences) / math.sqrt(n), n - 1)


def welch(a, b):
    """Performs Welch's t test on two independent samples (unequal variances) of at least one value each."""
    difference, n = statistics.mean(a) - statistics.mean(b), len(a) + len(b)
    if len(a) < 2 or len(b) < 2:
        return Comparison("Welch", n, difference)
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    share = va / (va + vb) if va + vb else 0.5
    freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    return judged("Welch", n, difference, math.sqrt(va + vb), freedom)


def compared(losses, others, pairs=True):
    """Compares {seed: loss} with {seed: loss}: by pairs if `pairs` is set (runs of one seed have the same initial
    weights and batches) and at least two seeds are common, otherwise by Welch's test."""
    shared = sorted(losses.keys() & others.keys()) if pairs else []
    if len(shared) > 1 or len(shared) == len(losses) == len(others) == 1:
        return paired([losses[seed] - others[seed] for seed in shared])
    return welch(list(losses.values()), list(others.values())) if losses and others else Comparison()


def holm(p_values):
    """Returns the p values corrected for their number (Holm): the smallest times n, the next times n - 1, ..., never
    decreasing. nan values stay and are not counted."""
    known = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=p_values.__getitem__)
    corrected, least = list(p_values), 0.0
    for rank, i in enumerate(known):
        corrected[i] = least = min(1.0, max(least, p_values[i] * (len(known) - rank)))
    return corrected


def correct(comparisons):
    """Replaces p of the comparisons by p corrected for their number."""
    for comparison, p in zip(comparisons, holm([c.p for c in comparisons])):
        comparison.p = p
