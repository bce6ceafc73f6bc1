"""Rows of tokens: columns of parquet, Arrow and .jsonl, and the shards of mosaicml-streaming and litdata. Each reader
yields (file, ids, begins) as those of token_formats.py; a row begins where a document may begin."""

import json
import os

import numpy as np
import pyarrow as pa

from .columns import arrow_batches, open_parquet
from .compression import opened
from .files import first_line
from .tables_of_contents import read_table
from .token_formats import BLOCK, LITDATA_TYPES, MDS_TYPES, column, flat, numbers, reading, refuse

FIELDS = ("input_ids", "token_ids", "tokens", "ids")  # of ids, by the names that are usual
JSON_BYTES = 1 << 18  # of lines read at a time, whose numbers stay in the second-level cache
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def choose(path, field, found):
    """Returns the name of the column of ids, among those found."""
    name = field or next((name for name in FIELDS if name in found), None)
    if name not in found:
        fault = f"has no column '{field}' of ids" if field else f"has no column {', '.join(FIELDS)}"
        refuse(path, f"{fault}; name one with --field (columns of whole numbers: {', '.join(found) or 'none'})")
    return name


def blocks(path, rows):
    """Yields arrays of rows as blocks of about BLOCK ids."""
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += row.size
        if size >= BLOCK:
            yield joined(path, some)
            some, size = [], 0
    if some:
        yield joined(path, some)


def joined(path, rows):
    sizes = np.array([row.size for row in rows], np.int64)
    return path, np.concatenate(rows), np.cumsum(sizes) - sizes


# ---- Tables


def is_ids(kind):
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and str(kind.value_type) in INTEGERS


def table(path, field, is_parquet):
    """Reads a column of lists of whole numbers from parquet or Arrow."""
    try:
        if is_parquet:
            with open_parquet(path) as file:
                name = choose(path, field, ids_of(file.schema_arrow))
                values = sum(file.metadata.row_group(i).column(leaf_of(file.metadata, name)).num_values
                             for i in range(file.metadata.num_row_groups))
                rows = max(1, BLOCK * file.metadata.num_rows // max(values, 1))
                for batch in file.iter_batches(rows, columns=[name], use_threads=False):
                    yield from lists(path, batch.column(0))
            return
        for batch in arrow_batches(path):
            yield from lists(path, batch.column(choose(path, field, ids_of(batch.schema))))
    except (OSError, pa.ArrowException) as error:
        refuse(path, f"damaged or not a{' parquet' if is_parquet else 'n Arrow'} file ({first_line(error)})")


def ids_of(schema):
    return [column.name for column in schema if is_ids(column.type)]


def leaf_of(metadata, name):
    return next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path.split(".")[0] == name)


def lists(path, rows):
    """Yields the blocks of an array of lists."""
    if rows.null_count or rows.flatten().null_count:
        refuse(path, "has null where ids were expected, as a row or within one")
    if pa.types.is_fixed_size_list(rows.type):
        size = rows.type.list_size
        offsets = (np.arange(len(rows) + 1) + rows.offset) * size
    else:
        offsets = rows.offsets.to_numpy()
    if not len(rows):
        return
    values = rows.values
    for low in range(int(offsets[0]), max(int(offsets[-1]), int(offsets[0]) + 1), BLOCK):
        high = min(low + BLOCK, int(offsets[-1]))
        last = high == offsets[-1]
        here = offsets[:-1].searchsorted([low, high + last])
        yield path, values[low:high].to_numpy(), offsets[here[0]:here[1]].astype(np.int64) - low


def jsonl(path, compression, field):
    """Reads lists of whole numbers from lines of JSON."""
    name, some, size = field, [], 0
    with reading(path) as raw:
        for number, line in enumerate(opened(raw, compression), 1):
            if line.isspace():
                continue
            name = name or name_of_ids(path, number, line)
            some.append((number, line))
            size += len(line)
            if size >= JSON_BYTES:
                yield of_lines(path, name, some)
                some, size = [], 0
        if some:
            yield of_lines(path, name, some)


def name_of_ids(path, number, line):
    """Returns the name of the column of ids in the first line."""
    try:
        row = json.loads(line)
        return choose(path, None, [key for key in row if isinstance(row[key], list)])
    except (ValueError, TypeError, RecursionError):
        refuse(path, f"line {number}: not a JSON object")


