"""prepare.py export: shards as nanoGPT's or Megatron's files, with the delimiter after each document.

The delimiter that begins a split belongs to the document before it, which ends the split before; the first one goes to
the end. So the streams of the files are those of the shards, turned by one delimiter, and no token is lost.
"""

import os
import shutil
import struct

import numpy as np
from common.written_files import sync_folder

from .files import UsageError, counted
from .shards import COPY_TOKENS, HEADER_BYTES, read_manifest, read_shard_header

MEGATRON_UINT16 = 65500  # ids from which Megatron's own choice is int32
INDEX = struct.Struct("<9sQBQQ")


def split_shards(folder, manifest):
    """Returns {split: paths of its shards}, val first, as they follow one another in the stream."""
    splits = {split: [] for split in ("val", "train")}
    for shard in manifest["shards"]:
        path = os.path.join(folder, shard["file"])
        if read_shard_header(path) != (shard["tokens"], manifest["token_bytes"]):
            raise UsageError(f"{path}: is not the shard of manifest.json; check the folder with prepare.py verify")
        splits[shard["split"]].append(path)
    return {split: paths for split, paths in splits.items() if paths}


def ids_of(paths, width):
    for path in paths:
        with open(path, "rb") as file:
            file.seek(HEADER_BYTES)
            while (ids := np.fromfile(file, f"<u{width}", COPY_TOKENS)).size:
                yield ids


def first_id(paths, width):
    return int(next(ids_of(paths, width))[0])


def turned(paths, width, delimiter, ends_document):
    """Yields the ids without a delimiter in front and, if a document ends at their end, with one there."""
    skip = first_id(paths, width) == delimiter
    for ids in ids_of(paths, width):
        yield ids[int(skip):]
        skip = False
    if ends_document:
        yield np.array([delimiter], f"<u{width}")


class Bare:
    """nanoGPT's file: ids of uint16 without a header."""

    def __init__(self, path, vocab_size, delimiter):
        if vocab_size > 1 << 16:
            raise UsageError(f"--to nanogpt: its files have ids of uint16; this tokenizer has {vocab_size:,}")
        self.file = open(path + ".bin", "xb")

    def write(self, ids):
        self.file.write(ids.astype("<u2", copy=False))

    def close(self):
        finish(self.file)


class Megatron:
    """Megatron's two files, a sequence for each document."""

    def __init__(self, path, vocab_size, delimiter):
        self.path, self.delimiter, self.length = path, delimiter, 0
        self.kind, self.code = ("<u2", 8) if vocab_size < MEGATRON_UINT16 else ("<i4", 4)
        self.file, self.lengths = open(path + ".bin", "xb"), open(path + ".lengths", "xb+")

    def write(self, ids):
        self.file.write(ids.astype(self.kind, copy=False))
        ends = np.flatnonzero(ids == self.delimiter) + 1
        self.lengths.write(np.diff(ends, prepend=-self.length).astype("<i4"))
        self.length = ids.size - int(ends[-1]) if ends.size else self.length + ids.size

    def close(self):
        if self.length:
            self.lengths.write(np.array([self.length], "<i4"))
        count = self.lengths.tell() // 4
        with open(self.path + ".idx", "xb") as index:
            index.write(INDEX.pack(b"MMIDIDX\0\0", 1, self.code, count, count + 1))
            for lengths in self._lengths():
                index.write(lengths)
            place = 0
            for lengths in self._lengths():
                ends = np.cumsum(lengths, dtype=np.int64) * np.dtype(self.kind).itemsize + place
                index.write(np.concatenate(([place], ends[:-1])))
                place = int(ends[-1])
            for low in range(0, count + 1, COPY_TOKENS):
                index.write(np.arange(low, min(low + COPY_TOKENS, count + 1)))
            finish(index)
        finish(self.file)
        self.lengths.close()
        os.remove(self.path + ".lengths")

    def _lengths(self):
        self.lengths.seek(0)
        while (lengths := np.fromfile(self.lengths, "<i4", COPY_TOKENS)).size:
            yield lengths


WRITERS = {"nanogpt": Bare, "megatron": Megatron}


def finish(file):
    file.flush()
    os.fsync(file.fileno())
    file.close()


def export(folder, form, out):
    """Writes the files to the new folder `out`, which is there only when they are complete. Returns lines about
    them."""
    manifest = read_manifest(folder)
    width, delimiter = manifest["token_bytes"], manifest["delimiter"]
    splits = split_shards(folder, manifest)
    if os.path.exists(out) and not (os.path.isdir(out) and not os.listdir(out)):
        raise UsageError(f"--out {out}: exists and is not an empty folder; choose another")
    staged = os.path.join(os.path.dirname(out), f".{os.path.basename(out)}.prepare")
    shutil.rmtree(staged, ignore_errors=True)
    os.makedirs(staged)
    lines = []
    try:
        following = [*list(splits.values())[1:], list(splits.values())[0]]
        for (split, paths), after in zip(splits.items(), following):
            tokens, writer = 0, WRITERS[form](os.path.join(staged, split), manifest["vocab_size"], delimiter)
            for ids in turned(paths, width, delimiter, first_id(after, width) == delimiter):
                writer.write(ids)
                tokens += ids.size
            writer.close()
            lines.append(f"{os.path.join(out, split)}.bin: {counted(tokens, 'token')}")
        os.rename(staged, out)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    sync_folder(os.path.dirname(out) or ".")
    return lines
