"""The text column of a table: parquet, Arrow's files and streams, CSV. A field within a column is named by its path,
as in "meta.text"."""

import mmap
import os

import pyarrow as pa
import pyarrow.parquet as pq

from .compression import READ_BYTES, opened
from .files import Failure, WrongOption, first_line

BATCH_ROWS = 256     # decoded at a time
CSV_BYTES = 1 << 24  # read at a time; a row must be shorter
TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def damaged(path, kind, error):
    """Returns the Failure for a file that cannot be read to its end."""
    if isinstance(error, OSError) and error.strerror:
        return Failure(f"{path}: {error.strerror}")
    return Failure(f"{path}: damaged or not {'an' if kind[0] in 'aA' else 'a'} {kind} file ({first_line(error)})")


# ---- Fields


def holds_text(kind):
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in TEXT_TYPES


def fields_below(field, path=""):
    """Yields (path, type) of a field and of all fields within it."""
    path = f"{path}.{field.name}" if path else field.name
    yield path, field.type
    if pa.types.is_struct(field.type):
        for i in range(field.type.num_fields):
            yield from fields_below(field.type.field(i), path)


def check_field(path, schema, name):
    """Raises WrongOption unless the schema has one field of this name and it holds text."""
    found = [(field, kind) for column in schema for field, kind in fields_below(column)]
    kinds = [kind for field, kind in found if field == name]
    if len(kinds) > 1:
        raise WrongOption(f"{path}: has {len(kinds)} columns '{name}', expected one; choose another with --text-field")
    if not kinds or not holds_text(kinds[0]):
        fault = f"is {kinds[0]}, not text" if kinds else "does not exist"
        texts = [field for field, kind in found if holds_text(kind)]
        raise WrongOption(f"{path}: the column '{name}' {fault}; choose one with --text-field "
                          f"(columns of text: {', '.join(texts) or 'none'})")


def values(batch, name):
    """Yields the values of a field as bytes, or None. Not as strings, because pyarrow does not check strings for UTF-8
    and fails for whole columns."""
    if name in batch.schema.names:
        column = batch.column(name)
    else:
        top, *path = name.split(".")
        column = batch.column(top)
        for inner in path:
            column = column.flatten()[column.type.get_field_index(inner)]
    if pa.types.is_dictionary(column.type):  # pyarrow cannot cast one of views, polars' Categorical
        words = column.dictionary.cast(pa.large_binary()).to_pylist()
        for place in column.indices:
            yield words[place.as_py()] if place.is_valid else None
        return
    for begin in range(0, len(column), BATCH_ROWS):
        yield from column[begin:begin + BATCH_ROWS].cast(pa.large_binary()).to_pylist()


# ---- Parquet: units are row groups


def open_parquet(path):
    # A buffer instead of whole column chunks keeps memory constant for any size of row groups.
    return pq.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True)


def parquet_text_sizes(path, name):
    try:
        with open_parquet(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, "parquet", error) from error
    check_field(path, schema, name)
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name)
    chunks = (metadata.row_group(i).column(column) for i in range(metadata.num_row_groups))
    return [(chunk.total_compressed_size, chunk.total_uncompressed_size) for chunk in chunks]


def parquet_values(file, begin, end, name):
    for batch in file.iter_batches(BATCH_ROWS, list(range(begin, end)), [name], use_threads=False):
        yield from values(batch, name)


# ---- Arrow: units are record batches


def arrow_batches(path, begin=0, end=None):
    """Yields record batches of Arrow's IPC file or stream format, which the library `datasets` writes."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise pa.ArrowInvalid("it is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with pa.BufferReader(pa.py_buffer(mapped)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            for i in range(begin, reader.num_record_batches if end is None else end):
                yield reader.get_batch(i)
                mapped.madvise(mmap.MADV_DONTNEED)  # else all that was read would count as this process's memory
            return
        for i, batch in enumerate(pa.ipc.open_stream(source)):
            if i == end:
                return
            if i >= begin:
                yield batch
                mapped.madvise(mmap.MADV_DONTNEED)


def arrow_text_sizes(path, name):
    sizes = []
    try:
        for batch in arrow_batches(path):
            if not sizes:
                check_field(path, batch.schema, name)
            sizes.append((batch.nbytes, batch.column(name.split(".")[0] if name not in batch.schema.names else name)
                          .nbytes))
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, "Arrow", error) from error
    return sizes


def arrow_values(path, begin, end, name):
    for batch in arrow_batches(path, begin, end):
        yield from values(batch, name)


# Returns [(bytes in the file, bytes of text)], about, of each part of a file. Checks that the field is text.
TEXT_SIZES = {"parquet": parquet_text_sizes, "arrow": arrow_text_sizes}


# ---- CSV: a unit is a file, because a quoted value may contain line breaks


def csv_values(path, compression, name):
    import pyarrow.csv  # here, because other inputs do not need it
    options = (pyarrow.csv.ReadOptions(block_size=CSV_BYTES, use_threads=False),
               pyarrow.csv.ParseOptions(delimiter="\t" if ".tsv" in path.lower() else ",", newlines_in_values=True))
    with open(path, "rb", buffering=READ_BYTES) as raw:
        columns = pyarrow.csv.open_csv(opened(raw, compression), *options).schema.names
    check_field(path, pa.schema([(column, pa.binary()) for column in columns]), name)
    convert = pyarrow.csv.ConvertOptions(column_types={name: pa.binary()}, include_columns=[name])
    with open(path, "rb", buffering=READ_BYTES) as raw:
        for batch in pyarrow.csv.open_csv(opened(raw, compression), *options, convert):
            yield from values(batch, name)
