#!/usr/bin/env python3
"""Compares training runs:

    python3 scripts/compare.py runs/demo-*        runs, and folders that contain runs

Prints a table and writes it to compare/ beside the runs (--out) as compare.md, with loss.png (validation loss against
steps, tokens and time) and alignment.png (the measurements of --diagnose-every) if matplotlib is installed. Runs that
differ only in their seed share a row. Each row is compared with the first one (--baseline): by pairs if seeds
coincide, otherwise by Welch's t test. If rows differ in their learning rate, a second table has each method's best
rate, and rates.png the loss against the rate. compare.html has all of it in one file. If tokenizers differ, bits per
byte are compared instead of nats per token. Names and omits runs that are unfinished (and draws their validation
losses so far), damaged, not finite, duplicates, or validated on other text. Exit status: 0; 1 if a run was omitted for
another reason than being unfinished or a duplicate, or if no run remains; 2 usage.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import math
import os
import statistics
import sys

from common import page
from common.arguments import Parser, decimal
from common.run_folder import BadRun, Unfinished, finite, short
from common.startup import printable
from common.written_files import replacing
from experiments.groups import comparisons, group_runs, methods_of, reach, with_baseline_first
from experiments.runs import Diverged, Duplicate, in_bits_per_byte, perplexity, read_runs
from experiments.tables import as_markdown, as_text, mean_spread, text_of_p

from experiments import EXIT_STATUS, Fault, figures


def columns_of_comparison(compared):
    """Returns the header of the columns that compare rows with the first one, and their cells for each row. Interval, p
    and test only if a row has several seeds."""
    header, rows = ["vs first", "95% interval", "p", "test"], []
    for c in compared:
        rows.append([""] * 4 if c is None else [
            f"{c.difference:+.4f}", "-" if math.isnan(c.low) else f"{c.low:+.4f} to {c.high:+.4f}", text_of_p(c.p),
            f"{c.n} pair{'s' * (c.n > 1)}" if c.method == "pairs" else c.method])
    shown = 0 if len(rows) == 1 else 4 if any(not math.isnan(c.p) for c in compared[1:]) else 1
    return header[:shown], [row[:shown] for row in rows]


def text_of_reach(group, target):
    """Returns how much training reached the target, as [steps, tokens, seconds]."""
    reached = [place for run in group.runs if (place := reach(run, target))]
    if len(reached) < len(group.runs):
        return [f"{len(reached)} of {len(group.runs)}" if reached else "not reached", "-", "-"]
    steps, tokens, seconds = map(statistics.mean, zip(*reached))
    return [f"{steps:.0f}", short(tokens), f"{seconds:.1f}"]


def table(groups, compared, target, bits=False):
    """Returns (header, rows). `bits`: losses are in bits per byte; perplexities, which are per token, are omitted."""
    comparison, cells_of_comparison = columns_of_comparison(compared)
    best = [mean_spread([min(m["loss"] for m in r.evals) for r in g.runs]) for g in groups]
    shows_best = best != [mean_spread(g.losses) for g in groups]
    header = ["run", "seeds", "bits/byte" if bits else "val loss", *["best"] * shows_best,
              *([] if bits else ["perplexity"]), *comparison, "steps to target", "tokens", "seconds", "tokens/s",
              "optimizer"]
    rows = []
    for g, best_of_group, cells in zip(groups, best, cells_of_comparison):
        later = {key: [x for r in g.runs for x in r.steps.column(key)[len(r.steps) // 10:]]
                 for key in ("tokens_per_s", "optimizer_ms", "ms")}
        rows.append([g.label, str(len(g.runs)), mean_spread(g.losses), *[best_of_group] * shows_best,
                     *([] if bits else [mean_spread(list(map(perplexity, g.losses)), 3)]), *cells,
                     *text_of_reach(g, target), short(statistics.median(later["tokens_per_s"])),
                     f"{100 * sum(later['optimizer_ms']) / sum(later['ms']):.1f}%"])
    return header, rows


def table_of_methods(methods, bits=False):
    """Returns (header, rows, notes) of each method's best rate."""
    comparison, cells_of_comparison = columns_of_comparison(comparisons([m.best for m in methods]))
    header = ["method", "rates", "best rate", "lies inside", "seeds", "bits/byte" if bits else "val loss", *comparison]
    rows = []
    for m, cells in zip(methods, cells_of_comparison):
        end = "lowest" if m.best_rate == m.rates[0] else "highest"
        rows.append([m.label, f"{m.rates[0]:g} to {m.rates[-1]:g} ({len(m.rates)})" if len(m.rates) > 1 else "1",
                     f"{m.best_rate:g}", "yes" if m.inside else f"no: the {end}" if len(m.rates) > 1 else "-",
                     str(len(m.best.runs)), mean_spread(m.best.losses), *cells])
    lines = ["Each method at its best learning rate, the one with the lowest mean validation loss."]
    if diverged := [f"{m.label} at {', '.join(f'{r:g}' for r in sorted(m.diverged))}" for m in methods if m.diverged]:
        lines.append(f"Diverged: {'; '.join(diverged)}.")
    if ends := [m.label for m in methods if len(m.rates) > 1 and not m.inside]:
        lines.append(f"The best rate of {', '.join(ends)} is an end of its rates; a better one may lie beyond "
                     "(sweep.py --extend-grid).")
    return header, rows, list(map(printable, lines))


