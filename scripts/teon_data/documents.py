"""Reads the documents of a unit of work: parts of a table, the lines that begin in a byte range, or text files."""

import collections
import json
from dataclasses import dataclass

import pyarrow as pa

from .columns import arrow_values, csv_values, damaged, open_parquet, parquet_values
from .compression import DAMAGES, READ_BYTES, opened

PIECE_BYTES = 1 << 20  # a long text is tokenized in pieces of this size, to update the progress bar
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ReadOptions:
    """The options that determine the documents in a file and its division into units."""
    text_field: str
    txt_lines: bool   # each line of a .txt file is a document, instead of the file
    cuttable: bool    # whether cutting a text between lines leaves its tokens unchanged (see cut_before)
    unit_bytes: int   # approximate text per unit


@dataclass(frozen=True)
class Unit:
    """Unit `index` of input file `file`: row groups, record batches, bytes or, with end None, everything from `begin`
    on."""
    file: int
    index: int
    path: str
    kind: str
    compression: str
    begin: int
    end: int | None
    consumed: int | None  # bytes of the input in it; None for a compressed file until it is read
    last: bool | None     # whether it is the file's last unit; None for a compressed file until it is read


class LineStream:
    """A text file, compressed or not, read line by line; `position` counts uncompressed bytes."""

    def __init__(self, path, compression):
        self.path, self.compression = path, compression
        self.raw = open(path, "rb", buffering=READ_BYTES)
        self.stream = opened(self.raw, compression)
        self.position = 0
        self.raw_begin = 0  # offset in the compressed file at the beginning of the current range
        self.at_end = False

    def line(self):
        """Returns the next line with its line break, or b"" at the end of the file."""
        line = self.stream.readline()
        self.position += len(line)
        self.at_end = not line
        return line

    def advance(self, position):
        """Moves forward to `position` or the end of the file."""
        if not self.compression:
            self.stream.seek(position)
            self.position = position
            return
        while self.position < position:
            skipped = len(self.stream.read(min(READ_BYTES, position - self.position)))
            if not skipped:
                break
            self.position += skipped

    def lines(self, begin, end):
        """Yields the lines that begin at a byte in [begin, end).

        Skips the line that contains byte begin - 1. A stream that has already passed `begin` must be where an earlier
        range ended: at the first line that begins at or after the end of that range.
        """
        if self.position < begin or not self.compression:
            self.advance(max(begin - 1, 0))
            if begin:
                self.line()
        self.raw_begin = self.raw.tell()
        while self.position < end and (line := self.line()):
            yield line.removeprefix(BOM) if self.position == len(line) else line

    def close(self):
        self.stream.close()
        self.raw.close()


def cut_before(previous, line):
    """Returns whether cutting a text between two lines leaves its tokens unchanged.

    GPT-2's pattern always makes a single line break between letters or digits a separate word, but joins runs of
    blanks. With one token per byte, any cut is possible.
    """
    return previous[-1:] == b"\n" and previous[-2:-1].isalnum() and line[:1].isalnum()


