"""prepare.py tokens: tokens of other programs to shards.

All is written to a hidden folder beside OUT, which becomes OUT when it is complete: a kill leaves no OUT, and the same
command begins again.
"""

import itertools
import os
import shutil
from dataclasses import asdict, dataclass

import numpy as np
from common.written_files import sync_folder

from . import VERSION, tokenizer_folder
from . import tokenizer as tokenizers
from .batches import encode_each
from .files import UsageError, counted, write_json
from .folder_checks import compare_options, lock
from .round_trip import HARD_TEXTS
from .shards import HEADER_BYTES, read_manifest, token_dtype
from .source_bytes import TokenLengths
from .splits import divide
from .token_formats import BLOCK, NOTHING
from .token_sources import OF_ROWS, find
from .token_stream import Delimited, ShardWriter, checked
from .token_table import adds_first_blank, decode


@dataclass(frozen=True)
class TokenJob:
    inputs: tuple
    split: str | None
    val_from: str | None
    out: str
    name: str
    tokenizer: str
    bpe_dir: str | None
    delimiter: str | None
    raw: str | None
    field: str | None
    rows: str | None
    shard_tokens: int
    val_tokens: int | None
    max_tokens: int | None

    def identity(self):
        """Returns the options that decide the shards."""
        options = asdict(self) | {"command": "tokens", "inputs": list(self.inputs)}
        return {key: value for key, value in options.items() if key not in ("out", "bpe_dir")}


# ---- What adopt and tokens write beside shards


class TokenTexts:
    """The bytes of text that a tokenizer's ids stand for."""

    def __init__(self, folder):
        tokenizer = tokenizers.load(folder)
        table = tokenizer.token_bytes()
        self.vocab_size, self.delimiter = tokenizer.vocab_size, tokenizer.delimiter
        first_blank = adds_first_blank(tokenizer, table)
        self.lengths = TokenLengths(table, self.delimiter, first_blank)
        # Whether they are the bytes of the text that was tokenized: a tokenizer may normalize it.
        self.are_the_source = all(
            not isinstance(ids, str) and decode(table, first_blank, ids.tolist()) == text.encode()
            for text, ids in zip(HARD_TEXTS, encode_each(tokenizer, HARD_TEXTS)))


def write_manifest(folder, texts, tokenizer, source, shards, options, width):
    """Writes manifest.json, whose shards count bytes of the source's text only if these are known."""
    if not texts.are_the_source:
        shards = [{key: value for key, value in shard.items() if key != "text_bytes"} for shard in shards]
    documents = sum(shard["documents"] for shard in shards)
    manifest = {
        "tool": {"name": "prepare.py", "version": VERSION}, "source": source, "tokenizer": tokenizer,
        "vocab_size": tokenizer["vocab_size"], "delimiter": tokenizer["delimiter"], "token_bytes": width,
        "tokens": sum(shard["tokens"] for shard in shards), "documents": documents, "good_rows": documents,
        "bad_rows": {}, "shards": shards, "options": options}
    write_json(os.path.join(folder, "manifest.json"), manifest)
    return manifest


# ---- From files to shards


def limited(arrays, most):
    """Yields arrays of at most `most` ids in all; None: of all."""
    for ids in arrays:
        yield ids[:most]
        if most is not None and (most := most - ids.size) <= 0:
            return


