"""scripts/prepare.py:  scripts/run_tests.py test/scripts/test_prepare.py

Shards are read back by code of this file alone, and tokens are compared with second implementations: a small byte-pair
encoder written here, and the tokenizers library. A test whose package or data is not there is skipped by name.
"""

import collections
import contextlib
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
import unittest
from unittest import mock

from testing import ROOT, SCRIPTS, Case, missing, needs, read_json

if absent := missing("numpy", "pyarrow", "tqdm"):
    raise unittest.SkipTest(f"needs {', '.join(absent)}")

import numpy as np
import prepare
import pyarrow as pa
import pyarrow.parquet as pq
from teon_data import documents, sources

DATA = ROOT.parent / "shared" / "data"
BPE = DATA / "gpt2_bpe"
SHAKESPEARE = DATA / "text" / "tinyshakespeare.txt"
WIKITEXT = [DATA / "text" / name for name in ("wikitext2_test.txt", "wikitext2_valid.txt")]


def run(*arguments):
    """(exit status, standard output, standard error) of prepare.py, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = prepare.main([str(argument) for argument in arguments])
        except SystemExit as exit_call:
            status = exit_call.code
    return status, out.getvalue(), err.getvalue()


def read_shard(path):
    """Tokens of a shard, by the layout as documented."""
    data = path.read_bytes()
    magic, version, tokens = struct.unpack("<3i", data[:12])
    dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[magic, version]
    assert data[12:1024] == bytes(1012)
    array = np.frombuffer(data[1024:], dtype)
    assert array.size == tokens
    return array


def stream(folder):
    """All tokens of a folder, the validation shard first."""
    shards = sorted(folder.glob("*.bin"), key=lambda path: int(path.stem[-6:]))
    assert "_val_" in shards[0].name or shards[0].stem.endswith("000001")
    return np.concatenate([read_shard(path) for path in shards])


def contents(folder):
    """{path: SHA-256} of every file."""
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*")
            if path.is_file()}


def bytes_stream(texts):
    """The tokens of documents under the tokenizer `bytes`."""
    return [token for text in texts for token in (256, *text.encode())]


def some_texts(count, seed=1):
    """Documents of very different lengths, some empty, some of several bytes a character."""
    draw = random.Random(seed)
    words = ["the", "cat", "sat\n", "naïve", "数据", "🙂", "42", "<|endoftext|>", "  "]
    return [" ".join(draw.choices(words, k=draw.choice([0, 1, 5, 40, 400]))) for _ in range(count)]


def write_parquet(path, rows, group=7, **options):
    """A parquet file with a text column of bytes declared as strings, so that invalid UTF-8 can be planted."""
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

    def make(self, out, source, *flags):
        """Prepares what is in the test's folder, with each byte a token."""
        return self.prepare(self.path(source), "--tokenizer", "bytes", "--out", self.path(out), *flags)

    def fails(self, status, *arguments):
        """Runs prepare.py, expecting this exit status and one line; returns the line."""
        found, out, err = run(*arguments)
        self.assertEqual((found, out), (status, ""), err)
        lines = [line for line in err.splitlines() if not line.startswith("prepare: continuing")]
        self.assertEqual(len(lines), 1, err)
        self.assertTrue(lines[0].startswith("prepare: error: "), err)
        return lines[0]

    def manifest(self, name):
        return read_json(self.path(name, "manifest.json"))


# ---- Tokenizers ---------------------------------------------------------------------------------------------------

