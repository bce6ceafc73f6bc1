"""What models of the last tokens say about a folder of shards: the losses that a trained model has to beat."""

import array
import collections
import math
import operator
import os

from common.run_folder import BadRun, read_object

NAMES = ("unigram", "bigram", "trigram")
HEADER_BYTES = 1024
MOST_TOKENS = 20_000_000  # of the training text that are counted; more would need gigabytes


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


def keys_of(tokens, length, vocabulary):
    """Yields a number for each `length` tokens in a row."""
    keys = iter(tokens)
    for after in range(1, length):
        keys = map(operator.add, map(vocabulary.__mul__, keys), tokens[after:])
    return keys


def discounted(train, val, length, vocabulary, shorter):
    """Returns the probability of each token of `val` behind length - 1 others: absolute discounting by Ney's estimate,
    whose remainder goes to the probabilities `shorter` of the model that sees a token less. The first tokens, which
    have fewer before them, keep those."""
    contexts = list(keys_of(val, length - 1, vocabulary))[:-1]
    needed = set(contexts)
    counts = collections.Counter(key for key in keys_of(train, length, vocabulary) if key // vocabulary in needed)
    totals, kinds = collections.Counter(), collections.Counter()
    for key, count in counts.items():
        totals[key // vocabulary] += count
        kinds[key // vocabulary] += 1
    seen = collections.Counter(counts.values())
    discount = seen[1] / (seen[1] + 2 * seen[2]) if seen[1] else 0.5
    found = shorter[:length - 1]
    for context, key, rest in zip(contexts, keys_of(val, length, vocabulary), shorter[length - 1:]):
        total = totals[context]
        kept = max(0, counts[key] - discount) / total if counts[key] else 0
        found.append(kept + discount * kinds[context] / total * rest if total else rest)
    return found


def losses(train, val, vocabulary):
    """Returns {name: nats per token of `val` but the first} of models fitted to `train`."""
    train = train[:MOST_TOKENS]
    counts = collections.Counter(train)
    probabilities = [(counts[token] + 0.1) / (len(train) + 0.1 * vocabulary) for token in val]
    found = {}
    for length, name in enumerate(NAMES, 1):
        if length > 1:
            probabilities = discounted(train, val, length, vocabulary, probabilities)
        found[name] = -math.fsum(map(math.log, probabilities[1:])) / (len(val) - 1)
    return found


def measures(folder):
    """Returns the losses for the folder's validation tokens, and bits per byte of one nat per token."""
    path = os.path.join(folder, "manifest.json")
    manifest = read_object(path, {"vocab_size": int, "shards": list})
    try:
        train, val = (tokens_of(folder, manifest, split) for split in ("train", "val"))
        # Without them the shards are make_corpus.py's: a token is a byte.
        text_bytes = sum(s.get("text_bytes", s["tokens"]) for s in manifest["shards"] if s["split"] == "val")
        return losses(train, val, manifest["vocab_size"]), (len(val) - 1) / text_bytes / math.log(2)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        raise BadRun(f"{path}: these shards are damaged; verify them by prepare.py") from None
