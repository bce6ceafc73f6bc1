"""prepare.py adopt: manifest.json and tokenizer/ for shards of llm.c's layout that exist, in their folder."""

import hashlib
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common.run_folder import visible

from . import tokenizer_folder
from .files import Failure, UsageError, counted
from .folder_checks import compare_options
from .shards import COPY_TOKENS, HEADER_BYTES, read_manifest, read_shard_header
from .token_import import TokenTexts, write_manifest


class Adoption:
    """One call of prepare.py adopt. Has what compare_options needs of a job."""

    def __init__(self, folder, tokenizer, bpe_dir, delimiter):
        self.out, self.tokenizer, self.bpe_dir, self.delimiter = folder, tokenizer, bpe_dir, delimiter

    def identity(self):
        return {"command": "adopt", "tokenizer": self.tokenizer, "delimiter": self.delimiter}

    def execute(self):
        """Writes the files. Returns (manifest, False if they were there already)."""
        if not os.path.isdir(self.out):
            raise UsageError(f"{self.out}: no such folder")
        if os.path.exists(os.path.join(self.out, "manifest.json")):
            manifest = read_manifest(self.out)
            compare_options(self, manifest.get("options"), "shards")
            return manifest, False
        shards = self._shards()
        folder = os.path.join(self.out, "tokenizer")
        if os.path.exists(folder) and not os.path.exists(os.path.join(folder, "description.json")):
            raise UsageError(f"{folder}: is there and not of prepare.py; rename it, because this is the place of the "
                             "tokenizer that shards are read with")
        new = os.path.join(self.out, ".tokenizer")  # takes the place of an older one when the shards have been checked
        try:
            description = tokenizer_folder.create(new, self.tokenizer, self.bpe_dir, self.delimiter, None)
            texts = TokenTexts(new)
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing and counting release the interpreter's lock
                entries = list(pool.map(lambda shard: described(*shard, texts), shards))
            self._check_delimiter(entries, shards, texts)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(new, folder)
        finally:
            for unfinished in (new, new + ".staged"):
                shutil.rmtree(unfinished, ignore_errors=True)
        source = {"kind": "adopted", "description": f"{self.out} (adopted)", "files": []}
        return write_manifest(self.out, texts, description, source, entries, self.identity(), shards[0][3]), True

    def _shards(self):
        """Returns (path, split, tokens, bytes per token) of every shard, those of val first."""
        shards = []
        for name in visible(os.listdir(self.out)):
            if not name.endswith(".bin"):
                continue
            path = os.path.join(self.out, name)
            try:
                split = (["", *re.findall("_(train|val)(?=_|$)", name[:-4])])[-1]  # as data/shards.cpp
                shards.append((path, split, *read_shard_header(path)))
            except Failure as failure:
                raise UsageError(str(failure)) from failure
            if not split:
                raise UsageError(f"{path}: its name states no split; rename it with _train_ or _val_, as in "
                                 f"{name[:-4]}_train_000001.bin")
            if shards[-1][3] != shards[0][3]:
                raise UsageError(f"{path}: tokens of {shards[-1][3]} bytes, but {shards[0][0]} has {shards[0][3]}; "
                                 "keep shards of one tokenizer in a folder")
        if not shards:
            raise UsageError(f"{self.out}: no .bin files; other tokens become shards by prepare.py tokens")
        return sorted(shards, key=lambda shard: shard[1] == "train")

    def _check_delimiter(self, entries, shards, texts):
        if self.delimiter is None and not any(entry["documents"] for entry in entries):
            with open(shards[0][0], "rb") as file:
                file.seek(HEADER_BYTES)
                first = int(np.fromfile(file, f"<u{shards[0][3]}", 1)[0])
            raise UsageError(f"{self.out}: no token is {texts.delimiter}, the delimiter of {self.tokenizer}; if "
                             f"another one begins documents, name it, as in --delimiter {first}, the first token of "
                             f"{os.path.basename(shards[0][0])}")


def described(path, split, tokens, width, texts):
    """Returns the manifest's entry of a shard. Refuses ids that the tokenizer does not have."""
    digest, documents, text_bytes, previous, place = hashlib.sha256(), 0, 0, None, 0
    with open(path, "rb") as file:
        digest.update(file.read(HEADER_BYTES))
        while (block := np.fromfile(file, f"<u{width}", COPY_TOKENS)).size:
            if int(block.max()) >= texts.vocab_size:
                at = int(block.argmax())
                raise UsageError(f"{path}: token {int(block[at])} at position {place + at:,} is outside the "
                                 f"tokenizer's vocabulary of {texts.vocab_size:,}; name the tokenizer that made these "
                                 "shards")
            digest.update(block)
            documents += int(np.count_nonzero(block == texts.delimiter))
            text_bytes += int(texts.lengths(block, previous).sum())
            previous = int(block[-1])
            place += block.size
    return {"file": os.path.basename(path), "split": split, "tokens": tokens, "documents": documents,
            "bytes": HEADER_BYTES + tokens * width, "text_bytes": text_bytes, "sha256": digest.hexdigest()}


def describe(manifest, folder):
    """Yields lines about adopted shards."""
    splits = {split: [shard for shard in manifest["shards"] if shard["split"] == split] for split in ("train", "val")}
    counts = ", ".join(f"{split} {counted(sum(shard['tokens'] for shard in shards), 'token')}"
                       for split, shards in splits.items() if shards)
    yield (f"{folder}: {counted(len(manifest['shards']), 'shard')} ({counts}) with ids of "
           f"{manifest['tokenizer']['name']}, {counted(manifest['documents'], 'document')} after the delimiter "
           f"{manifest['delimiter']}")
