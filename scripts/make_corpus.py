#!/usr/bin/env python3
"""Makes a corpus of byte tokens from experiments/shakespeare.txt, for tests and measurements. Needs only Python.

    scripts/make_corpus.py build/corpus

Writes shakespeare_val_000000.bin, the first tenth of the text, and shakespeare_train_000001.bin (token shards in
llm.c's layout: 256 little-endian int32 with magic 20240520, version 1 and the token count, then uint16 tokens),
manifest.json and prepare.py's tokenizer/ for `bytes`. A token is a byte; token 256 begins the text.

The text is nine of Shakespeare's plays without stage directions, beginning with Julius Caesar, which is for validation.
It is in the public domain: the Moby edition, as in the MIT's "Complete Works of William Shakespeare".
"""
if __name__ == "__main__":
    import startup

    startup.begin()

import hashlib
import json
import os
import struct
import sys

from written_files import replacing

TEXT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "experiments", "shakespeare.txt")
DELIMITER = 256
VOCAB_SIZE = 257
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024


def write_shard(path, split, tokens, documents):
    """Writes a shard and returns its entry in the manifest."""
    shard = struct.pack("<3i", MAGIC, VERSION, len(tokens)).ljust(HEADER_BYTES, b"\0")
    shard += struct.pack(f"<{len(tokens)}H", *tokens)
    with replacing(path, "wb") as file:
        file.write(shard)
    return {"file": os.path.basename(path), "split": split, "tokens": len(tokens), "documents": documents,
            "bytes": len(shard), "sha256": hashlib.sha256(shard).hexdigest()}


def write_tokenizer(folder):
    """Writes the tokenizer `bytes`: description.json, and tokens.bin with the bytes of each id (docs/data.md). Returns
    the description."""
    os.makedirs(folder, exist_ok=True)
    tokens = struct.pack("<4i", 20240328, 2, VOCAB_SIZE, DELIMITER).ljust(HEADER_BYTES, b"\0")
    tokens += b"".join(bytes([1, byte]) for byte in range(256)) + b"\0"
    with replacing(os.path.join(folder, "tokens.bin"), "wb") as file:
        file.write(tokens)
    description = {"name": "bytes", "kind": "bytes", "vocab_size": VOCAB_SIZE, "library": "built in",
                   "delimiter": DELIMITER, "delimiter_text": "no byte", "identity": hashlib.sha256(tokens).hexdigest(),
                   "files": {"tokens.bin": hashlib.sha256(tokens).hexdigest()}}
    write_json(os.path.join(folder, "description.json"), description)
    return description


def write_json(path, value):
    with replacing(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    out = sys.argv[1]
    with open(TEXT, "rb") as file:
        text = file.read()
    cut = len(text) // 10
    os.makedirs(out, exist_ok=True)
    shards = [write_shard(os.path.join(out, "shakespeare_val_000000.bin"), "val", [DELIMITER, *text[:cut]], 1),
              write_shard(os.path.join(out, "shakespeare_train_000001.bin"), "train", text[cut:], 0)]
    write_json(os.path.join(out, "manifest.json"), {  # written last: a folder with a manifest is complete
        "source": {"kind": "files", "description": "experiments/shakespeare.txt"},
        "tokenizer": write_tokenizer(os.path.join(out, "tokenizer")),
        "vocab_size": VOCAB_SIZE, "delimiter": DELIMITER, "token_bytes": 2, "bad_rows": {},
        "tokens": sum(s["tokens"] for s in shards), "documents": 1, "shards": shards})
    print(f"corpus: {len(text):,} bytes of experiments/shakespeare.txt in {out}")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