class Import:
    """One call of prepare.py tokens."""

    def __init__(self, job, notice):
        self.job, self.notice = job, notice
        self.staged = os.path.join(os.path.dirname(job.out), f".{os.path.basename(job.out)}.prepare")
        self.notes = []
        found = [(file, file.split) for file in find(job.inputs, job.raw is not None, self.notes)]
        self.train, self.val, note = divide(found, job.split, bool(job.val_from))
        self.notes += [note] if note else []
        if job.val_from:
            self.val = find([job.val_from], job.raw is not None, self.notes)
            held_out = {os.path.realpath(file.path) for file in self.val}
            self.train = [file for file in self.train if os.path.realpath(file.path) not in held_out]
        if self.val and job.val_tokens is not None:
            raise UsageError(f"--val-tokens: the validation tokens are those of {self.val[0].path}; leave it out")
        if not self.train:
            raise UsageError(f"--val-from {job.val_from}: leaves no tokens for training")
        self.files = [{"file": file.path, "bytes": file.size()} for file in self.train + self.val]

    def execute(self):
        """Makes the folder. Returns (manifest, False if it was there already)."""
        job = self.job
        if os.path.exists(os.path.join(job.out, "manifest.json")):
            return self._finished(), False
        if os.path.exists(job.out) and not (os.path.isdir(job.out) and not os.listdir(job.out)):
            raise UsageError(f"--out {job.out}: exists and is not an empty folder; choose another")
        os.makedirs(self.staged, exist_ok=True)
        locked = lock(job, self.staged)
        try:
            for left in os.listdir(self.staged):  # by a killed run
                path = os.path.join(self.staged, left)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            try:
                manifest = self._make()
                os.rename(self.staged, job.out)
            except BaseException:
                shutil.rmtree(self.staged, ignore_errors=True)
                raise
        finally:
            os.close(locked)
        sync_folder(os.path.dirname(job.out) or ".")
        return manifest, True

    def _finished(self):
        manifest = read_manifest(self.job.out)
        compare_options(self.job, manifest.get("options"), "shards")
        if manifest["source"].get("files") != self.files:
            raise UsageError(f"the files or their sizes have changed since {self.job.out} was made; remove it or "
                             "choose another --out")
        return manifest

    def _make(self):
        job = self.job
        for note in self.notes:
            self.notice(note)
        folder = os.path.join(self.staged, "tokenizer")
        description = tokenizer_folder.create(folder, job.tokenizer, job.bpe_dir, job.delimiter, None)
        self.texts = TokenTexts(folder)
        self.dtype = token_dtype(self.texts.vocab_size)
        self.writer = ShardWriter(self.staged, job.name, self.dtype, self.texts.lengths)
        streams = {}
        for split, files, most in (("val", self.val, None), ("train", self.train, job.max_tokens)):
            if files:
                self._read(split, files, most)
                streams[split if self.val else "all"] = self.writer.stream.hexdigest()
        self._cut_again()
        formats = sorted({file.format for file in self.train + self.val})
        source = {"kind": "tokens", "description": f"tokens of {', '.join(job.inputs)} ({', '.join(formats)})",
                  "formats": formats, "files": self.files, "documents": self.documents, "streams": streams}
        sync_folder(self.staged)
        return write_manifest(self.staged, self.texts, description, source, self.writer.shards, job.identity(),
                              self.dtype.itemsize)

    def _read(self, split, files, most):
        """Writes the shards of a split, or with the split "train" and no files for validation, of the whole stream."""
        job, texts, full = self.job, self.texts, self.job.shard_tokens
        sizes = itertools.repeat((split, full))
        if not self.val:
            first = full if job.val_tokens is None else job.val_tokens
            sizes = itertools.chain([("val", first)] if first else (), sizes)
        self.writer.begin(sizes)
        placing = Delimited(texts.delimiter)
        blocks = itertools.chain.from_iterable(
            self._rows(file, file.blocks(job, texts.vocab_size, texts.delimiter)) for file in files)
        for ids in limited(placing.of(checked(blocks, self.dtype, texts.vocab_size)), most):
            self.writer.write(ids)
        self.writer.close()
        if not self.writer.tokens:
            raise UsageError(f"{files[0].path}: has no tokens")
        self.documents = placing.documents

    def _rows(self, file, blocks):
        """Yields the blocks of a file with the begins of documents, if its rows are documents."""
        if file.format in OF_ROWS and self.job.rows != "documents":
            first = next(blocks, None)
            lengths = set(np.diff(first[2]).tolist()) if first else ()
            if self.job.rows is None and len(lengths) == 1 and first[2].size > 2 and lengths != {1}:
                raise UsageError(f"{file.path}: its rows have {lengths.pop():,} ids each, as parts of one stream have: "
                                 "say --rows packed, or --rows documents if each is a document")
            blocks = itertools.chain([first] if first else (), blocks)
        for path, ids, begins in blocks:
            yield path, ids, NOTHING if self.job.rows == "packed" and file.format in OF_ROWS else begins

    def _cut_again(self):
        """Cuts a stream that does not fill two shards again: a tenth of it is for validation."""
        tokens = self.writer.tokens
        if self.val or self.job.val_tokens is not None or tokens >= 2 * self.job.shard_tokens:
            return
        whole, before = os.path.join(self.staged, "whole"), self.writer
        os.mkdir(whole)
        for shard in before.shards:
            os.rename(os.path.join(self.staged, shard["file"]), os.path.join(whole, shard["file"]))
        self.writer = ShardWriter(self.staged, before.name, self.dtype, before.lengths)
        self.writer.begin(iter([("val", tokens // 10)][:tokens // 10] + [("train", self.job.shard_tokens)] * 2))
        for shard in before.shards:
            with open(os.path.join(whole, shard["file"]), "rb") as file:
                file.seek(HEADER_BYTES)
                while (ids := np.fromfile(file, self.dtype, BLOCK)).size:
                    self.writer.write(ids)
        self.writer.close()
        shutil.rmtree(whole)


def describe(manifest, out):
    """Yields lines about the shards of `tokens`."""
    source, by_index = manifest["source"], manifest["source"]["documents"]
    hashes = ", ".join(f"{name} {found[:16]}".removeprefix("all ") for name, found in source["streams"].items())
    kind = token_dtype(manifest["vocab_size"]).name
    yield (f"{counted(manifest['tokens'], 'token')} in {counted(manifest['documents'], 'document')}, "
           f"{counted(len(manifest['shards']), 'shard')} of {kind} in {out}; stream {hashes}")
    if by_index and by_index != manifest["documents"]:
        yield (f"{counted(by_index, 'document')} by the index; "
               f"{counted(manifest['documents'] - by_index, 'delimiter')} within documents, which begin another one in "
               "training")
