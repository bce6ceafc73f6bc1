"""The bytes of the source's text behind tokens, which may differ from the bytes that the tokens spell.

A tokenizer may normalize text or replace what its vocabulary lacks. Where the bytes of a text and those of its tokens
(tokens.bin) differ, a correction records it: (first token, tokens, difference in bytes) of the text's tokens, or of
its delimiter if it has none. A part of these tokens, [first, first + x), has difference * x // tokens of it. So sums
are exact for whole documents, for every token if the tokenizer loses nothing, and the corrections of adjoining parts
add up to the whole.
"""

import struct

import numpy as np

CORRECTION = np.dtype([("first", "<i8"), ("tokens", "<i8"), ("difference", "<i8")])
MAGIC = b"teonbyt1"
HEADER = struct.Struct("<8sq")  # magic, corrections


class TokenLengths:
    """The bytes that tokens stand for, by tokens.bin: 0 for the delimiter, and without the blank that the tokenizer
    adds to each document."""

    def __init__(self, table, delimiter, first_blank):
        self.delimiter = delimiter
        self.of = np.array([len(token) for token in table], np.int32)
        self.of[delimiter] = 0
        self.added = None
        if first_blank:
            self.added = np.array([token[:1] == b" " for token in table], np.int32)
            self.added[delimiter] = 0

    def __call__(self, tokens, previous):
        """Returns the bytes of each token of an array; `previous` is the token before the first, or None."""
        lengths = self.of.take(tokens)
        if self.added is not None and tokens.size:
            begins = np.concatenate(([previous == self.delimiter], tokens[:-1] == self.delimiter))
            lengths -= self.added[tokens] * begins
        return lengths


def corrections_of(lengths, begins, ends, sources):
    """Returns the corrections of consecutive texts whose tokens are [begin, end) of an array, with these lengths, and
    whose source has these bytes. Texts without tokens have none. Tokens between texts are delimiters, of length 0."""
    there = ends > begins
    begins, ends = begins[there], ends[there]
    difference = sources[there] - np.add.reduceat(lengths, begins, dtype=np.int64)
    changed = difference != 0
    found = np.empty(int(np.count_nonzero(changed)), CORRECTION)
    found["first"], found["tokens"] = begins[changed], (ends - begins)[changed]
    found["difference"] = difference[changed]
    return found


def clipped(corrections, begin, end, shift):
    """Returns the part of the corrections in tokens [begin, end), moved by `shift`."""
    first, tokens = corrections["first"], corrections["tokens"]
    kept = (first < end) & (first + tokens > begin)
    c = corrections[kept].copy()
    low = np.maximum(c["first"], begin)
    high = np.minimum(c["first"] + c["tokens"], end)
    portion = [c["difference"] * (edge - c["first"]) // c["tokens"] for edge in (low, high)]
    c["difference"], c["first"], c["tokens"] = portion[1] - portion[0], low + shift, high - low
    return c


def write_corrections(file, corrections):
    file.write(HEADER.pack(MAGIC, corrections.size))
    file.write(corrections.tobytes())
