#!/usr/bin/env python3
"""Compares finished runs on make_corpus.py's corpus with the corpus's baselines.

    scripts/demo_report.py --baselines build/corpus/baselines.json --must-beat bigram runs/demo-adamw-...

Prints validation loss in nats per token and bits per byte. Exit status 1 if a run did not end below --must-beat.
"""
if __name__ == "__main__":
    import startup

    startup.begin()

import sys

from arguments import Parser
from run_folder import BadRun, open_run, read_object

MODELS = ("uniform", "unigram", "bigram")


def main():
    parser = Parser(__doc__)
    parser.add_argument("--baselines", required=True, metavar="FILE")
    parser.add_argument("--must-beat", required=True, choices=MODELS)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    options = parser.parse_args()
    table = read_object(options.baselines,
                        [("bits_per_byte_per_nat", float)] + [(f"nats_per_token.{m}", float) for m in MODELS])
    baselines, bits = table["nats_per_token"], table["bits_per_byte_per_nat"]

    rows = [(f"{name} model", baselines[name]) for name in ("unigram", "bigram")]
    failed = []
    for run in options.runs:
        evals = open_run(run)[1].of_kind("eval")
        loss = evals[-1]["val_loss"] if evals and evals[-1]["val_loss"] is not None else float("nan")
        rows.append((run.rstrip("/"), loss))
        if not loss < baselines[options.must_beat]:
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
