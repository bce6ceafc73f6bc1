"""Documents of the validation text that are also in the training text: exact duplicates, found by their hashes."""

import array
import hashlib
import os

import numpy as np
from common.written_files import writing

from .files import sync_and_rename
from .first_texts import documents_of

HASH_BYTES = 8
TEXTS = "validation_texts.hashes"  # in the work folder, for --drop-validation-duplicates
TOKENS = ".documents.hashes"       # after the name of a validation shard, in the work folder


def number(digest):
    return int.from_bytes(digest.digest(), "little")


class Collector:
    """Collects the hashes of documents that come in pieces."""

    def __init__(self):
        self.found = array.array("Q")
        self.begun = None  # the hash of the document that is not finished

    def begin(self):
        self.finish()
        self.begun = hashlib.blake2b(digest_size=HASH_BYTES)
        self.empty = True

    def update(self, data):
        if self.begun and len(data):
            self.begun.update(data)
            self.empty = False

    def finish(self):
        if self.begun and not self.empty:
            self.found.append(number(self.begun))
        self.begun = None

    def save(self, path):
        with writing(path + ".staged", "wb") as file:
            file.write(self.found)
            sync_and_rename(file, path + ".staged", path)


class DocumentHashes(Collector):
    """Hashes the tokens of the whole documents in a shard, as its delimiters divide it."""

    def __init__(self, delimiter):
        super().__init__()
        self.delimiter = delimiter

    def tokens(self, block):
        at = 0
        for cut in np.flatnonzero(block == self.delimiter).tolist():
            self.update(block[at:cut])
            self.begin()
            at = cut + 1
        self.update(block[at:])

    def count_in(self, folder):
        """Returns how many are also in the validation shards whose hashes are in `folder`."""
        known = load(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(TOKENS))
        return int(np.isin(np.frombuffer(self.found, np.uint64), known).sum())


def load(paths):
    """Returns the hashes in files, sorted."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *(np.fromfile(path, np.uint64) for path in paths)]))


def save_validation_texts(job, source, folder):
    """Hashes the documents of the source's own validation text."""
    collector = Collector()
    for text, begins in documents_of(job, source, source.val_files):
        if begins:
            collector.begin()
        collector.update(text.encode())
    collector.finish()
    collector.save(os.path.join(folder, TEXTS))


def without(documents, known, rows):
    """Yields the (text, begins) whose texts are not among those of the known hashes. Counts the others in `rows`."""
    for text, begins in documents:
        wanted = np.uint64(number(hashlib.blake2b(text.encode(), digest_size=HASH_BYTES)))
        place = np.searchsorted(known, wanted)
        if place < known.size and known[place] == wanted:
            rows["good"] -= 1
            rows["in validation"] += 1
        else:
            yield text, begins
