"""Helpers for the tests of scripts/prepare.py. Reads shards with its own code only.

Importing it skips a test file if a package that prepare.py needs is missing.
"""

import contextlib
import gzip
import hashlib
import io
import random
import struct
import unittest

from testing import DATA, Case, missing, read_json

if absent := missing("numpy", "pyarrow", "tqdm"):
    raise unittest.SkipTest(f"needs {', '.join(absent)}")

import numpy as np
import prepare
import pyarrow as pa
import pyarrow.parquet as pq

SHAKESPEARE = DATA / "text" / "tinyshakespeare.txt"


def run(*arguments):
    """Runs prepare.py in this process; returns (exit status, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = prepare.main([str(argument) for argument in arguments])
        except SystemExit as exit_call:
            status = exit_call.code
    return status, out.getvalue(), err.getvalue()


def read_shard(path):
    """Returns a shard's tokens, read by the documented layout."""
    data = path.read_bytes()
    magic, version, tokens = struct.unpack("<3i", data[:12])
    dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[magic, version]
    assert data[12:1024] == bytes(1012)
    array = np.frombuffer(data[1024:], dtype)
    assert array.size == tokens
    return array


def stream(folder):
    """Returns all tokens of a folder, the validation shard's first."""
    shards = sorted(folder.glob("*.bin"), key=lambda path: int(path.stem[-6:]))
    assert "_val_" in shards[0].name or shards[0].stem.endswith("000001")
    return np.concatenate([read_shard(path) for path in shards])


def contents(folder):
    """Returns {path: SHA-256} of every file."""
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*")
            if path.is_file()}


def bytes_stream(texts):
    """Returns the tokens of documents under the tokenizer `bytes`."""
    return [token for text in texts for token in (256, *text.encode())]


def some_texts(count, seed=1):
    """Returns documents of very different lengths, some empty, some with several bytes per character."""
    draw = random.Random(seed)
    words = ["the", "cat", "sat\n", "naïve", "数据", "🙂", "42", "<|endoftext|>", "  "]
    return [" ".join(draw.choices(words, k=draw.choice([0, 1, 5, 40, 400]))) for _ in range(count)]


def write_parquet(path, rows, group=7, **options):
    """Writes a parquet file whose text column is bytes declared as strings, so that it can contain invalid UTF-8."""
    binary = pa.array([row.encode() if isinstance(row, str) else row for row in rows], pa.large_binary())
    text = pa.Array.from_buffers(pa.large_string(), len(rows), binary.buffers(), binary.null_count)
    pq.write_table(pa.table({"id": list(range(len(rows))), "text": text}), path, row_group_size=group, **options)


def write_lines(path, lines):
    data = b"".join(line + b"\n" for line in lines)
    if path.suffix == ".gz":
        data = gzip.compress(data[:len(data) // 2]) + gzip.compress(data[len(data) // 2:])  # two members
    elif path.suffix == ".zst":
        data = pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)


class PrepareCase(Case):
    def path(self, *names):
        return self.folder.joinpath(*names)

    def prepare(self, *arguments, status=0):
        found, out, err = run(*arguments)
        self.assertEqual(found, status, err)
        return out, err

    def command(self, source, *flags, out="out", tokenizer="bytes"):
        """Returns the arguments to prepare a file of the test's folder, or a list of them."""
        sources = source if isinstance(source, list) else [source]
        return [*map(self.path, sources), "--tokenizer", tokenizer, "--out", self.path(out), *flags]

    def make(self, out, source, *flags, **how):
        return self.prepare(*self.command(source, *flags, out=out, **how))

    def assert_documents(self, out, source, texts, *flags):
        """Prepares files with one token per byte, and compares the documents."""
        self.make(out, source, *flags)
        self.assertEqual(stream(self.path(out)).tolist(), bytes_stream(texts), (source, *flags))

    def refused(self, status, source, *flags, **how):
        return self.fails(status, *self.command(source, *flags, **{"out": "refused", **how}))

    def fails(self, status, *arguments):
        """Runs prepare.py, which must end with this exit status and one line; returns the line."""
        found, out, err = run(*arguments)
        self.assertEqual((found, out), (status, ""), err)
        lines = [line for line in err.splitlines() if not line.startswith("prepare: continuing")]
        self.assertEqual(len(lines), 1, err)
        self.assertTrue(lines[0].startswith("prepare: error: "), err)
        return lines[0]

    def manifest(self, name):
        return read_json(self.path(name, "manifest.json"))
