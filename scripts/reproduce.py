#!/usr/bin/env python3
"""Reproduces the tables and figures of the Teon paper (arXiv 2601.23261).

    python3 scripts/reproduce.py list                          the tables, and how much of each has run
    python3 scripts/reproduce.py show gpt                      one table's rows, flags and the paper's figures
    python3 scripts/reproduce.py run gpt --scale tiny          runs its missing cells
    python3 scripts/reproduce.py table gpt                     prints the measured table
    python3 scripts/reproduce.py figure gpt validation         or training, rates, alignment, time, forest
    python3 scripts/reproduce.py all --scale tiny              runs every table, then `report`
    python3 scripts/reproduce.py all --estimate --scale full   estimates the time, memory and disk of that
    python3 scripts/reproduce.py report                        writes docs/reproduction_tiny.md from the finished cells

Scales: tiny (two CPU cores, three hours for all), cpu (one CPU core, three hours per table), small (one GPU, an hour
per table), full (the paper). Text comes from FineWeb, or from --text and --val-text. After an interruption, run the
same command again to continue; finished cells are kept. Tables are experiments/*.toml.
"""
if __name__ == "__main__":
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compare
from arguments import Parser, decimal
from reproduction import estimate, figures, plan, report, runs, tables
from run_folder import short


def find(all_tables, name):
    for table in all_tables:
        if table.id == name:
            return table
    raise plan.Fault(f"{name}: no such table; the tables are {', '.join(t.id for t in all_tables)}")


def show(table, scale):
    print(f"{table.title}\n{table.place}\n{table.claim}\n")
    for model in table.models:
        here = scale.models.get(model)
        print(f"{model}: {tables.describe(here) if here else f'not at scale {scale.name}'}")
    print()
    for row in table.rows:
        flags = " ".join(f"--{k} {v}" for k, v in (table.flags | row.flags).items())
        paper = ", ".join(f"{model} {value:.2f}" for model, value in row.paper.items())
        print(f"{row.name}\n    {flags}" + (f"\n    paper: {paper}" if paper else "")
              + (f"\n    against {row.against}" if row.against else ""))


def progress(table, found):
    rows = sum(1 for m in found if m.best)
    return f"{rows} of {len(found)} rows" if found else "not at this scale"


def costs(all_tables, scale, tflops):
    """Returns (header, rows, total hours) of a scale's cost by table. Tables share cells, so the total is an upper
    bound."""
    header, rows, total, known = ["table", "model", "cells", "parameters", "tokens", "GiB on the device", "GiB of disk",
                                  "hours"], [], 0, {}
    for table in all_tables:
        for name, cells in estimate.cells_of(table, scale).items():
            key = (table.program, name)
            known[key] = known.get(key) or estimate.of_model(table.program, scale.models[name],
                                                             scale.vocabulary[table.program], 1)
            cost = known[key]
            hours = cells * cost.hours(tflops)
            total += hours
            rows.append([table.id, name, str(cells), short(cost.parameters), short(cost.tokens),
                         f"{cost.memory / 2**30:.1f}", f"{cells * cost.disk / 2**30:.1f}", f"{hours:.1f}"])
    return header, rows, total


def main():
    parser = Parser(__doc__)
    parser.add_argument("command", choices=["list", "show", "run", "table", "figure", "report", "all"])
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a file of experiments/ without .toml")
    parser.add_argument("figure", nargs="?", metavar="FIGURE", help=", ".join(figures.FIGURES))
    parser.add_argument("--scale", default="tiny", help="tiny (default), cpu, small or full")
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
    parser.add_argument("--experiments", default=os.path.join(plan.ROOT, "experiments"),
                        help="folder of other tables and scales")
    parser.add_argument("--report", default="", help="(default docs/reproduction_SCALE.md)")
    args = parser.parse_args()

    all_tables, scales = plan.load_tables(args.experiments), plan.load_scales(args.experiments)
    if args.scale not in scales:
        raise plan.Fault(f"--scale {args.scale}: one of {', '.join(scales)}")
    scale = scales[args.scale]
    if args.command in ("show", "run", "table", "figure") and not args.table:
        raise plan.Fault(f"{args.command}: name a table: {', '.join(t.id for t in all_tables)}")
    at_scale = [t for t in all_tables if t.models_at(scale)]
    chosen = [find(all_tables, args.table)] if args.table else at_scale
    if not chosen:
        raise plan.Fault(f"{args.experiments}: no table has a model at scale {scale.name}")
    if args.command != "show" and not chosen[0].models_at(scale):
        raise plan.Fault(f"{args.table}: has no model at scale {scale.name}; it has some at "
                         f"{', '.join(name for name, s in scales.items() if chosen[0].models_at(s))}")
    data = runs.Data(scale, args.datasets, args.text, args.val_text)
    state = runs.Runs(scale, args.out, data, args.results)

    if args.command in ("figure", "report", "all") and not args.estimate:
        figures.pyplot()  # fails before the runs if matplotlib is missing
    if args.estimate:
        header, rows, total = costs(chosen, scale, args.tflops)
        print(compare.as_text(header, rows))
        print(f"\n{total:.0f} hours at most on one device at {args.tflops:g} TFLOP/s; cells that several tables share "
              f"are counted in each.")
    elif args.command == "list":
        for table in at_scale:
            print(f"{table.id:15} {table.title}; {table.place}: {progress(table, tables.measure(table, state))}")
    elif args.command == "show":
        show(chosen[0], scale)
    elif args.command in ("run", "all"):
        state.may_run = True
        for table in chosen:
            print(f"{table.id}: {table.title}", flush=True)
            state.everything(table)
        if state.failed:
            print(f"reproduce.py: failed: {', '.join(state.failed)}", file=sys.stderr)
        state.may_run = False
        if args.command == "run":
            print(tables.render(chosen[0], state, compare.as_text))
    elif args.command == "table":
        print(tables.render(chosen[0], state, compare.as_text))
    elif args.command == "figure":
        wanted = [args.figure] if args.figure else list(figures.FIGURES)
        if any(name not in figures.FIGURES for name in wanted):
            raise plan.Fault(f"{args.figure}: no such figure; the figures are {', '.join(figures.FIGURES)}")
        for name in wanted:
            path = figures.draw(name, chosen[0], state, os.path.join(state.out, "figures"))
            print(path or f"{name}: none of its cells has run")
    if args.command in ("report", "all") and not args.estimate:
        header, rows, total = costs(all_tables, scales.get("full", scale), args.tflops)
        lines = [compare.as_markdown(header, rows), "",
                 f"At most {total:.0f} hours on one GPU that sustains {args.tflops:g} TFLOP/s "
                 "(6 FLOPs per parameter and token); cells that several tables share are counted in each. "
                 "`reproduce.py all --estimate --scale full` prints it."]
        page = args.report or os.path.join(plan.ROOT, "docs", f"reproduction_{scale.name}.md")
        report.write(page, at_scale, state, lines)
        print(f"written: {page}")
    return 1 if state.failed else 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {plan.Fault: 2}, "stopped; run the same command to continue"))