def of_lines(path, name, lines):
    """Returns the block of some (number, line)."""
    lists = [list_within(line, name) for _, line in lines]
    if None not in lists:
        between = b", " if any(b", " in text for text in lists) else b","
        found = numbers_of(between.join(filter(None, lists)))
        if found:
            sizes = np.array([len(text) + len(between) if text else 0 for text in lists], np.int64)
            return path, found[0], found[1].searchsorted(np.cumsum(sizes) - sizes, "right")
    return joined(path, [json_row(path, number, line, name) for number, line in lines])  # json decides, and names it


def list_within(line, name):
    """Returns the text in the brackets behind a key of a JSON object, or None unless it is plain what this line has."""
    key = json.dumps(name, ensure_ascii=False).encode() + b":"
    at = line.find(key)
    begin, end = line.find(b"[", at) + 1, line.find(b"]", at)
    rest = line[:begin] + line[end:]
    if at < 0 or not 0 < begin <= end or b"\\" in rest or rest.count(key) > 1:
        return None
    try:
        row = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return line[begin:end] if isinstance(row, dict) and row.get(name) == [] else None


def numbers_of(text):
    """Returns the numbers in "12, 7, 905" or "12,7,905" and their ends; None for any other text, and for numbers of
    more than 8 digits.

    The 8 bytes up to a number's end are one integer, in which the bytes before the number are cleared, and whose digits
    are then added in pairs, fours and eights.
    """
    if not text:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    text = b" " * 7 + b"," + text + b","
    codes = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(codes == ord(","))
    gap = 1 + (commas.size > 2 and codes[commas[1] + 1] == ord(" "))
    begins, ends = commas[:-1] + gap, commas[1:]
    begins[0] = commas[0] + 1
    sizes = ends - begins
    if (sizes.min() < 1 or sizes.max() > 8 or np.count_nonzero(codes - ord("0") < 10) != sizes.sum()
            or gap == 2 and np.any(codes[begins[1:] - 1] != ord(" "))):
        return None
    found = np.ndarray(codes.size - 7, "<u8", text, strides=(1,))[ends - 8]
    before = (64 - 8 * sizes).view(np.uint64)
    found >>= before
    found <<= before
    found &= 0x0F0F0F0F0F0F0F0F
    for factor, shift, mask in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10000, 32, 0xFFFFFFFF)):
        found *= factor * (1 << shift) + 1
        found >>= shift
        found &= mask
    return found.view(np.int64), ends - 8


def json_row(path, number, line, name):
    """Returns the ids of a line."""
    try:
        row = json.loads(line)
        ids = np.array(row[name])
        if ids.ndim != 1 or ids.size and ids.dtype.kind not in "iu":
            raise TypeError
        return ids.astype(np.int64, copy=False)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        keys = f"; it has {', '.join(row)}" if isinstance(error, KeyError) and isinstance(row, dict) else ""
        refuse(path, f"line {number}: no list of whole numbers '{name}'{keys}; name one with --field")


# ---- mosaicml-streaming


def mds(folder, field, raw_kind):
    index = os.path.join(folder, "index.json")
    shape = {"format": str, "column_names": [str], "column_encodings": [str], "column_sizes": list, "raw_data": dict}
    for shard in read_table(index, {"shards": [shape]})["shards"]:
        if shard["format"] != "mds":
            refuse(index, f"has shards of the form {shard['format']}, expected mds")
        kinds = dict(zip(shard["column_names"], shard["column_encodings"]))
        name = choose(index, field, [name for name, kind in kinds.items()
                                     if kind.split(":")[0] == "ndarray" or kind == "bytes"])
        if kinds[name] == "bytes" and not raw_kind:
            refuse(index, f"the column {name} has bytes without a type: give it, as in --raw int64")
        part, compression = shard["raw_data"], ""
        path = os.path.join(folder, str(part.get("basename")))
        if not os.path.isfile(path) and isinstance(shard.get("zip_data"), dict):
            part, method = shard["zip_data"], str(shard.get("compression")).split(":")[0]
            path = os.path.join(folder, str(part.get("basename")))
            compression = {"zstd": "zstd", "gz": "gzip"}.get(method)
            if not compression:
                refuse(index, f"its shards are compressed by {method}; decompress them, as the library does when it "
                              "reads them")
        if os.path.isfile(path) and os.path.getsize(path) != part.get("bytes"):
            refuse(path, f"{os.path.getsize(path):,} bytes, but {index} says {part.get('bytes')}: cut short, or the "
                         "index of another folder")
        at = shard["column_names"].index(name)
        with reading(path) as raw:
            try:
                rows = mds_samples(path, opened(raw, compression), shard)
                yield from blocks(path, (decoded(path, kinds[name], cells[at], raw_kind) for cells in rows))
            except (IndexError, TypeError, ValueError, RuntimeError) as error:  # the last: a cell without a size
                refuse(path, f"damaged, or not as {index} describes it ({first_line(error)})")


