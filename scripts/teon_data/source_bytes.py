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

# The hash of texts: the bytes of all documents, each after 0xff, which is not in UTF-8, as one number modulo a prime.
# Unlike SHA-256 it can be computed in parts.
PRIME = 2**128 - 159
SEPARATOR = b"\xff"
# Words of 16 bits in a block, and the value of each one's place in it, as 8 numbers of 16 bits. The sums of products
# are below 2^45, so doubles hold them exactly.
WORDS = 4096
PLACES = np.frombuffer(b"".join(pow(2, 16 * (WORDS - 1 - word), PRIME).to_bytes(16, "little")
                                for word in range(WORDS)), "<u2").reshape(WORDS, 8).astype(np.float64)
BLOCK = pow(2, 16 * WORDS, PRIME)


def value_of(data):
    """Returns bytes as one number modulo PRIME: five times as fast as by Python's integers."""
    first = len(data) % (2 * WORDS)
    value = int.from_bytes(data[:first], "big") % PRIME
    blocks = np.frombuffer(data, ">u2", (len(data) - first) // 2, first).reshape(-1, WORDS).astype(np.float64)
    for sums in (blocks @ PLACES).astype(np.uint64).tolist():
        value = (value * BLOCK + sum(part << 16 * i for i, part in enumerate(sums))) % PRIME
    return value


class TextHash:
    """The length in bytes (separators included) and the hash of a sequence of documents."""

    def __init__(self, length=0, value=0):
        self.length, self.value = length, value

    def append(self, length, value):
        self.value = (self.value * pow(256, length, PRIME) + value) % PRIME
        self.length += length

    def append_bytes(self, data):
        self.append(len(data), value_of(data))

    def hex(self):
        return f"{self.value:032x}"


class TokenLengths:
    """The bytes that tokens stand for, by tokens.bin: 0 for the delimiter, and without the blank that the tokenizer
    adds to each document."""

    def __init__(self, table, delimiter, first_blank):
        self.delimiter = delimiter
        self.of = np.array([len(token) for token in table], np.int64)
        self.of[delimiter] = 0
        self.added = np.array([first_blank and token[:1] == b" " for token in table], np.int64)
        self.added[delimiter] = 0

    def __call__(self, tokens, previous):
        """Returns the bytes of each token of an array; `previous` is the token before the first, or None."""
        lengths = self.of[tokens]
        if self.added.any() and tokens.size:
            begins = np.concatenate(([previous == self.delimiter], tokens[:-1] == self.delimiter))
            lengths -= self.added[tokens] * begins
        return lengths


def corrections_of(lengths, begins, ends, sources):
    """Returns the corrections of texts whose tokens are [begin, end) of an array, with these lengths, and whose source
    has these bytes. Texts without tokens have none."""
    sums = np.concatenate(([0], np.cumsum(lengths)))
    difference = sources - (sums[ends] - sums[begins])
    chosen = (difference != 0) & (ends > begins)
    found = np.empty(int(np.count_nonzero(chosen)), CORRECTION)
    found["first"], found["tokens"] = begins[chosen], (ends - begins)[chosen]
    found["difference"] = difference[chosen]
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


def read_corrections(data):
    """Returns the corrections in the bytes that write_corrections() wrote. Raises ValueError for others."""
    magic, count = HEADER.unpack_from(data.ljust(HEADER.size, b"\0"))
    if magic != MAGIC or len(data) != HEADER.size + count * CORRECTION.itemsize:
        raise ValueError("not a list of corrections")
    return np.frombuffer(data, CORRECTION, count, HEADER.size)