class Reader:
    """Reads units. Keeps the last file open, so that a compressed file is read only once for all of its units."""

    def __init__(self, options):
        self.options = options
        self.open_path = None
        self.file = None
        self.resume_at = 0  # the end of the last unit of a compressed file

    def documents(self, unit, rows):
        """Yields (text, begins): the texts of the unit, and whether each begins a document or continues the last one.

        Skips bad rows and counts in `rows` the good ones and the bad ones by reason; rows of a text file that is one
        document are its lines. A damaged file raises a Failure that names it.
        """
        self.last, self.consumed = unit.last, unit.consumed
        read = {"parquet": self._table, "arrow": self._table, "csv": self._table, "jsonl": self._jsonl,
                "txt": self._txt_lines if self.options.txt_lines else self._txt}[unit.kind]
        try:
            yield from read(unit, rows)
        except (*DAMAGES, pa.ArrowException) as error:
            kind = {"arrow": "Arrow"}.get(unit.kind, unit.kind)
            raise damaged(unit.path, (unit.compression + " " + kind).strip(), error) from error

    def extent(self):
        """Returns (input bytes in the unit, whether it is its file's last), after all its documents were read."""
        return self.consumed, self.last

    def _table(self, unit, rows):
        for value in self._values(unit) if unit.begin != unit.end else ():
            text = decode(value, rows)
            if text is not None:
                yield text, True

    def _values(self, unit):
        field = self.options.text_field
        if unit.kind == "csv":
            return csv_values(unit.path, unit.compression, field)
        if unit.kind == "arrow":
            return arrow_values(unit.path, unit.begin, unit.end, field)
        if self.open_path != unit.path:
            self._keep(unit.path, open_parquet(unit.path))
        return parquet_values(self.file, unit.begin, unit.end, field)

    def _jsonl(self, unit, rows):
        for line in self._lines(unit):
            text = None if line.isspace() else decode_line(line, rows)
            if text is None:
                continue
            rows["good"] -= 1  # decode() counted the line; its content decides
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                rows["not JSON"] += 1
                continue
            value = value_of(row, self.options.text_field)
            if isinstance(row, list):
                rows["array"] += 1
            elif value is None:
                rows["null"] += 1
            elif not (isinstance(row, dict) and isinstance(value, str)):
                rows["not text"] += 1
            elif not is_unicode(value):
                rows["invalid UTF-8"] += 1
            else:
                rows["good"] += 1
                yield value, True

    def _txt_lines(self, unit, rows):
        for line in self._lines(unit):
            text = decode_line(line.rstrip(b"\r\n"), rows)
            if text:
                yield text, True

    def _txt(self, unit, rows):
        """Yields a file that is one document, or the unit's part of it: from the first possible cut after a line that
        begins at or after `begin` to the first possible cut after a line that begins at or after `end`.

        If there is no possible cut between `begin` and `end`, all of this text belongs to the previous unit.
        """
        stream = LineStream(unit.path, unit.compression)
        try:
            lines = list(iter(stream.line, b"")) if unit.end is None else self._between_cuts(stream, unit)
        finally:
            stream.close()
        if lines:
            begins = unit.begin == 0
            if begins:
                lines[0] = lines[0].removeprefix(BOM)
            for text in cut_texts(valid_lines(lines, rows), PIECE_BYTES if self.options.cuttable else None):
                yield text, begins
                begins = False

    @staticmethod
    def _between_cuts(stream, unit):
        # Bad lines are skipped, so a cut is between two valid lines. The units on both sides read both of them whole.
        if unit.begin:
            stream.advance(unit.begin - 1)
            stream.line()
        lines, previous, previous_begin = [], b"", -1
        while True:
            begin = stream.position
            line = stream.line()
            ends = previous_begin >= unit.end
            cut = (ends or not lines) and cut_before(previous, line) and is_valid(previous) and is_valid(line)
            if not line or ends and (cut or not lines):
                return lines
            if lines or unit.begin == 0 or cut:
                lines.append(line)
            previous, previous_begin = line, begin

    def _lines(self, unit):
        if self.open_path != unit.path or (unit.compression and self.resume_at > unit.begin):
            self._keep(unit.path, LineStream(unit.path, unit.compression))
        yield from self.file.lines(unit.begin, unit.end)
        if unit.compression:
            self.resume_at = unit.end
            self.consumed = self.file.raw.tell() - self.file.raw_begin
            self.last = self.file.at_end

    def _keep(self, path, file):
        self.close()
        self.open_path, self.file, self.resume_at = path, file, 0

    def close(self):
        if self.file:
            self.file.close()
        self.open_path = self.file = None


def text_keys(path, compression):
    """Returns the keys of the first line of a .jsonl file whose values are texts, [] if it has none."""
    stream = LineStream(path, compression)
    try:
        row = json.loads(stream.line())
    except (*DAMAGES, ValueError, RecursionError):
        return []
    finally:
        stream.close()
    return [key for key, value in row.items() if isinstance(value, str)] if isinstance(row, dict) else []


def value_of(row, field):
    """Returns the value of a key or, by a path such as "meta.text", of a key within it; None if there is none."""
    if not isinstance(row, dict) or field in row:
        return row[field] if isinstance(row, dict) else row
    top, _, path = field.partition(".")
    inner = row.get(top) if path else None
    return value_of(inner, path) if isinstance(inner, dict) else None


def decode(value, rows):
    """Returns bytes as text, or None for null and invalid UTF-8. Counts the row as good or by its fault."""
    if value is None:
        rows["null"] += 1
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        rows["invalid UTF-8"] += 1
        return None
    rows["good"] += 1
    return text


def decode_line(line, rows):
    """Does the same as decode() for a line of a text file, in which a NUL is invalid."""
    if b"\0" in line:
        rows["NUL bytes"] += 1
        return None
    return decode(line, rows)


def is_valid(line):
    return decode_line(line, collections.Counter()) is not None


def is_unicode(text):
    """Returns False if JSON escapes produced half of a surrogate pair, which cannot be encoded."""
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def valid_lines(lines, rows):
    """Yields the lines that are UTF-8 and contain no NUL bytes."""
    return [line for line in lines if decode_line(line, rows) is not None]


def cut_texts(lines, size):
    """Joins the lines to texts of about `size` bytes (None: to one text), cut only where no token changes. Yields one
    empty text if there are no lines."""
    begin = bytes_in_piece = 0
    for i, line in enumerate(lines):
        if size and bytes_in_piece >= size and cut_before(lines[i - 1], line):
            yield b"".join(lines[begin:i]).decode()
            begin, bytes_in_piece = i, 0
        bytes_in_piece += len(line)
    yield b"".join(lines[begin:]).decode()
