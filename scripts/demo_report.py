#!/usr/bin/env python3
"""Compares the validation loss of finished runs with that of a unigram and a bigram model of their data.

    scripts/demo_report.py --data build/shakespeare --must-beat bigram runs/demo-*/teon

Prints nats per token and bits per byte. Exit status 1 if a run did not end below --must-beat.
"""
if __name__ == "__main__":
    from common import startup

    startup.begin()

import array
import collections
import math
import os
import sys

from common.arguments import Parser
from common.run_folder import BadRun, open_run, read_object

MODELS = ("unigram", "bigram")
HEADER_BYTES = 1024
PRIOR = 100  # weight of the unigram model in the bigram model, in tokens after each context


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadRun(f"{path}: {error.strerror}") from None


def tokens_of(folder, manifest, split):
    """Returns the uint16 tokens of the folder's shards of this split."""
    tokens, shards = array.array("H"), [shard for shard in manifest["shards"] if shard["split"] == split]
    for shard in shards:
        tokens.frombytes(read_bytes(os.path.join(folder, shard["file"]))[HEADER_BYTES:])
    if len(tokens) != sum(shard["tokens"] for shard in shards):
        raise ValueError("other tokens than the manifest says")
    return tokens


def baselines(train, val, vocabulary):
    """Returns the mean nats per predicted token of `val` for models fitted to `train`."""
    unigram, pairs = collections.Counter(train), collections.Counter(zip(train, train[1:]))
    contexts = collections.Counter(train[:-1])

    def share(token):
        return (unigram[token] + 0.1) / (len(train) + 0.1 * vocabulary)

    losses = dict.fromkeys(MODELS, 0.0)
    for before, token in zip(val, val[1:]):
        losses["unigram"] -= math.log(share(token))
        losses["bigram"] -= math.log((pairs[before, token] + PRIOR * share(token)) / (contexts[before] + PRIOR))
    return {name: loss / (len(val) - 1) for name, loss in losses.items()}


def measures(folder):
    """Returns the baselines of the folder's validation tokens, and bits per byte of one nat per token."""
    path = os.path.join(folder, "manifest.json")
    manifest = read_object(path, {"vocab_size": int, "shards": list})
    try:
        train, val = (tokens_of(folder, manifest, split) for split in ("train", "val"))
        # Without them the shards are make_corpus.py's: a token is a byte.
        text_bytes = sum(s.get("text_bytes", s["tokens"]) for s in manifest["shards"] if s["split"] == "val")
        return baselines(train, val, manifest["vocab_size"]), (len(val) - 1) / text_bytes / math.log(2)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        raise BadRun(f"{path}: these shards are damaged; verify them by prepare.py") from None


def main():
    parser = Parser(__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="the runs' shards, of uint16 tokens")
    parser.add_argument("--must-beat", required=True, choices=MODELS)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    options = parser.parse_args()
    losses, bits = measures(options.data)

    rows = [(f"{name} model", losses[name]) for name in MODELS]
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
