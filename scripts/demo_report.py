#!/usr/bin/env python3
"""Compares finished runs on the corpus of make_corpus.py with its baselines.

    scripts/demo_report.py --baselines build/corpus/baselines.json --must-beat bigram runs/demo-adamw-...

Prints validation loss in nats per token and bits per byte. Exit status 1 if a run did not end below --must-beat.
"""
import argparse
import json
import os
import sys


def read_metrics(run):
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baselines", required=True, metavar="FILE")
    parser.add_argument("--must-beat", required=True, choices=("uniform", "unigram", "bigram"))
    parser.add_argument("runs", nargs="+", metavar="RUN")
    options = parser.parse_args()
    with open(options.baselines, encoding="utf-8") as file:
        table = json.load(file)
    baselines, bits = table["nats_per_token"], table["bits_per_byte_per_nat"]

    runs = {run.rstrip("/"): read_metrics(run) for run in options.runs}
    rows = [(f"{name} model", baselines[name]) for name in ("unigram", "bigram")]
    failed = []
    for run, lines in runs.items():
        losses = [line["val_loss"] for line in lines if line["kind"] == "eval"]
        loss = losses[-1] if losses and losses[-1] is not None else float("nan")
        rows.append((run, loss))
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
    sys.exit(main())
