"""A stream of ids on its way to shards: a delimiter before each document, the check of every id, and the cut into
shards."""

import hashlib
import os

import numpy as np

from .files import UsageError, sha256_file
from .shards import HEADER_BYTES, shard_header
from .token_formats import NOTHING


def checked(blocks, dtype, vocab_size):
    """Yields the blocks with their ids as `dtype`. Refuses ids that the tokenizer does not have."""
    place = {}  # ids read of each file
    for path, ids, begins in blocks:
        if ids.size and (int(ids.max()) >= vocab_size or int(ids.min()) < 0):
            at = int(np.flatnonzero((ids >= vocab_size) | (ids < 0))[0])
            raise UsageError(f"{path}: id {int(ids[at])} at token {place.get(path, 0) + at:,} is outside the "
                             f"tokenizer's vocabulary of {vocab_size:,}; name the tokenizer that made these ids with "
                             "--tokenizer, or their type with --raw")
        place = {path: place.get(path, 0) + ids.size}
        yield ids.astype(dtype, copy=False), begins


class Delimited:
    """Puts one delimiter before each document. One that a document begins or ends with is that one: the delimiter that
    other programs put after a document moves before it."""

    def __init__(self, delimiter):
        self.delimiter = delimiter
        self.documents = 0

    def of(self, blocks):
        """Yields arrays of ids. The last id of a block waits, because the next block says whether its document ends."""
        ids, begins = None, NOTHING
        for more, more_begins in blocks:
            if ids is not None:
                more, more_begins = np.concatenate((ids, more)), np.concatenate((begins, more_begins + ids.size))
            ready = max(more.size - 1, 0)
            yield self._placed(more[:ready], more_begins[more_begins < ready], more_begins)
            ids, begins = more[ready:], more_begins[more_begins >= ready] - ready
        if ids is not None:
            ended = self.documents or begins.size
            yield self._placed(ids, begins, np.append(begins, ids.size) if ended else begins)

    def _placed(self, ids, begins, ends):
        """Returns ids with a delimiter before each document that begins here. `ends`: where documents end."""
        if not begins.size and not ends.size:
            return ids
        self.documents += begins.size
        dropped = np.zeros(ids.size, bool)
        last = ends[(ends > 0) & (ends <= ids.size)] - 1
        dropped[last] = ids[last] == self.delimiter
        has_one = np.append(begins[1:] > begins[:-1], True)[:begins.size] & (begins < ids.size)  # not empty
        has_one[has_one] = (ids[begins[has_one]] == self.delimiter) & ~dropped[begins[has_one]]
        added = begins[~has_one]
        gone = np.flatnonzero(dropped)
        placed = np.full(ids.size - gone.size + added.size, self.delimiter, ids.dtype)
        others = np.ones(placed.size, bool)
        others[added - gone.searchsorted(added) + np.arange(added.size)] = False
        placed[others] = ids[~dropped] if gone.size else ids
        return placed


class ShardWriter:
    """Cuts a stream into shards NAME_SPLIT_NNNNNN.bin. `sizes` yields the split and the tokens of each
    shard of a stream."""

    def __init__(self, folder, name, dtype, lengths):
        self.folder, self.name, self.dtype, self.lengths = folder, name, dtype, lengths
        self.shards = []  # entries of the manifest
        self.file = None

    def begin(self, sizes):
        """Begins a stream of its own shards."""
        self.sizes, self.stream, self.tokens = sizes, hashlib.sha256(), 0

    def write(self, ids):
        self.stream.update(ids)
        self.tokens += ids.size
        while ids.size:
            if self.file is None:
                self._open()
            ids = ids[self._write(ids[:self.left]):]
            if not self.left:
                self.close()

    def _open(self):
        split, self.left = next(self.sizes)
        number = len(self.shards) if split == "val" or self.shards else 1
        self.entry = {"file": f"{self.name}_{split}_{number:06d}.bin", "split": split, "tokens": 0, "documents": 0,
                      "bytes": HEADER_BYTES, "text_bytes": 0}
        self.path = os.path.join(self.folder, self.entry["file"])
        self.file = open(self.path, "xb")
        self.digest = hashlib.sha256(shard_header(self.left, self.dtype.itemsize))
        self.previous = None  # the id before those of the next call
        self.file.write(shard_header(self.left, self.dtype.itemsize))

    def _write(self, ids):
        entry = self.entry
        entry["tokens"] += ids.size
        entry["bytes"] += ids.nbytes
        entry["documents"] += int(np.count_nonzero(ids == self.lengths.delimiter))
        entry["text_bytes"] += int(self.lengths(ids, self.previous).sum())
        self.previous = int(ids[-1])
        self.left -= ids.size
        self.digest.update(ids)
        self.file.write(ids)
        return ids.size

    def close(self):
        """Ends the shard. If it is shorter than its header says, the last of a stream, it gets another header."""
        if self.file is None:
            return
        if self.left:
            self.file.seek(0)
            self.file.write(shard_header(self.entry["tokens"], self.dtype.itemsize))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.file = None
        self.shards.append(self.entry | {"sha256": sha256_file(self.path) if self.left else self.digest.hexdigest()})