class SmallBpe:
    """GPT-2's byte-pair encoding, from the two files and its description: slow, and independent of prepare.py."""

    def __init__(self):
        import regex
        self.words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
        self.ids = read_json(BPE / "encoder.json")
        lines = (BPE / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
        self.rank = {tuple(line.split(" ")): rank for rank, line in enumerate(lines)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        self.letter = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
        self.known = {}

    def word(self, word):
        if word not in self.known:
            parts = [self.letter[byte] for byte in word.encode()]
            while len(parts) > 1:
                rank, first = min((self.rank.get(pair, 1 << 30), i) for i, pair in enumerate(zip(parts, parts[1:])))
                if rank == 1 << 30:
                    break
                parts[first:first + 2] = [parts[first] + parts[first + 1]]
            self.known[word] = [self.ids[part] for part in parts]
        return self.known[word]

    def encode(self, text):
        return [token for word in self.words.findall(text) for token in self.word(word)]


class TestTokenizers(PrepareCase):

    @needs("tiktoken", "regex", data=[SHAKESPEARE, BPE])
    def test_gpt2_gives_tiny_shakespeare_338025_tokens_equal_to_a_second_implementation(self):
        self.prepare(SHAKESPEARE, "--bpe-dir", BPE, "--out", self.path("whole"), "--workers", 1)
        tokens = stream(self.path("whole"))
        self.assertEqual(tokens[0], 50256)
        self.assertEqual(tokens.size - 1, 338025)
        self.assertEqual(tokens[1:].tolist(), SmallBpe().encode(SHAKESPEARE.read_text(encoding="utf-8")))

    @needs("tiktoken", "regex", data=[BPE])
    def test_gpt2_equals_a_second_implementation_on_awkward_text(self):
        texts = some_texts(40) + ["<|endoftext|>", "it's we'll I'D", "a  \n\n b\t\tc \n",
                                  "٣٤ Ⅷ ½ é e\u0301 \u00a0 \u2028x", " ", "\r\n\r\n", "\0\x7f", "🙂" * 50, "x" * 3000]
        write_lines(self.path("a.jsonl"), [json.dumps({"text": text}).encode() for text in texts])
        self.prepare(self.path("a.jsonl"), "--bpe-dir", BPE, "--out", self.path("out"), "--workers", 1)
        second = SmallBpe()
        self.assertEqual(stream(self.path("out")).tolist(),
                         [token for text in texts for token in (50256, *second.encode(text))])

    @needs("tiktoken", "tokenizers", data=[*WIKITEXT, BPE])
    def test_gpt2_equals_the_tokenizers_library_on_wikitext(self):
        import tokenizers
        second = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(BPE / "encoder.json"),
                                                                      str(BPE / "vocab.bpe")))
        second.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        expected = []
        for path in WIKITEXT:
            with open(path, encoding="utf-8", newline="") as file:
                expected += [50256, *second.encode(file.read()).ids]
        self.prepare(*WIKITEXT, "--bpe-dir", BPE, "--out", self.path("out"), "--unit-bytes", "50000", "--workers", 2)
        self.assertEqual(stream(self.path("out")).tolist(), expected)

    @needs("tiktoken", data=[SHAKESPEARE, BPE])
    def test_cutting_a_text_file_into_units_does_not_change_its_tokens(self):
        text = SHAKESPEARE.read_bytes()[:9000]
        text += b"no cut\r\n" * 200 + b"\n\n  \n x\ny" + "é\né\n".encode() * 50 + b"end\nend"
        text += b"".join(b"word\n" + b"\n " [i % 3:] + b"%d\n" % i for i in range(900))  # runs of blanks behind a word
        self.path("a.txt").write_bytes(text)
        streams = []
        for unit_bytes in (1 << 20, 5000, 97):
            self.prepare(self.path("a.txt"), "--bpe-dir", BPE, "--out", self.path(str(unit_bytes)),
                         "--unit-bytes", unit_bytes, "--workers", 1)
            streams.append(stream(self.path(str(unit_bytes))).tolist())
        self.assertEqual(streams.count(streams[0]), len(streams))

    def test_bytes_gives_each_byte_with_delimiter_256(self):
        texts = some_texts(50)
        write_parquet(self.path("a.parquet"), texts)
        self.make("out", "a.parquet", "--workers", 1)
        self.assertEqual(stream(self.path("out")).tolist(), bytes_stream(texts))
        manifest = self.manifest("out")
        self.assertEqual((manifest["vocab_size"], manifest["delimiter"], manifest["documents"]), (257, 256, 50))

    @needs("tokenizers")
    def test_trained_tokenizer_is_deterministic_and_its_file_gives_the_same_tokens(self):
        import tokenizers
        texts = some_texts(200)
        write_parquet(self.path("a.parquet"), texts)
        for out, workers in (("one", 1), ("two", 2)):
            self.prepare(self.path("a.parquet"), "--tokenizer", "train:300", "--out", self.path(out),
                         "--workers", workers)
        self.assertEqual(contents(self.path("one")), contents(self.path("two")))
        manifest = self.manifest("one")
        self.assertLessEqual(manifest["vocab_size"], 300)
        trained = tokenizers.Tokenizer.from_file(str(self.path("one", "tokenizer", "tokenizer.json")))
        trained.encode_special_tokens = True
        self.assertEqual(stream(self.path("one")).tolist(),
                         [token for text in texts for token in (manifest["delimiter"], *trained.encode(text).ids)])

    @needs("tokenizers")
    def test_a_vocabulary_above_65536_gives_uint32_shards(self):
        import tokenizers
        vocabulary = {"[UNK]": 0} | {f"w{i}": i for i in range(1, 70000)}
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        model.add_special_tokens(["<s>"])
        model.save(str(self.path("tokenizer.json")))
        write_parquet(self.path("a.parquet"), ["w2 w69999", "w65536 <s> w65535"])
        self.prepare(self.path("a.parquet"), "--tokenizer", self.path("tokenizer.json"), "--out", self.path("out"),
                     "--workers", 1, "--val-tokens", 2)
        shard = read_shard(self.path("out", "a_train_000001.bin"))
        self.assertEqual(shard.dtype.itemsize, 4)
        self.assertEqual(stream(self.path("out")).tolist(), [70000, 2, 69999, 70000, 65536, 0, 65535])
        self.assertEqual(run("verify", self.path("out"))[0], 0)

    @needs("sentencepiece")
    def test_a_sentencepiece_model(self):
        import sentencepiece
        texts = ["the cat sat on the mat", "a dog </s> and a cat"] * 20
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=str(self.path("tokenizer")), vocab_size=40, model_type="bpe",
            byte_fallback=False, hard_vocab_limit=False, minloglevel=2)
        write_parquet(self.path("a.parquet"), texts)
        self.prepare(self.path("a.parquet"), "--tokenizer", self.path("tokenizer.model"), "--out", self.path("out"),
                     "--workers", 1)
        model = sentencepiece.SentencePieceProcessor(model_file=str(self.path("tokenizer.model")))
        self.assertEqual(stream(self.path("out")).tolist(),
                         [token for text in texts for token in (model.bos_id(), *model.encode(text))])

    @needs("tiktoken", data=[SHAKESPEARE, BPE])
    def test_tokens_bin_decodes_the_shards(self):
        self.prepare(SHAKESPEARE, "--bpe-dir", BPE, "--out", self.path("out"), "--workers", 1)
        data = self.path("out", "tokenizer", "tokens.bin").read_bytes()
        magic, version, size, delimiter = struct.unpack("<4i", data[:16])
        self.assertEqual((magic, version, size, delimiter), (20240328, 2, 50257, 50256))
        table, at = [], 1024
        for _ in range(size):
            table.append(data[at + 1:at + 1 + data[at]])
            at += 1 + data[at]
        self.assertEqual(at, len(data))
        self.assertEqual(b"".join(table[token] for token in stream(self.path("out"))[1:]), SHAKESPEARE.read_bytes())


