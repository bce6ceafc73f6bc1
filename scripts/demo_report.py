#!/usr/bin/env python3
"""Compares the validation loss of finished runs with those of models of the last tokens of their data.

    scripts/demo_report.py --data build/shakespeare --must-beat bigram runs/demo-*/teon

Prints nats per token and bits per byte. Exit status 1 if a run did not end below --must-beat.
"""
if __name__ == "__main__":
    from common import startup

    startup.begin()

import sys

from common import ngrams
from common.arguments import Parser
from common.run_folder import BadRun, open_run


def main():
    parser = Parser(__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="the runs' shards, of uint16 tokens")
    parser.add_argument("--must-beat", required=True, choices=ngrams.NAMES)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    options = parser.parse_args()
    losses, bits = ngrams.measures(options.data)

    rows = [(f"{name} model", losses[name]) for name in ngrams.NAMES]
    failed = []
    for run in options.runs:
        evals = open_run(run)[1].of_kind("eval")
        loss = evals[-1]["val_loss"] if evals and evals[-1]["val_loss"] is not None else float("nan")
        rows.append((run.rstrip("/"), loss))
        if not loss < losses[options.must_beat]:
            failed.append(f"{run} did not get below the {options.must_beat} model")

    width = max(len(name) for name, _ in rows)
    print(f"\n{'validation loss':{width}}  nats/token  bits/byte")
    for name, loss in rows:
        print(f"{name:{width}}  {loss:10.3f}  {loss * bits:9.3f}")
    for line in failed:
        print(f"demo: failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1}))
