"""The first texts of the input, to train a tokenizer and to check one."""

import collections
import contextlib
import hashlib
import time

from .documents import Reader
from .files import Failure
from .sources import units


def training_texts(job, source, notice):
    """Yields the first --train-bytes of the input's text, for train:SIZE."""
    size = sum(file.size for file in source.files)
    whole = size <= job.train_bytes and all(file.kind == "txt" and not file.compression for file in source.files)
    notice(f"training a tokenizer on the input's {size:,} bytes" if whole else
           f"training a tokenizer on at most the first {job.train_bytes:,} bytes of the input's text")
    left = job.train_bytes
    for text in first_texts(job, source):
        yield text
        left -= len(text.encode())
        if left <= 0:
            return


def first_texts(job, source):
    """Yields the texts of the input in order; a text file that is one document in pieces."""
    return (text for text, _ in documents_of(job, source, len(source.files)))


def documents_of(job, source, files):
    """Yields (text, begins) of the first `files` files: a piece of a text, and whether it begins a document."""
    with contextlib.closing(Reader(job.read_options(cuttable=True))) as reader:
        for index, file in enumerate(source.files[:files]):
            while (path := source.local_path(index)) is None:
                time.sleep(0.2)
            for unit in units(index, path, file, reader.options):
                yield from reader.documents(unit, collections.Counter())
                if reader.extent()[1]:
                    break


def hash_of_texts(job, source, files):
    """Returns a hash of the texts of the first `files` files, without white space, which some readers remove."""
    digest = hashlib.blake2b(digest_size=16)
    for text, _ in documents_of(job, source, files):
        digest.update(text.encode().translate(None, b" \t\n\r"))
    return digest.hexdigest()


def sample_texts(job, source):
    """Yields the texts up to the first that cannot be read; a worker meets it again, in the order of the input."""
    with contextlib.suppress(Failure):
        yield from first_texts(job, source)
