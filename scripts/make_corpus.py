#!/usr/bin/env python3
"""Makes a corpus from the sources of Python's standard library, which every machine with Python has.

    scripts/make_corpus.py build/corpus

Writes stdlib_train_000000.bin and stdlib_val_000000.bin (token shards in llm.c's layout: 256 little-endian int32 with
magic 20240520, version 1 and the token count, then uint16 tokens), manifest.json, prepare.py's tokenizer/ for `bytes`,
and baselines.json: the validation loss of a unigram and a bigram model fitted to the training split. A token is a byte;
token 256 begins each file. The hash of a file's name determines its split. The same version of Python always gives the
same shards. Needs only Python.
"""
if __name__ == "__main__":
    import startup

    startup.begin()

import collections
import hashlib
import json
import math
import os
import platform
import struct
import sys
import sysconfig

from written_files import replacing

DELIMITER = 256
VOCAB_SIZE = 257
VALIDATION_PERCENT = 5
LARGEST_FILE = 300_000  # bytes; larger files are tables, not programs
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages", "encodings",
                   "pydoc_data"}
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024


def source_files(root):
    """Yields (name, contents) of the standard library's programs, sorted by name, without tests and tables."""
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
        names += [os.path.relpath(os.path.join(folder, f), root).replace(os.sep, "/") for f in files
                  if f.endswith(".py")]
    for name in sorted(names):
        with open(os.path.join(root, name), "rb") as file:
            text = file.read()
        letters = sum(map(text.count, b"etaoinsrhldcum"))  # the most frequent letters: about half of a program
        if 0 < len(text) <= LARGEST_FILE and letters > 0.35 * len(text):
            yield name, text


def split_of(name):
    return "val" if hashlib.sha256(name.encode()).digest()[0] * 100 < VALIDATION_PERCENT * 256 else "train"


def write_shard(path, documents):
    """Writes the documents, each after a delimiter, as one shard; returns its entry in the manifest."""
    tokens = bytearray()
    for text in documents:
        tokens += struct.pack("<H", DELIMITER)
        wide = bytearray(2 * len(text))
        wide[::2] = text
        tokens += wide
    shard = struct.pack("<3i", MAGIC, VERSION, len(tokens) // 2).ljust(HEADER_BYTES, b"\0") + tokens
    with replacing(path, "wb") as file:
        file.write(shard)
    return {"file": os.path.basename(path), "tokens": len(tokens) // 2, "documents": len(documents),
            "bytes": len(shard), "text_bytes": sum(map(len, documents)), "sha256": hashlib.sha256(shard).hexdigest()}


def write_tokenizer(folder):
    """Writes the tokenizer `bytes`: description.json, and tokens.bin with the bytes of each id (docs/data.md). Returns
    the description."""
    os.makedirs(folder, exist_ok=True)
    tokens = struct.pack("<4i", 20240328, 2, VOCAB_SIZE, DELIMITER).ljust(HEADER_BYTES, b"\0")
    tokens += b"".join(bytes([1, byte]) for byte in range(256)) + b"\0"
    with replacing(os.path.join(folder, "tokens.bin"), "wb") as file:
        file.write(tokens)
    description = {"name": "bytes", "kind": "bytes", "vocab_size": VOCAB_SIZE, "library": "built in",
                   "delimiter": DELIMITER, "delimiter_text": "no byte",
                   "files": {"tokens.bin": hashlib.sha256(tokens).hexdigest()}}
    write_json(os.path.join(folder, "description.json"), description)
    return description


def pairs(documents):
    """Counts the pairs (token, next token) in a shard of the documents."""
    counts, previous = collections.Counter(), None
    for text in documents:
        if previous is not None:
            counts[previous, DELIMITER] += 1
        counts[DELIMITER, text[0]] += 1
        counts.update(zip(text, text[1:]))
        previous = text[-1]
    return counts


def baselines(train, val):
    """Returns the mean nats per predicted token of `val` for models fitted to `train` with add-k smoothing. Both splits
    are given as counts of pairs."""
    k = 0.1  # pseudo-count of each token; about optimal for both models
    following, context = collections.Counter(), collections.Counter()
    for (a, b), n in train.items():
        following[b] += n
        context[a] += n
    total, predicted = sum(train.values()), sum(val.values())
    unigram = -sum(n * math.log((following[b] + k) / (total + k * VOCAB_SIZE)) for (a, b), n in val.items())
    bigram = -sum(n * math.log((train[a, b] + k) / (context[a] + k * VOCAB_SIZE)) for (a, b), n in val.items())
    return {"uniform": math.log(VOCAB_SIZE), "unigram": unigram / predicted, "bigram": bigram / predicted}


def write_json(path, value):
    with replacing(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    out, root = sys.argv[1], sysconfig.get_path("stdlib")
    documents = {"train": [], "val": []}
    for name, text in source_files(root):
        documents[split_of(name)].append(text)
    if not all(documents.values()):
        sys.exit(f"make_corpus: error: too few Python sources in {root}; install Python's complete standard library")

    os.makedirs(out, exist_ok=True)
    shards = [{"split": split, **write_shard(os.path.join(out, f"stdlib_{split}_000000.bin"), texts)}
              for split, texts in documents.items()]
    losses = baselines(pairs(documents["train"]), pairs(documents["val"]))
    val = shards[1]
    bits = (val["tokens"] - 1) / val["text_bytes"] / math.log(2)  # nats per token -> bits per byte of text
    write_json(os.path.join(out, "baselines.json"), {
        "nats_per_token": losses, "bits_per_byte": {name: loss * bits for name, loss in losses.items()},
        "bits_per_byte_per_nat": bits, "predicted_tokens": val["tokens"] - 1})
    write_json(os.path.join(out, "manifest.json"), {  # written last: a folder with a manifest is complete
        "source": {"kind": "stdlib", "description": f"standard library of Python {platform.python_version()}"},
        "tokenizer": write_tokenizer(os.path.join(out, "tokenizer")),
        "vocab_size": VOCAB_SIZE, "delimiter": DELIMITER, "token_bytes": 2, "bad_rows": {},
        "tokens": sum(s["tokens"] for s in shards), "documents": sum(s["documents"] for s in shards), "shards": shards})
    for s in shards:
        print(f"corpus: {s['split']:5} {s['tokens'] / 1e6:6.2f} M tokens, {s['documents']:4} files  "
              f"{os.path.join(out, s['file'])}")
    print(f"corpus: validation loss of a unigram model {losses['unigram']:.3f}, of a bigram model "
          f"{losses['bigram']:.3f} nats per token")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
