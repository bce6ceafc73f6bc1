"""Tables of results as text and as Markdown, and the numbers in them."""

import math
import statistics

from common.live import terminal_size
from common.run_folder import finite


def mean_spread(values, digits=4):
    """Returns the mean as text, with the standard deviation if there are several values and all are finite."""
    mean = text_of_number(statistics.fmean(values), digits)
    if len(values) == 1 or not all(map(finite, values)):
        return mean
    return f"{mean} ± {text_of_number(statistics.stdev(values), digits)}"


def text_of_number(x, digits):
    """Returns the number with these digits after the point; a huge one, of a run that diverged, with few digits."""
    if math.isinf(x):
        return "over 1e304"  # a perplexity; losses in a log are finite
    return f"{x:.{digits}f}" if abs(x) < 1e7 else f"{x:.4g}"


def text_of_p(p):
    return "-" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def percent(x):
    return "" if math.isnan(x) else f"{100 * x:+.1f}%"


def as_text(header, rows):
    """Returns the table as text that fits the terminal, or 100 characters without one, if possible. Columns that do not
    fit follow below, with the first column repeated."""
    terminal = terminal_size((100, 24))[0]
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    parts = [[0]]
    for i in range(1, len(header)):
        if len(parts[-1]) > 1 and sum(widths[j] + 2 for j in parts[-1]) + widths[i] > terminal:
            parts.append([0])
        parts[-1].append(i)
    return "\n\n".join("\n".join("  ".join(row[i].rjust(widths[i]) if i else row[i].ljust(widths[i]) for i in part)
                                 for row in [header, *rows])
                       for part in parts)


def as_markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])