def note_of_stacking(groups):
    """Returns what alignment.png says: by how much stacking could increase the update, by role."""
    gains = {}
    for d in (d for g in groups for r in g.runs for d in r.diagnoses if 2 * d["step"] >= r.diagnoses[-1]["step"]):
        if finite(d["norm_ratio"]):
            gains.setdefault(d["role"], []).append(d["norm_ratio"])
    shares = ", ".join(f"{role} {statistics.fmean(values):.2f}" for role, values in gains.items())
    return ["Possible gain of stacking layers (1: none; slices' nuclear norms over the unfolding's), mean of the "
            f"second half: {shares}."] * bool(gains)


def notes(groups, compared, target, bits):
    """Returns lines that explain the table's columns, and the remarks on its runs."""
    unit = "bits per byte, as tokenizers differ" if bits else "nats per token"
    lines = [f"Validation loss in {unit}, mean ± standard deviation over seeds; target: validation loss {target:.4f}.",
             "best: lowest loss of all evaluations, if another than the last; tokens, seconds: until the target; "
             "optimizer: its share of a step's time."]
    if max(len(g.runs) for g in groups) == 1 < len(groups):
        lines.append("One seed each: another seed may turn a difference of this size around; two or more seeds tell "
                     "(sweep.py --seeds 1,2,3).")
    tested = [c.method for c in compared[1:] if not math.isnan(c.p)]
    used = [name for method, name in (("pairs", "Student's t test on pairs of one seed"),
                                      ("Welch", "Welch's t test of independent runs, where seeds do not pair"))
            if method in tested]
    if used:
        lines.append(f"vs first: mean difference and its 95% interval, by {' or '.join(used)}; p corrected over "
                     f"{len(tested)} comparison{'s' * (len(tested) > 1)} (Holm).")
    sizes = sorted({r.evals[-1]["val_bytes"] for g in groups for r in g.runs if "val_bytes" in r.evals[-1]})
    if bits and len(sizes) > 1:
        lines.append(f"Runs were validated on {sizes[0]:,} to {sizes[-1]:,} bytes of the same text.")
    lines += note_of_stacking(groups)
    return lines + [printable(f"{remark}.") for g in groups for r in g.runs for remark in r.remarks]


def default_out(runs):
    """Returns the folder beside the runs for compare.py's output: compare/ in the deepest folder that has all runs."""
    top = os.path.commonpath([os.path.dirname(os.path.abspath(run.folder)) for run in runs])
    if top == os.path.sep:
        return "compare"
    relative = os.path.relpath(top)
    return os.path.normpath(os.path.join(top if relative.startswith("..") else relative, "compare"))


