#!/usr/bin/env python3
"""Reproduces the tables and figures of the Teon paper (arXiv 2601.23261).

    python3 scripts/reproduce.py list                          the tables, and how much of each has run
    python3 scripts/reproduce.py show gpt                      one table's rows, flags and the paper's figures
    python3 scripts/reproduce.py run gpt_controls              runs its missing cells
    python3 scripts/reproduce.py table gpt_controls            prints the measured table
    python3 scripts/reproduce.py figure gpt_controls rates     or validation, training, alignment, time, forest
    python3 scripts/reproduce.py all                           runs every table, then `report`
    python3 scripts/reproduce.py all --estimate --scale full   estimates the time, memory and disk of that
    python3 scripts/reproduce.py report                        writes OUT/SCALE/report.md from the finished cells

Scales: cpu (one CPU core, three hours per table), small (one GPU, an hour per table), full (the paper). Text comes
from FineWeb, or from --text and --val-text. After an interruption, run the same command again to continue; finished
cells are kept. Tables are experiments/*.toml.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import os
import sys

from common.arguments import Parser, decimal
from experiments.figures import pyplot
from experiments.tables import as_text

from experiments import EXIT_STATUS, Fault, paper, paper_figures, paper_runs, paper_tables, report


def show(table, scale):
    print(f"{table.title}\n{table.place}\n{table.claim}\n")
    for model in table.models:
        here = scale.models.get(model)
        print(f"{model}: {paper_tables.describe(here) if here else f'not at scale {scale.name}'}")
    print()
    for row in table.rows:
        flags = " ".join(f"--{k} {v}" for k, v in (table.flags | row.flags).items())
        published = ", ".join(f"{model} {value:.2f}" for model, value in row.paper.items())
        print(f"{row.name}\n    {flags}" + (f"\n    paper: {published}" if published else "")
              + (f"\n    against {row.against}" if row.against else ""))


def run(tables, state):
    state.may_run = True
    for table in tables:
        print(f"{table.id}: {table.title}", flush=True)
        paper_tables.measure(table, state)
    if state.failed:
        print(f"reproduce.py: failed: {', '.join(state.failed)}", file=sys.stderr)
    state.may_run = False


def draw(table, name, state):
    names = [name] if name else list(paper_figures.FIGURES)
    if any(name not in paper_figures.FIGURES for name in names):
        raise Fault(f"{name}: no such figure; the figures are {', '.join(paper_figures.FIGURES)}")
    measured = paper_tables.measure(table, state)
    for name in names:
        path = paper_figures.draw(name, measured, os.path.join(state.out, "figures"))
        print(path or f"{name}: none of its cells has run")


def parse():
    parser = Parser(__doc__)
    parser.add_argument("command", choices=["list", "show", "run", "table", "figure", "report", "all"])
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a file of experiments/ without .toml")
    parser.add_argument("figure", nargs="?", metavar="FIGURE", help=", ".join(paper_figures.FIGURES))
    parser.add_argument("--scale", default="cpu", help="cpu (default), small or full")
    parser.add_argument("--out", default="runs/reproduce", help="folder of the runs (default runs/reproduce)")
    parser.add_argument("--results", default="", metavar="FILE",
                        help="records of the finished cells, one per line (default OUT/SCALE/results.jsonl)")
    parser.add_argument("--datasets", default="datasets/reproduce",
                        help="folder of the shards (default datasets/reproduce)")
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE", help="train on these files instead of FineWeb")
    parser.add_argument("--val-text", nargs="+", default=[], metavar="FILE",
                        help="and validate on these (default: a tenth of --text)")
    parser.add_argument("--estimate", action="store_true", help="run nothing; print an estimate of the cost")
    parser.add_argument("--tflops", type=decimal(1e-6, 1e9), default=400,
                        help="sustained rate of one device, for --estimate (default 400)")
    parser.add_argument("--experiments", default=os.path.join(paper.ROOT, "experiments"),
                        help="folder of other tables and scales")
    parser.add_argument("--report", default="", metavar="FILE",
                        help="the page of `report`, with its pictures in figures/ beside it (default "
                             "OUT/SCALE/report.md)")
    return parser.parse_args()


def choose(args, all_tables, scales):
    """Returns the scale, its tables and the chosen ones."""
    if args.scale not in scales:
        raise Fault(f"--scale {args.scale}: one of {', '.join(scales)}")
    scale, names = scales[args.scale], ", ".join(t.id for t in all_tables)
    if args.command in ("show", "run", "table", "figure") and not args.table:
        raise Fault(f"{args.command}: name a table: {names}")
    at_scale = [t for t in all_tables if t.models_at(scale)]
    chosen = [t for t in all_tables if t.id == args.table] if args.table else at_scale
    if args.table and not chosen:
        raise Fault(f"{args.table}: no such table; the tables are {names}")
    if not chosen:
        raise Fault(f"{args.experiments}: no table has a model at scale {scale.name}")
    if args.command != "show" and not chosen[0].models_at(scale):
        raise Fault(f"{args.table}: has no model at scale {scale.name}; it has some at "
                    f"{', '.join(name for name, s in scales.items() if chosen[0].models_at(s))}")
    return scale, at_scale, chosen


def main():
    args = parse()
    all_tables, scales = paper.load_tables(args.experiments), paper.load_scales(args.experiments)
    scale, at_scale, chosen = choose(args, all_tables, scales)
    state = paper_runs.Runs(scale, args.out, paper_runs.Data(scale, args.datasets, args.text, args.val_text),
                            args.results)
    if args.estimate:
        header, rows, total = report.costs(chosen, scale, args.tflops)
        print(as_text(header, rows))
        print(f"\n{total:.0f} hours at most on one device at {args.tflops:g} TFLOP/s; cells that several tables share "
              f"are counted in each.")
        return 0
    if args.command in ("figure", "report", "all"):
        pyplot()  # fails before the runs if matplotlib is missing
    if args.command == "list":
        for table in at_scale:
            measured = paper_tables.measure(table, state)
            print(f"{table.id:15} {table.title}; {table.place}: {sum(bool(m.best) for m in measured)} of "
                  f"{len(measured)} rows")
    if args.command == "show":
        show(chosen[0], scale)
    if args.command in ("run", "all"):
        run(chosen, state)
    if args.command in ("run", "table"):
        print(paper_tables.render(paper_tables.measure(chosen[0], state), state, as_text))
    if args.command == "figure":
        draw(chosen[0], args.figure, state)
    if args.command in ("report", "all"):
        page = args.report or os.path.join(state.out, "report.md")
        report.write(page, [paper_tables.measure(table, state) for table in at_scale], state,
                     report.costs(all_tables, scales.get("full", scale), args.tflops), args.tflops)
        print(f"written: {page}")
    return 1 if state.failed else 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, EXIT_STATUS, "stopped; run the same command to continue"))
