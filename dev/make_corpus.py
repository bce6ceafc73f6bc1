#!/usr/bin/env python3
"""Makes a corpus of byte tokens from experiments/shakespeare.txt, for tests and measurements. Needs only Python.

    dev/make_corpus.py build/corpus

Writes shakespeare_val_000000.bin, the first tenth of the text, and shakespeare_train_000001.bin (token shards in
llm.c's layout: 256 little-endian int32 with magic 20240520, version 1 and the token count, then uint16 tokens),
manifest.json and prepare.py's tokenizer/ for `bytes`. A token is a byte; token 256 begins the text.

The text is nine of Shakespeare's plays without stage directions, beginning with Julius Caesar, which is for validation.
It is in the public domain: the Moby edition, as in the MIT's "Complete Works of William Shakespeare".
"""
if __name__ == "__main__":
    from begin import startup

import hashlib
import os
import struct
import sys

from common.written_files import replacing
from teon_data.files import write_json
from teon_data.tokenizer_folder import create

TEXT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "experiments", "shakespeare.txt")
DELIMITER = 256


def shard_of(tokens):
    """Returns the content of a shard."""
    return (struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
            + struct.pack(f"<{len(tokens)}H", *tokens))


def write_shard(path, split, tokens, documents):
    """Writes a shard and returns its entry in the manifest."""
    shard = shard_of(tokens)
    with replacing(path, "wb") as file:
        file.write(shard)
    return {"file": os.path.basename(path), "split": split, "tokens": len(tokens), "documents": documents,
            "bytes": len(shard), "sha256": hashlib.sha256(shard).hexdigest()}


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    out = sys.argv[1]
    with open(TEXT, "rb") as file:
        text = file.read()
    cut = len(text) // 10
    os.makedirs(out, exist_ok=True)
    tokenizer = create(os.path.join(out, "tokenizer"), "bytes", None, None, ())
    shards = [write_shard(os.path.join(out, "shakespeare_val_000000.bin"), "val", [DELIMITER, *text[:cut]], 1),
              write_shard(os.path.join(out, "shakespeare_train_000001.bin"), "train", text[cut:], 0)]
    write_json(os.path.join(out, "manifest.json"), {  # written last: a folder with a manifest is complete
        "source": {"kind": "files", "description": "experiments/shakespeare.txt"},
        "tokenizer": tokenizer, "vocab_size": tokenizer["vocab_size"], "delimiter": DELIMITER, "token_bytes": 2,
        "bad_rows": {},
        "tokens": sum(s["tokens"] for s in shards), "documents": 1, "shards": shards})
    print(f"corpus: {len(text):,} bytes of experiments/shakespeare.txt in {out}")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