# ---- Inputs -------------------------------------------------------------------------------------------------------

class TestInputs(PrepareCase):

    def test_every_kind_of_file_gives_the_same_documents(self):
        texts = [text for text in some_texts(60) if text.strip()]
        rows = [json.dumps({"n": 1, "text": text}).encode() for text in texts]
        write_parquet(self.path("a.parquet"), texts)
        pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), self.path("dictionary.parquet"))
        for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
            write_lines(self.path(name), rows)
        for name in ("a.parquet", "dictionary.parquet", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
            for unit_bytes in (300, 1 << 20):
                out = self.path(f"{name}-{unit_bytes}")
                self.make(out, name, "--workers", 2, "--unit-bytes", unit_bytes)
                self.assertEqual(stream(out).tolist(), bytes_stream(texts), name)

    def test_txt_files_are_documents_whole_or_by_line(self):
        for name, data in (("1.txt", b"\xef\xbb\xbfone\r\ntwo\n\nthree"), ("2.txt", b""), ("3.txt", b"four\n")):
            self.path(name).write_bytes(data)
        self.prepare(self.folder, "--tokenizer", "bytes", "--out", self.path("out"), "--workers", 1)
        self.assertEqual(stream(self.path("out")).tolist(), bytes_stream(["one\r\ntwo\n\nthree", "four\n"]))
        self.prepare(self.path("*.txt"), "--tokenizer", "bytes", "--txt-documents", "line", "--out", self.path("lines"),
                     "--workers", 1, "--unit-bytes", 4)
        self.assertEqual(stream(self.path("lines")).tolist(), bytes_stream(["one", "two", "three", "four"]))

    def test_units_partition_lines_for_every_unit_size(self):
        draw = random.Random(3)
        lines = [b"x" * draw.choice([0, 1, 2, 9, 30]) for _ in range(60)]
        write_lines(self.path("a.txt"), lines)
        write_lines(self.path("a.txt.zst"), lines)
        expected = [line.decode() for line in lines if line]
        for name in ("a.txt", "a.txt.zst"):
            file = sources.LocalSource([str(self.path(name))]).files[0]
            for unit_bytes in (1, 2, 3, 7, 31, 64, 1000):
                reader = documents.Reader(documents.ReadOptions("text", True, True, unit_bytes))
                found = []
                for unit in sources.units(0, file.path, file, reader.options):
                    found += [text for text, _ in reader.documents(unit, collections.Counter())]
                    if reader.extent()[1]:
                        break
                reader.close()
                self.assertEqual(found, expected, (name, unit_bytes))

    def test_bad_rows_are_counted_by_reason_and_left_out(self):
        good = [str(number) for number in range(9)]
        write_parquet(self.path("a.parquet"), [*good, "one", None, b"\xff\xfe", "two", b"ok\x80", None])
        write_lines(self.path("b.jsonl"), [b'{"text": "three"}', b'{"text": null}', b'{"other": 1}',
                                           b'{"text": 7}', b'[1]', b'{"text": "cut',
                                           b'{"text": "\xff"}', b'{"text": "\\ud800"}', b'', b'  ', b'{"text": ""}'])
        self.path("c.txt").write_bytes(b"four\n\xff\nfive")
        _, err = self.prepare(self.path("a.parquet"), self.path("b.jsonl"), self.path("c.txt"), "--tokenizer", "bytes",
                              "--out", self.path("out"), "--workers", 2)
        self.assertEqual(stream(self.path("out")).tolist(),
                         bytes_stream([*good, "one", "two", "three", "", "four\nfive"]))
        self.assertEqual(self.manifest("out")["good_rows"], 9 + 2 + 2 + 2)
        self.assertEqual(self.manifest("out")["bad_rows"],
                         {"null": 4, "not text": 2, "invalid UTF-8": 5, "not JSON": 1, "NUL bytes": 0})

    def test_more_bad_rows_than_good_ones_are_an_error_that_says_what_to_do(self):
        latin = "für\nschön\nplain\nGrüße\n".encode("latin-1")
        write_lines(self.path("b.jsonl"), [b'{"body": "x"}'] * 3)
        for name, data, cure in (("a.txt", latin, "iconv -f LATIN1"), ("b.jsonl", None, "--text-field"),
                                 ("c.jsonl", b"<html>\n</html>\n", "one JSON object per line"),
                                 ("d.txt", bytes(5000), "it is not text"),
                                 ("e.txt", "Some text\nof two lines\n".encode("utf-16"), "iconv -f UTF-16")):
            if data:
                self.path(name).write_bytes(data)
            out = self.path("out-" + name)
            line = self.fails(1, self.path(name), "--tokenizer", "bytes", "--out", out)
            for part in (str(self.path(name)), "more bad rows than good ones", cure):
                self.assertIn(part, line)
        # The advice works, in the same folder.
        self.make("out-b.jsonl", "b.jsonl", "--text-field", "body")
        self.path("a.txt").write_text(latin.decode("latin-1"), encoding="utf-8")
        self.make("out-a.txt", "a.txt")
        self.assertEqual(stream(self.path("out-a.txt")).tolist(), bytes_stream([latin.decode("latin-1")]))
        # A file of bad rows among many good ones only counts.
        write_lines(self.path("0.jsonl"), [b'{"text": "x"}'] * 4)
        self.prepare(self.path("0.jsonl"), self.path("b.jsonl"), "--tokenizer", "bytes", "--out", self.path("mixed"))
        self.assertEqual(self.manifest("mixed")["bad_rows"]["null"], 3)

    def test_a_damaged_file_is_named_and_what_was_done_is_kept(self):
        texts = some_texts(60)
        write_parquet(self.path("1.parquet"), texts)
        # Without compression, so that a page that has been tampered with is found by its checksum alone.
        write_parquet(self.path("good.parquet"), texts, write_page_checksum=True, compression="none",
                      use_dictionary=False)
        rows = [json.dumps({"text": text}).encode() for text in texts]
        write_lines(self.path("good.jsonl.zst"), rows)
        write_lines(self.path("good.jsonl.gz"), rows)
        for kind, damage in (("parquet", "cut"), ("parquet", "empty"), ("parquet", "flip"), ("jsonl.zst", "cut"),
                             ("jsonl.zst", "garbage"), ("jsonl.gz", "cut"), ("jsonl.gz", "flip")):
            data = bytearray(self.path(f"good.{kind}").read_bytes())
            flip = data.rfind(b"naive" if damage != "flip" else "naïve".encode(), 0, len(data) * 3 // 4)
            data[flip if kind == "parquet" else len(data) // 2] ^= 16
            data = {"cut": data[:-9], "empty": b"", "garbage": b"not zstd", "flip": data}[damage]
            bad = self.path(f"2.{kind}")
            bad.write_bytes(data)
            out = self.path(f"{kind}-{damage}")
            arguments = [self.path("1.parquet"), bad, "--tokenizer", "bytes", "--out", out, "--shard-tokens", 5000]
            line = self.fails(1, *arguments)
            self.assertIn(str(bad), line)
            self.assertFalse(out.joinpath("manifest.json").exists())
            bad.write_bytes(self.path(f"good.{kind}").read_bytes())
            _, err = self.prepare(*arguments)  # the repaired file continues the run
            self.assertIn("continuing", err)
            self.assertEqual(stream(out).tolist(), bytes_stream(texts + texts), (kind, damage))

    def test_a_file_that_changed_after_it_was_begun_is_refused(self):
        write_parquet(self.path("a.parquet"), some_texts(60))
        self.path("z.parquet").write_bytes(b"damaged")
        arguments = [self.path("a.parquet"), self.path("z.parquet"), "--tokenizer", "bytes", "--out", self.path("out"),
                     "--shard-tokens", 3000, "--unit-bytes", 100]
        self.fails(1, *arguments)
        write_parquet(self.path("a.parquet"), some_texts(60, seed=2))
        self.assertIn("a.parquet has changed", self.fails(1, *arguments))

    def test_input_without_text_fails_with_the_reason(self):
        write_parquet(self.path("a.parquet"), [None, None])
        self.assertIn("null 2", self.fails(1, self.path("a.parquet"), "--tokenizer", "bytes", "--out", self.path("o")))
        pq.write_table(pa.table({"body": ["x"], "text": [1]}), self.path("b.parquet"))
        command = [self.path("b.parquet"), "--tokenizer", "bytes", "--out", self.path("p")]
        self.assertIn("is int64, not text; choose one with --text-field (columns of text: body)",
                      self.fails(1, *command))
        self.prepare(*command, "--text-field", "body")

    def test_a_tokenizer_that_gives_its_delimiter_for_text_is_refused(self):
        if missing("tokenizers"):
            self.skipTest("without tokenizers")
        import tokenizers
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        model.save(str(self.path("tokenizer.json")))
        write_parquet(self.path("a.parquet"), ["a <s>"])
        self.assertIn("delimiter 1 for text inside", self.fails(
            1, self.path("a.parquet"), "--tokenizer", self.path("tokenizer.json"), "--out", self.path("out")))


class TestHub(PrepareCase):
    """FineWeb, with the hub's client replaced by one that copies local files."""

    def hub(self, listing_error=None):
        folder = self.folder

        class Entry:
            def __init__(self, path):
                self.path, self.size = path, folder.joinpath(path).stat().st_size

        class Api:
            def repo_info(self, repository, repo_type=None, revision=None):
                if listing_error:
                    raise listing_error
                self.asked = (repository, repo_type, revision)
                files = [mock.Mock(rfilename=path.name) for path in folder.iterdir() if path.is_file()]
                return mock.Mock(sha="c0ffee", siblings=files)

            def list_repo_tree(self, repository, path, recursive, revision, repo_type):
                assert (repo_type, revision) == ("dataset", "c0ffee")
                assert self.asked in (("HuggingFaceFW/fineweb", "dataset", None),
                                      ("a/b", "dataset", "refs/convert/parquet"))
                files = [file for file in folder.joinpath(path or "").rglob("*") if file.is_file()]
                return [Entry(str(file.relative_to(folder))) for file in sorted(files, reverse=True)]

        def download(repository, path, repo_type=None, revision=None, local_dir=None):
            assert revision == "c0ffee"
            if not local_dir:
                return str(folder / path)
            copy = pathlib.Path(local_dir, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((folder / path).read_bytes())
            return str(copy)

        return mock.patch.multiple("huggingface_hub", HfApi=Api, hf_hub_download=download)

    @needs("huggingface_hub")
    def test_a_dataset_by_its_name_configuration_and_split(self):
        for config, split, text in (("default", "train", "1"), ("default", "test", "2"), ("other", "train", "3"),
                                    ("other", "partial-big", "4")):
            self.path(config, split).mkdir(parents=True)
            write_parquet(self.path(config, split, "0000.parquet"), [text])
        with self.hub():
            for number, (source, text) in enumerate((("hf:a/b", "1"), ("hf:a/b:test", "2"),
                                                     ("hf:a/b:other:train", "3"))):
                out = self.path(f"out{number}")
                self.prepare(source, "--tokenizer", "bytes", "--val-tokens", 0, "--out", out)
                self.assertEqual(stream(out).tolist(), bytes_stream([text]))
                self.assertTrue((out / "b_train_000001.bin").exists())
            for source, words in (("hf:a/b:dev", "its splits are test, train"), ("hf:a/b:none:train", "default, other"),
                                  ("hf:a/b:other:big", "only the beginning"), ("hf:a", "hf:OWNER/NAME"),
                                  ("hf:a/b:c:d:e", "hf:OWNER/NAME")):
                self.assertIn(words, self.fails(2, source, "--tokenizer", "bytes", "--out", self.path("bad")))
                self.assertFalse(self.path("bad").exists())

    @needs("huggingface_hub", "tokenizers")
    def test_tokenizers_by_hub_name_and_by_folder(self):
        write_parquet(self.path("a.parquet"), ["a b a"])
        import tokenizers
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[START]": 2}, unk_token="a"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        model.save(str(self.path("tokenizer.json")))
        self.path("tokenizer_config.json").write_text(json.dumps({"bos_token": "[START]"}), encoding="utf-8")
        with self.hub():
            for number, name in enumerate(("hf:a/b", self.folder, self.path("tokenizer.json"))):
                out = self.path(f"out{number}")
                self.prepare(self.path("a.parquet"), "--tokenizer", name, "--val-tokens", 0, "--out", out)
                self.assertEqual(stream(out).tolist(), [2, 0, 1, 0])
        self.path("tokenizer.json").unlink()
        with self.hub():
            for name in ("hf:a/b", self.folder):
                self.assertIn("no tokenizer.json or tokenizer.model", self.fails(
                    2, self.path("a.parquet"), "--tokenizer", name, "--out", self.path("bad")))

    @needs("huggingface_hub")
    def test_fineweb_files_are_read_in_order_from_one_revision(self):
        self.path("sample", "10BT").mkdir(parents=True)
        texts = some_texts(60)
        for i in range(6):
            write_parquet(self.path("sample", "10BT", f"00{i}.parquet"), texts[10 * i:10 * i + 10])
        for extra in ([], ["--delete-downloads"]):
            out = self.path("out" + "".join(extra))
            with self.hub():
                self.prepare("fineweb", "--tokenizer", "bytes", "--out", out, *extra)
            self.assertEqual(stream(out).tolist(), bytes_stream(texts))
            self.assertTrue((out / "fineweb_val_000000.bin").exists())
            self.assertEqual(self.manifest(out)["source"]["revision"], "c0ffee")

    @needs("huggingface_hub")
    def test_without_a_network_one_line_says_what_to_do(self):
        with self.hub(ConnectionError("no route\nto host")):
            line = self.fails(1, "fineweb:100BT", "--tokenizer", "bytes", "--out", self.path("out"))
        for part in ("HuggingFaceFW/fineweb", "sample/100BT", "no route", "prepare.py 'FOLDER/*.parquet' --out"):
            self.assertIn(part, line)
        self.assertFalse(self.path("out").exists())


# ---- Shards -------------------------------------------------------------------------------------------------------

class TestShards(PrepareCase):

    def test_the_first_shard_is_validation_and_documents_run_across_shards(self):
        texts = some_texts(40)
        write_parquet(self.path("a.parquet"), texts)
        expected = bytes_stream(texts)
        self.make("out", "a.parquet", "--name", "my", "--shard-tokens", 1000, "--workers", 2)
        shards = self.manifest("out")["shards"]
        self.assertEqual([shard["file"] for shard in shards[:2]], ["my_val_000000.bin", "my_train_000001.bin"])
        self.assertTrue(all(shard["tokens"] == 1000 for shard in shards[:-1]))
        for i, shard in enumerate(shards):
            tokens = read_shard(self.path("out", shard["file"])).tolist()
            self.assertEqual(tokens, expected[1000 * i:1000 * (i + 1)])
            self.assertEqual(shard["documents"], tokens.count(256))
            self.assertEqual(shard["sha256"], hashlib.sha256(self.path("out", shard["file"]).read_bytes()).hexdigest())
        self.assertEqual(sum(shard["documents"] for shard in shards), 40)

    def test_default_names_state_no_split(self):
        for source, name in (("english_train.jsonl", "english"), ("d/X_val.txt.gz", "X"), ("a-train_val.txt", "a"),
                             ("train.txt", "train"), ("retrain.txt", "retrain"), ("hf:o/n_train:val", "n")):
            self.assertEqual(prepare.default_name(source), name)

    def test_val_tokens_and_max_tokens(self):
        texts = some_texts(40)
        write_parquet(self.path("a.parquet"), texts)
        expected = bytes_stream(texts)
        for number, (options, sizes) in enumerate(((["--max-tokens", 2500, "--shard-tokens", 1000], [1000, 1000, 500]),
                (["--max-tokens", 2000, "--shard-tokens", 1000], [1000, 1000]),
                (["--max-tokens", 1999, "--shard-tokens", 1000], [199, 1000, 800]),
                (["--max-tokens", 1500], [150, 1350]),
                (["--max-tokens", 1500, "--val-tokens", 0, "--shard-tokens", 1000], [1000, 500]),
                (["--max-tokens", 1500, "--val-tokens", 32], [32, 1468]),
                (["--max-tokens", 1500, "--val-tokens", 9999], [1500]), (["--max-tokens", 1], [1]))):
            for workers in (1, 3):
                out = self.path(f"{number}-{workers}")
                self.make(out, "a.parquet", "--workers", workers, "--unit-bytes", 100, *options)
                self.assertEqual([shard["tokens"] for shard in self.manifest(out)["shards"]], sizes, options)
                self.assertEqual(stream(out).tolist(), expected[:sum(sizes)])
            self.assertEqual(contents(self.path(f"{number}-1")), contents(self.path(f"{number}-3")))

    def test_damage_behind_the_last_wanted_token_does_no_harm(self):
        write_parquet(self.path("a.parquet"), some_texts(40))
        self.path("b.parquet").write_bytes(b"damaged")
        self.prepare(self.path("a.parquet"), self.path("b.parquet"), "--tokenizer", "bytes", "--out", self.path("out"),
                     "--max-tokens", 2000, "--workers", 3, "--unit-bytes", 100)

    def test_any_number_of_workers_gives_the_same_bytes(self):
        for i in range(3):
            write_parquet(self.path(f"{i}.parquet"), some_texts(50, seed=i) + [None, b"\xff"])
        write_lines(self.path("z.jsonl.zst"), [json.dumps({"text": text}).encode() for text in some_texts(80)])
        found = []
        for workers in (1, 2, 3):
            out = self.path(f"out{workers}")
            self.make(out, "*.*", "--workers", workers, "--shard-tokens", 2000, "--unit-bytes", 700, "--name", "same")
            found.append(contents(out))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])

    def test_verify_finds_every_kind_of_damage(self):
        write_parquet(self.path("a.parquet"), some_texts(40))
        out = self.path("out")
        self.make(out, "a.parquet", "--shard-tokens", 1500)
        status, printed, _ = run("verify", out)
        self.assertEqual(status, 0)
        self.assertIn("as in the manifest", printed)
        shard = out / "a_train_000001.bin"
        good = shard.read_bytes()
        token = bytearray(good)
        token[-1] ^= 1
        header = bytearray(good)
        header[8] ^= 1
        magic = bytearray(good)
        magic[0] ^= 1
        for data, said in ((token, "outside the vocabulary"), (header, "the header says"), (magic, "not a token shard"),
                           (good[:-2], "the file has"), (good[:500], "shorter than the header"), (b"", "0 bytes"),
                           (good + b"\0\0", "the file has"),
                           (good[:1024] + good[1026:] + good[1024:1026], "SHA-256"), (None, "No such file")):
            shard.unlink()
            if data is not None:
                shard.write_bytes(data)
            status, _, err = run("verify", out)
            self.assertEqual(status, 1)
            self.assertIn(str(shard), err)
            self.assertIn(said, err)
        shard.write_bytes(good)
        draw = random.Random(5)
        for _ in range(40):  # any single bit
            data = bytearray(good)
            bit = draw.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            shard.write_bytes(data)
            self.assertEqual(run("verify", out)[0], 1, bit)
        shard.write_bytes(good)
        for path in (out / "a_train_000099.bin", out / "tokenizer" / "tokens.bin"):
            path.write_bytes(path.read_bytes() + b"x" if path.exists() else b"x")
            self.assertIn(str(path), run("verify", out)[2])
            path.unlink()
        self.assertIn("no manifest.json", self.fails(1, "verify", self.folder))

    def test_info_describes_folders_with_and_without_a_manifest(self):
        write_parquet(self.path("a.parquet"), some_texts(40))
        self.make("out", "a.parquet", "--max-tokens", 1000)
        self.assertIn("1,000 tokens of 2 bytes", run("info", self.path("out"))[1])
        self.path("out", "manifest.json").unlink()
        self.assertIn("a_train_000001.bin  900 tokens of 2 bytes", run("info", self.path("out"))[1])

    def test_what_is_no_file_is_refused_at_once(self):
        os.mkfifo(self.path("pipe.txt"))
        self.path("zero.txt").symlink_to("/dev/zero")
        self.path("folder.jsonl.d").mkdir()
        self.path("folder.jsonl.d", "z.jsonl").symlink_to("/dev/zero")
        for name, what in (("pipe.txt", "a pipe"), ("zero.txt", "a device"), ("folder.jsonl.d", "a device")):
            for more in ([], ["--txt-documents", "line"]):
                line = self.fails(2, self.path(name), "--tokenizer", "bytes", "--out", self.path("out"), *more)
                self.assertIn(f"is {what}, not a regular file", line)
        write_parquet(self.path("a.parquet"), some_texts(5))
        for file in ("manifest.json", "a_train_000001.bin", "tokenizer/tokens.bin"):
            out = self.path("out-" + file.replace("/", "-"))
            self.make(out, "a.parquet")
            (out / file).unlink()
            os.mkfifo(out / file)
            status, _, err = run("verify", out)
            self.assertEqual((status, err.count("\n")), (1, 1), err)
            self.assertIn(f"{out / file}: is a pipe, not a regular file", err)

    def test_a_damaged_manifest_or_state_is_named(self):
        source, out = self.path("a.parquet"), self.path("out")
        write_parquet(source, some_texts(20))
        command = [source, "--tokenizer", "bytes", "--out", out, "--shard-tokens", 100]
        self.prepare(*command)
        path = out / "manifest.json"
        good = self.manifest("out")

        def places(value, found=()):
            """The path of every value in a JSON value."""
            for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
                yield (*found, key)
                yield from places(value[key], (*found, key))

        damages = ["", "[]", "null", "[" * 100000, "{", '{"shards": 1' + "0" * 5000 + "}"]
        for place in places(good):
            if place[0] not in ("tool", "options", "good_rows") and place[:2] not in (
                    ("source", "kind"), ("source", "files"), ("tokenizer", "kind"), ("tokenizer", "vocab_size"),
                    ("tokenizer", "delimiter")) and place[-1] not in ("bytes", "trained"):
                for wrong in ([], None, 7):
                    value = json.loads(json.dumps(good))
                    inner = value
                    for key in place[:-1]:
                        inner = inner[key]
                    if type(inner[place[-1]]) is not type(wrong):
                        inner[place[-1]] = wrong
                        damages.append(json.dumps(value))
        for damage in damages:
            path.write_text(damage, encoding="utf-8")
            for arguments in (command, ["verify", out], ["info", out]):
                self.assertIn(str(path), self.fails(1, *arguments))
        path.write_text(json.dumps(good | {"source": good["source"] | {"description": "\x1b[31m\ud800"}}))
        self.assertIn(r"\x1b[31m\ud800", run("info", out)[1])
        path.unlink()
        (out / ".prepare" / "parts").mkdir(parents=True)
        for shard in out.glob("*.bin"):
            shard.unlink()
        state = out / ".prepare" / "state.json"
        for damage in ("[]", "{}", '{"version": 3}', '{"version": 3, "options": []}'):
            state.write_text(damage, encoding="utf-8")
            self.assertIn(str(state), self.fails(1, *command))

    def test_the_bar_moves_within_a_unit(self):
        text = "".join(f"line {i} of a text\n" for i in range(200000))
        self.path("a.txt").write_text(text, encoding="utf-8")
        write_lines(self.path("b.jsonl"), [json.dumps({"text": text[:2 << 20]}).encode()] * 3)
        from teon_data.progress import Progress
        for source in ("a.txt", "b.jsonl"):
            seen = []

            def update(progress):
                seen.append(progress.run.progress()["consumed"])

            with mock.patch.object(Progress, "update", update):
                self.make("out" + source, source, "--workers", 1, "--unit-bytes", "1Gi")
            self.assertEqual(seen, sorted(seen))
            self.assertEqual(seen[-1], self.path(source).stat().st_size)
            self.assertGreater(len(set(seen) - {0}), 1, seen)
        self.assertEqual(stream(self.path("outa.txt")).tolist(), bytes_stream([text]))

    def test_one_is_no_plural(self):
        write_parquet(self.path("a.parquet"), ["only one"])
        out, _ = self.make("out", "a.parquet", "--workers", 1, "--val-tokens", 0)
        self.assertIn("9 tokens in 1 document, 1 shard of uint16", out)
        self.assertRegex(out, r"1 unit tokenized in [\d.]+ s by 1 worker\n")
        for command in ("info", "verify"):
            self.assertIn("1 document", run(command, self.path("out"))[1])
            self.assertNotIn("1 documents", run(command, self.path("out"))[1])

    def test_usage_errors_are_one_line_and_exit_2(self):
        write_parquet(self.path("a.parquet"), ["x"])
        source, out = self.path("a.parquet"), self.path("out")
        self.path("a.csv").write_text("text\nx\n", encoding="utf-8")
        for arguments in ([], [source], ["--out", out], [source, "--out", out, "--nonsense"],
                          [self.path("none"), "--out", out], [self.path("none*"), "--out", out],
                          [self.path("a.csv"), "--out", out], ["fineweb:7BT", "--out", out],
                          ["fineweb", source, "--out", out], [source, "--out", source, "--tokenizer", "bytes"]):
            self.fails(2, *arguments)
            self.assertFalse(out.exists(), arguments)
        for options in (["--tokenizer", "nonsense"], ["--tokenizer", "hf:x"], ["--tokenizer", "hf:x/y:z"],
                        ["--tokenizer", "train:9"], ["--tokenizer", self.path("none.json")], ["--shard-tokens", "many"],
                        ["--shard-tokens", "1e12"], ["--max-tokens", "0"], ["--workers", "-1"], ["--name", "a/b"],
                        ["--delimiter", "<s>"], ["--bpe-dir", self.folder]):
            self.fails(2, source, "--out", out, *options)
            self.assertFalse(out.exists(), options)
        for options in (["--shard-tokens", 8], ["--text-field", "t"]):
            arguments = [source, "--tokenizer", "bytes", "--out", self.path("made")]
            self.prepare(*arguments)
            self.assertIn("made with other options", self.fails(2, *arguments, *options))
        self.assertIn("of another tool", self.fails(2, source, "--tokenizer", "bytes", "--out", self.foreign_folder()))

    def foreign_folder(self):
        self.path("foreign").mkdir(parents=True)
        self.path("foreign", "x_train_000001.bin").write_bytes(b"x")
        return self.path("foreign")

    def test_counts(self):
        from teon_data.files import quantity
        for text, value in (("7", 7), ("1e9", 10**9), ("1.5e3", 1500), ("100M", 10**8), ("512Ki", 524288),
                            ("2b", 2 * 10**9)):
            self.assertEqual(quantity(text), value)
        for text in ("", "-1", "1.5", "1e", "nan", "inf", "1e300", "7q", "0x10", "1 000"):
            self.assertRaises(ValueError, quantity, text)


# ---- Killed and continued -----------------------------------------------------------------------------------------

class TestKilled(PrepareCase):

    def make_inputs(self, rows):
        self.rows = rows
        write_parquet(self.path("a.parquet"), some_texts(rows) + [None, b"\xff"] + some_texts(rows, seed=2))
        write_lines(self.path("b.jsonl.gz"), [json.dumps({"text": text}).encode() for text in some_texts(rows, seed=3)])

    def arguments(self, out, workers):
        """A run of some units and some shards whose boundaries do not meet."""
        return [self.path("a.parquet"), self.path("b.jsonl.gz"), "--tokenizer", "bytes", "--out", out, "--workers",
                str(workers), "--shard-tokens", str(250 * self.rows), "--unit-bytes", "3000"]

    def test_killed_at_20_random_moments_the_bytes_are_those_of_an_uninterrupted_run(self):
        self.make_inputs(150)
        draw = random.Random(20)
        command = [sys.executable, SCRIPTS / "prepare.py"]
        began = time.monotonic()
        self.call(*command, *self.arguments(self.path("whole"), 2))
        span = time.monotonic() - began
        expected = contents(self.path("whole"))
        kills = folders = 0
        while kills < 20:
            folders += 1
            out = self.path(f"killed{folders}")
            while True:
                process = self.start(*command, *self.arguments(out, draw.randint(1, 3)))
                while kills < 20 and process.poll() is None and not out.joinpath(".prepare").exists():
                    time.sleep(0.002)  # the packages are being imported: nothing to interrupt yet
                if kills < 20:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(draw.uniform(0, span * 0.6))
                    process.kill()  # the main process; its workers have to notice
                _, err = process.communicate()
                if process.returncode == 0:
                    break
                self.assertEqual(process.returncode, -signal.SIGKILL, err)
                kills += 1
            self.assertEqual(contents(out), expected)

    def test_killed_at_every_rename_nothing_finished_is_made_again(self):
        self.make_inputs(6)
        printed, _ = self.prepare(*self.arguments(self.path("whole"), 1))
        units = self.units_made(printed)
        expected = contents(self.path("whole"))
        context = multiprocessing.get_context("fork")
        renames, finished = 0, False
        while not finished:
            for after in (False, True):
                out = self.path(f"{renames}-{after}")
                process = context.Process(target=run_until, args=(renames, after, self.arguments(out, 1)))
                process.start()
                process.join()
                finished = process.exitcode == 0
                if not finished:
                    self.assertEqual(process.exitcode, -signal.SIGKILL)
                    done = self.units_done(out, units)
                    printed, _ = self.prepare(*self.arguments(out, 1))
                    if done is not None:
                        self.assertEqual(self.units_made(printed), units - done, (renames, after))
                self.assertEqual(contents(out), expected, (renames, after))
            renames += 1
        self.assertGreater(renames, units)

    def test_a_missing_part_is_made_again_and_the_ones_behind_it_are_kept(self):
        self.make_inputs(60)

        def arguments(out, workers):  # no compressed file, whose end is sought, and no shard before the end
            return [*self.arguments(out, workers)[:1], *self.arguments(out, workers)[2:], "--shard-tokens", "1M"]

        printed, _ = self.prepare(*arguments(self.path("whole"), 1))
        units, out = self.units_made(printed), self.path("out")
        process = multiprocessing.get_context("fork").Process(target=run_until, args=(units, False, arguments(out, 1)))
        process.start()
        process.join()
        self.assertEqual(process.exitcode, -signal.SIGKILL)
        parts = sorted((out / ".prepare" / "parts").glob("*.part"))
        self.assertGreater(len(parts), 5)
        parts[1].unlink()
        parts[3].write_bytes(parts[3].read_bytes()[:-1])  # and one that is not whole
        printed, _ = self.prepare(*arguments(out, 2))
        self.assertEqual(self.units_made(printed), units - len(parts) + 2)
        self.assertEqual(contents(out), contents(self.path("whole")))

    @staticmethod
    def units_made(printed):
        return int(printed.splitlines()[1].split()[0])

    def units_done(self, out, units):
        """Units that a killed run has finished: before the frontier and parts after it; None once complete."""
        if out.joinpath("manifest.json").exists():
            return None
        work = out / ".prepare"
        if not work.joinpath("state.json").exists():
            return 0
        frontier = tuple(read_json(work / "state.json")["frontier"][:2])
        if frontier[0] == 2:  # behind both files
            return units
        file = sources.LocalSource([str(self.path("a.parquet"))]).files[0]
        in_first_file = len(list(sources.units(0, file.path, file, documents.ReadOptions("text", False, True, 3000))))
        names = [path.name[:15].split("_") for path in (work / "parts").glob("*.part")]
        return (frontier[1] + (in_first_file if frontier[0] else 0) +
                sum((int(file), int(unit)) >= frontier for file, unit in names))


def run_until(moment, after, arguments):
    """Runs prepare.py in this process, which is killed before or after the moment-th rename of any of its processes."""
    main, replace = os.getpid(), os.replace
    renames = multiprocessing.get_context("fork").Value("i", 0)

    def counted(source, target):
        with renames.get_lock():
            now = renames.value == moment
            renames.value += 1
        if now and not after:
            os.kill(main, signal.SIGKILL)
            signal.pause()
        replace(source, target)
        if now:
            os.kill(main, signal.SIGKILL)
            signal.pause()

    os.replace = counted
    sys.exit(run(*arguments)[0])