def draw(groups, methods, out, bits):
    """Draws all figures and returns their names. After a sweep, curves are those of each method's best rate."""
    try:
        figures.pyplot()
    except Fault:
        print("compare.py: no plots: matplotlib is not installed (make setup)", file=sys.stderr)
        return []
    groups = [m.best for m in methods] or groups
    drawn = {"loss.png": figures.plot_losses(groups, os.path.join(out, "loss.png"), bits),
             "rates.png": methods and figures.plot_rates(methods, os.path.join(out, "rates.png"), bits),
             "alignment.png": figures.plot_alignment(groups, os.path.join(out, "alignment.png"))}
    return [name for name, is_drawn in drawn.items() if is_drawn]


def curves_of(groups, unfinished):
    """Returns {name: [(step, validation loss)]}, the mean over seeds; of unfinished runs the losses so far."""
    curves = {g.label: [(step, statistics.fmean(losses)) for step, losses in
                        sorted(figures.losses_of(g, "steps").items())] for g in groups}
    return curves | {f"{fault.folder}, so far": fault.curve for fault in unfinished if fault.curve}


def write_page(path, parts, curves, pictures, bits):
    """Writes tables, notes, curves and the pictures, which are PNG files, as one page."""
    tables = "".join(page.table(rows, header) + "".join(map(page.text, lines)) for header, rows, lines in parts)
    page.write(path, "Runs, compared", [
        ("Results", tables),
        ("Validation loss", page.curves_as_svg(curves, "steps", "bits per byte" if bits else "nats per token")),
        *((os.path.splitext(os.path.basename(name))[0].capitalize(), page.picture(name, name)) for name in pictures)])


def main(words=None):
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run or of several runs, or a glob")
    parser.add_argument("--baseline", metavar="ROW",
                        help="compare with this row instead of the first one: an optimizer (its best row), a row's "
                             "name or the folder of a run")
    parser.add_argument("--target", type=decimal(),
                        help="validation loss to reach (default: the first row's final one)")
    parser.add_argument("--out", help="folder for compare.md and the plots (default: compare/ beside the runs)")
    args = parser.parse_args(words)
    runs, faults = read_runs(args.runs)
    for fault in faults:
        print(printable(f"compare.py: left out: {fault}"), file=sys.stderr)
    unfinished = [fault for fault in faults if isinstance(fault, Unfinished)]
    if not runs:
        if curves := curves_of([], unfinished):
            print("\n".join(page.curves_as_text(curves, "steps")))
        raise BadRun("no finished run among these")
    groups = group_runs(runs)
    if args.baseline is not None:
        groups = with_baseline_first(groups, args.baseline)
    target = args.target
    if target is None:
        target = max(groups[0].losses)
    bits, compared = in_bits_per_byte(runs), comparisons(groups)
    methods = methods_of(groups, [fault.run for fault in faults if isinstance(fault, Diverged)])
    parts = [(*table(groups, compared, target, bits), notes(groups, compared, target, bits))]
    if methods:
        parts.append(table_of_methods(methods, bits))
    print("\n\n".join("\n".join([as_text(header, rows), *lines]) for header, rows, lines in parts))
    out = default_out(runs) if args.out is None else args.out
    os.makedirs(out, exist_ok=True)
    with replacing(os.path.join(out, "compare.md")) as file:
        file.write("\n".join("\n\n".join([as_markdown(header, rows), "\n".join(lines) + "\n"])
                             for header, rows, lines in parts))
    drawn = draw(groups, methods, out, bits)
    curves = curves_of([m.best for m in methods] or groups, [] if bits else unfinished)
    write_page(os.path.join(out, "compare.html"), parts, curves,
               [os.path.join(out, name) for name in drawn if name != "loss.png"], bits)
    written = ["compare.md", "compare.html", *drawn]
    print(f"written: {', '.join(os.path.join(out, name) for name in written)}")
    return int(any(not isinstance(fault, (Unfinished, Duplicate)) for fault in faults))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, EXIT_STATUS))
