"""Files of tokens that other programs wrote. Each reader yields (file, ids, begins): consecutive ids of the stream, at
most about BLOCK of them, and where in them documents begin, by the format's own index. Without an index nothing begins:
the ids are one stream.

megatron   X.bin and X.idx: 34 bytes, lengths of sequences, their positions, sequences at which documents begin
datatrove  X.ds and X.ds.index, the ends of documents
raw        ids without a header (nanoGPT, OLMo), with the ends of documents if dolma's X.csv.gz is beside X.npy
"""

import contextlib
import csv
import gzip
import os
import re
import struct

import numpy as np

from .compression import DAMAGES, READ_BYTES
from .files import Failure, UsageError, check_regular, first_line

BLOCK = 1 << 21          # ids read at a time
INDEX_BLOCK = 1 << 16    # entries of an index read at a time
NOTHING = np.empty(0, np.int64)
MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
MDS_TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
LITDATA_TYPES = {  # form of a column: its code of a type
    "no_header_tensor": {"11": "u1", "12": "i1", "13": "<i2", "14": "<i2", "15": "<i4", "16": "<i4", "17": "<i8",
                         "18": "<i8", "20": "<u2"},
    "no_header_numpy": dict(zip("01234567", ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8")))}
RAW_TYPES = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
ADOPT = "shards of llm.c's layout: use prepare.py adopt FOLDER"
OTHER_FILES = {struct.pack("<i", 20240520): ADOPT, struct.pack("<i", 20240801): ADOPT, b"PAR1": "a parquet file",
               b"MMIDIDX": "Megatron's index: give the .bin beside it", b"LITPKDS": "lit-gpt's, which is not read"}


def refuse(path, fault):
    raise UsageError(f"{path}: {fault}")


@contextlib.contextmanager
def reading(path):
    """Opens a file. What the system or a decompressor says against it becomes one line."""
    try:
        check_regular(path)
        with open(path, "rb", buffering=READ_BYTES) as file:
            yield file
    except Failure as failure:
        raise UsageError(str(failure)) from failure
    except (*DAMAGES, csv.Error, UnicodeDecodeError) as error:
        refuse(path, f"cannot be read ({first_line(error)})")


def numbers(file, path, kind, count, position):
    """Returns `count` numbers from a position of an open file."""
    file.seek(position)
    found = np.fromfile(file, kind, count)
    if found.size != count:
        refuse(path, f"ends at byte {position + found.nbytes:,}, within its numbers; it is cut short")
    return found


def column(path, kind, count, position):
    """Yields `count` numbers of a file, some at a time."""
    with reading(path) as file:
        for low in range(0, count, INDEX_BLOCK):
            yield numbers(file, path, kind, min(INDEX_BLOCK, count - low), position + low * np.dtype(kind).itemsize)


class Increasing:
    """Numbers of an index, which must not decrease, read as they are wanted."""

    def __init__(self, path, arrays):
        self.path, self.arrays, self.waiting, self.more = path, arrays, NOTHING, True

    def below(self, limit):
        """Returns the next numbers, up to the first that is not below the limit."""
        while self.more and not (self.waiting.size and self.waiting[-1] >= limit):
            found = next(self.arrays, None)
            self.more = found is not None
            if self.more:
                self.waiting = np.concatenate((self.waiting, found.astype(np.int64)))
                if np.any(self.waiting[1:] < self.waiting[:-1]):
                    refuse(self.path, "its positions decrease: damaged, or not an index")
        here = self.waiting.searchsorted(limit)
        found, self.waiting = self.waiting[:here], self.waiting[here:]
        return found


def agree(index, data, end, count):
    if end != count:
        refuse(index, f"its documents end at token {end:,}, but {data} has {count:,}: one of them is cut short, or it "
                      "is the index of another file")


def begins_of(index, data, ends, count):
    """Yields where documents begin, from arrays of where they end."""
    last = 0
    for found in ends:
        both = np.concatenate(([last], found)).astype(np.int64)
        yield both[:-1]
        last = int(both[-1])
    agree(index, data, last, count)


def flat(path, kind, count, first=0, index=None, ends=()):
    """Yields `count` ids of a file after byte `first`. `ends` yields where documents end, by the file `index`."""
    begins = Increasing(index, begins_of(index, path, ends, count) if index else iter(()))
    with reading(path) as file:
        for low in range(0, max(count, 1), BLOCK):
            high = min(low + BLOCK, count)
            here = begins.below(high + (high == count))
            yield path, numbers(file, path, kind, high - low, first + low * np.dtype(kind).itemsize), here - low
    begins.below(1 << 62)  # the rest of the index, which is checked


def whole_number(path, kind):
    """Returns the number of ids in a file without a header."""
    size = os.path.getsize(path)
    if size % np.dtype(kind).itemsize:
        refuse(path, f"{size:,} bytes are no whole number of ids of {np.dtype(kind).itemsize} bytes: cut short, or of "
                     "another type")
    return size // np.dtype(kind).itemsize


# ---- Megatron


def megatron(path):
    prefix = re.sub(r"\.(idx|bin)$", "", path)
    index, data = prefix + ".idx", prefix + ".bin"
    for file in (index, data):
        if not os.path.isfile(file):
            refuse(file, f"is missing: Megatron's tokens are two files, {os.path.basename(prefix)}.bin and .idx")
    size = os.path.getsize(index)
    with reading(index) as file:
        header = file.read(34)
    if header[:9] != b"MMIDIDX\0\0" or len(header) < 34:
        refuse(index, "is not an index of Megatron's (MMIDIDX), or ends within its header")
    version, code, sequences, entries = struct.unpack("<QBQQ", header[9:])
    expected = 34 + 12 * sequences + 8 * entries
    if version != 1 or code not in MEGATRON_TYPES:
        refuse(index, f"version {version}, type {code}: expected version 1 and a type of whole numbers")
    if size not in (expected, expected + sequences):  # the latter with a byte per sequence, its mode
        refuse(index, f"{size:,} bytes, but its {sequences:,} sequences and {entries:,} entries of documents take "
                      f"{expected:,}: damaged or cut short")
    kind = np.dtype(MEGATRON_TYPES[code])
    count = whole_number(data, kind)

    def ends():
        """Yields the ends of documents in tokens: the cumulated lengths before each entry's sequence."""
        documents = Increasing(index, column(index, "<i8", entries, 34 + 12 * sequences))
        lengths, places = column(index, "<i4", sequences, 34), column(index, "<i8", sequences, 34 + 4 * sequences)
        at = total = 0
        for some, place in zip(lengths, places):
            sums = np.concatenate(([total], total + np.cumsum(some, dtype=np.int64)))
            if np.any(some < 0) or np.any(place != sums[:-1] * kind.itemsize):
                refuse(index, "its sequences do not follow one another in the file of tokens")
            here = documents.below(at + some.size + (at + some.size == sequences)) - at
            if at == 0 and (not here.size or here[0]):
                refuse(index, "its first document does not begin at its first sequence")
            yield sums[here[int(at == 0):]]
            at, total = at + some.size, int(sums[-1])
        documents.below(sequences)
        if documents.waiting.size > (sequences == 0):
            refuse(index, "has documents behind its last sequence: damaged")

    if sequences:
        with reading(index) as file:
            length = numbers(file, index, "<i4", 1, 30 + 4 * sequences)[0]
            place = numbers(file, index, "<i8", 1, 26 + 12 * sequences)[0]
        agree(index, data, int(place) // kind.itemsize + int(length), count)
    return flat(data, kind, count, 0, index, ends())


# ---- datatrove


def datatrove(path):
    index = path + ".index"
    if not os.path.isfile(index):
        refuse(index, f"is missing: it tells the documents of {os.path.basename(path)} apart; to read it as one stream "
                      "of ids, give their type with --raw")
    documents = whole_number(index, "<i8")
    size = os.path.getsize(path)
    end = 0
    if documents:
        with reading(index) as file:
            end = int(numbers(file, index, "<i8", 1, 8 * documents - 8)[0])
    kind = next((kind for kind in ("<u2", "<u4") if size == end * np.dtype(kind).itemsize), None)
    if kind is None:
        agree(index, path, end, size // 2)
        refuse(index, "is damaged")
    return flat(path, kind, end, 0, index, column(index, "<i8", documents, 0))


# ---- Ids without a header


def raw(path, name, vocab_size, delimiter):
    """Reads ids of the type `name`, or of the type that the header of numpy's own .npy says. A stream that ends with
    the delimiter and does not begin with it has one after each document: the last one moves to the front."""
    kind, first = RAW_TYPES.get(name), 0
    with reading(path) as file:
        magic = file.read(8)
        other = next((what for start, what in OTHER_FILES.items() if magic.startswith(start)), None)
        if other:
            refuse(path, f"has no bare ids: it is {other}")
        if magic.startswith(b"\x93NUMPY"):
            file.seek(0)
            version = np.lib.format.read_magic(file)
            header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
            shape, _, dtype = header.get(version[0], header[2])(file)
            kind, first = dtype.newbyteorder("<").str, file.tell()
            if dtype.kind not in "iu" or len(shape) != 1:
                refuse(path, f"is an array of {dtype} and shape {shape}: expected one row of whole numbers")
    if kind is None:
        refuse(path, f"has ids without a header: give their type, --raw {'|'.join(RAW_TYPES)}")
    kind = np.dtype(kind)
    size = os.path.getsize(path) - first
    if size % kind.itemsize:
        whole_number(path, kind)
    count = size // kind.itemsize
    check_width(path, kind, count, first, vocab_size)
    index = re.sub(r"\.npy$", "", path) + ".csv.gz"
    if path.endswith(".npy") and os.path.isfile(index):
        return flat(path, kind, count, first, index, dolma_ends(index))
    return rotated(flat(path, kind, count, first), path, kind, count, first, delimiter)


def check_width(path, kind, count, first, vocab_size):
    """Refuses ids of another width than their first ones show: in ids of 4 bytes that are read as 2, every second one
    is the upper half of the one before."""
    with reading(path) as file:
        some = numbers(file, path, kind, min(count, INDEX_BLOCK), first)
    most = (vocab_size - 1) >> 16
    if kind.itemsize == 2 and some.size > 7 and some[1::2].max() <= most and some[::2].max() > most:
        refuse(path, "every second id is 0 or nearly so: these are ids of 4 bytes; use --raw uint32")
    if kind.itemsize > 2 and some.size and int(some.max()) >= vocab_size:
        halves = some.view("<u2")
        if int(halves.max()) < vocab_size:
            refuse(path, f"as {kind.name}, ids reach {int(some.max()):,} where the tokenizer has {vocab_size:,}; as "
                         "uint16 all fit: use --raw uint16")


def rotated(blocks, path, kind, count, first, delimiter):
    with reading(path) as file:
        ends = [int(numbers(file, path, kind, 1, first + at * kind.itemsize)[0]) for at in (0, count - 1) if count]
    if not ends or ends[0] == delimiter or ends[1] != delimiter:
        yield from blocks
        return
    left = count - 1
    yield path, np.array([delimiter], kind), NOTHING
    for name, ids, begins in blocks:
        yield name, ids[:left], begins
        left -= ids.size


def dolma_ends(path):
    """Yields the ends of documents by dolma's rows start,end,id,src,loc."""
    with reading(path) as file, gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        rows, last, ends = csv.reader(text), 0, []
        for row in rows:
            if len(row) < 2 or not (row[0] + row[1]).isdecimal() or int(row[0]) != last:
                refuse(path, f"line {rows.line_num}: expected start,end,id,src,loc with a start of {last}")
            last = int(row[1])
            ends.append(last)
            if len(ends) == INDEX_BLOCK:
                yield np.array(ends, np.int64)
                ends = []
        yield np.array(ends, np.int64)
