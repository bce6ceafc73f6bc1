"""tokens.bin, the bytes of every id of a tokenizer, with which tokens are decoded without its library."""

import collections
import hashlib
import itertools
import operator
import struct

from .tokenizer import GPT2_DELIMITER

LONGEST_OF_VERSION_2 = 255  # bytes of a token
LENGTHS = collections.defaultdict(lambda: b"\xff", {size: bytes([size]) for size in range(256)})
PROBES = ("a", "The", "1", "one two")  # texts that show whether a tokenizer adds a blank in front


def adds_first_blank(tokenizer, table):
    """Returns whether the tokenizer puts a blank before a text that is not the text's, as SentencePiece does."""
    decoded = [b"".join(table[token] for token in ids) for ids in tokenizer.encode(list(PROBES))]
    return (b" " + PROBES[0].encode() in decoded or b" " + PROBES[1].encode() in decoded) and not any(
        text.encode() == found for text, found in zip(PROBES, decoded))


def tokens_bin(table, delimiter, first_blank):
    """Returns the content of tokens.bin: 256 int32 (magic 20240328, version, number of ids, delimiter, whether a
    document's first token has an added blank, zeros) and the bytes of each id.

    In version 2, which is llm.c's and is written where it suffices, each id has one byte with its length and its bytes.
    In version 3 the lengths come first, as uint32, and then the bytes.
    """
    if delimiter >= 0 and not table[delimiter]:  # of the tokenizer bytes; llm.c's reader refuses a token without bytes
        table = [*table[:delimiter], GPT2_DELIMITER.encode(), *table[delimiter + 1:]]
    if not first_blank and max(map(len, table)) <= LONGEST_OF_VERSION_2:
        return token_header(2, table, delimiter) + with_lengths(table)
    lengths = struct.pack(f"<{len(table)}I", *map(len, table))
    return token_header(3, table, delimiter, first_blank) + lengths + b"".join(table)


def read_tokens_bin(path):
    """Returns (the bytes of each id, whether a document's first token has an added blank) of a file of this form."""
    with open(path, "rb") as file:
        data = file.read()
    _, version, count, _, first_blank = struct.unpack("<5i", data[:20])
    if version == 3:
        at = 1024 + 4 * count
        ends = itertools.accumulate(struct.unpack_from(f"<{count}I", data, 1024), initial=at)
        return [data[begin:end] for begin, end in itertools.pairwise(ends)], bool(first_blank)
    table, at = [], 1024
    for _ in range(count):
        end = at + 1 + data[at]
        table.append(data[at + 1:end])
        at = end
    return table, False


def with_lengths(table):
    """Returns each token behind its length in a byte, 255 for longer ones."""
    return b"".join(map(operator.add, map(LENGTHS.__getitem__, map(len, table)), table))


def token_header(version_number, table, delimiter, first_blank=False):
    return struct.pack("<5i", 20240328, version_number, len(table), delimiter, first_blank).ljust(1024, b"\0")


def identity(table, delimiter):
    """Returns a hash that is equal for equal tokenizers: that of tokens.bin in version 2, which older versions of this
    script always wrote, with 255 for longer tokens."""
    return hashlib.sha256(token_header(2, table, delimiter) + with_lengths(table)).hexdigest()


def decode(table, first_blank, tokens):
    """Returns the bytes of one document."""
    text = b"".join([table[token] for token in tokens])
    return text[1:] if first_blank and text[:1] == b" " else text