def mds_samples(path, stream, shard):
    """Yields the cells of each row: columns of unknown size have theirs in front of the row."""
    count = int.from_bytes(stream.read(4), "little")
    if count != shard.get("samples", count):
        refuse(path, f"has {count} rows, its index.json says {shard['samples']}: the index of another folder")
    offsets = np.frombuffer(stream.read(4 * count + 4), "<u4").astype(np.int64)
    if offsets.size != count + 1 or np.any(offsets[1:] < offsets[:-1]):
        refuse(path, "damaged: the positions of its rows are missing or decrease")
    stream.read(int(offsets[0]) - 4 * count - 8)
    unknown = sum(size is None for size in shard["column_sizes"])
    for length in np.diff(offsets).tolist():
        row = memoryview(stream.read(length))
        sizes = iter(np.frombuffer(row[:4 * unknown], "<u4").tolist())
        cells, at = [], 4 * unknown
        for size in shard["column_sizes"]:
            size = next(sizes) if size is None else size
            cells.append(row[at:at + size])
            at += size
        if len(row) != length or at != length:
            refuse(path, "ends within a row, or a row has other columns than index.json says")
        yield cells


def decoded(path, kind, cell, raw_kind):
    """Returns the ids of a cell. Of an array, type and shape stand in front where the column does not fix them."""
    if kind == "bytes":
        return np.frombuffer(cell, raw_kind)
    _, *fixed = kind.split(":")
    at, dtype = (0, np.dtype(fixed[0])) if fixed else (1, np.dtype(MDS_TYPES.get(cell[0], "f4")))
    if len(fixed) < 2:
        dimensions, width = cell[at] >> 2, 1 << (cell[at] & 3)
        at += 1 + dimensions * width
    if dtype.kind not in "iu":
        refuse(path, f"has {dtype} where ids were expected")
    return np.frombuffer(cell[at:], dtype)


# ---- litdata


def litdata(folder):
    index = os.path.join(folder, "index.json")
    described = read_table(index, {"chunks": [{"filename": str, "chunk_bytes": int, "chunk_size": int}],
                                  "config": {"data_format": [str]}})
    config = described["config"]
    form, _, code = config["data_format"][0].partition(":")
    known = LITDATA_TYPES.get(form, {})
    if len(config["data_format"]) != 1 or code not in known or config.get("compression") or config.get("encryption"):
        refuse(index, f"has {', '.join(config['data_format'])}{', compressed' if config.get('compression') else ''}: "
                      "expected one column of one-dimensional tensors of whole numbers, not compressed")
    kind = np.dtype(known[code])
    for chunk in described["chunks"]:
        path = os.path.join(folder, chunk["filename"])
        with reading(path) as file:
            count = int(numbers(file, path, "<u4", 1, 0)[0])
            first, last = (int(numbers(file, path, "<u4", 1, 4 + 4 * at)[0]) for at in (0, count))
        if count != chunk["chunk_size"] or os.path.getsize(path) != chunk["chunk_bytes"]:
            refuse(path, f"{count} rows in {os.path.getsize(path):,} bytes; index.json says {chunk['chunk_size']} in "
                         f"{chunk['chunk_bytes']:,}: cut short, or the index of another folder")
        ends = ((found.astype(np.int64) - first) // kind.itemsize for found in column(path, "<u4", count, 8))
        yield from flat(path, kind, (last - first) // kind.itemsize, first, path, ends)
