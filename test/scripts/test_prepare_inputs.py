"""Inputs and tokenizers of scripts/prepare.py:  dev/run_tests.py test/scripts/test_prepare_inputs.py

Tokens are compared with those of the tokenizers library.
"""

import collections
import json
import os
import pathlib
import random
import signal
import struct
import sys
import time
from unittest import mock

from preparing import (
    SHAKESPEARE,
    PrepareCase,
    bytes_stream,
    contents,
    pa,
    pq,
    read_shard,
    run,
    some_texts,
    stream,
    write_lines,
    write_parquet,
)
from teon_data import documents, pipeline, sources
from testing import BPE, PATIENCE, SCRIPTS, needs
from tokenizer_kinds import byte_level, gemma


def gpt2():
    """Returns GPT-2's tokenizer as the tokenizers library makes it; prepare.py's is tiktoken's."""
    import tokenizers
    model = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(BPE / "encoder.json"), str(BPE / "vocab.bpe")))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return model


def read_token_bytes(path, size, delimiter):
    """Returns (the bytes of each id, whether a text's first token has an added blank), by the documented layout."""
    data = path.read_bytes()
    magic, version, *rest = struct.unpack("<5i", data[:20])
    assert (magic, rest[:2]) == (20240328, [size, delimiter])
    assert version in (2, 3) and data[20:1024] == bytes(1004)
    table, at = [], 1024 + (4 * size if version == 3 else 0)
    for token in range(size):
        at += version == 2
        length = data[at - 1] if version == 2 else struct.unpack_from("<I", data, 1024 + 4 * token)[0]
        table.append(data[at:at + length])
        at += length
    assert at == len(data)
    return table, rest[2] == 1


class TestTokenizers(PrepareCase):

    @needs("tiktoken", "tokenizers", data=[SHAKESPEARE, BPE])
    def test_gpt2_gives_tiny_shakespeare_338025_tokens_equal_to_a_second_implementation(self):
        self.make("out", SHAKESPEARE, "--bpe-dir", BPE, "--workers", 1, tokenizer="gpt2")
        tokens = stream(self.path("out"))
        self.assertEqual(tokens[0], 50256)
        self.assertEqual(tokens.size - 1, 338025)
        self.assertEqual(tokens[1:].tolist(), gpt2().encode(SHAKESPEARE.read_text(encoding="utf-8")).ids)
        self.assertEqual(self.decoded(50257, 50256), SHAKESPEARE.read_bytes())

    @needs("tiktoken", "tokenizers", data=[BPE])
    def test_gpt2_equals_a_second_implementation_on_awkward_text(self):
        texts = some_texts(40) + ["<|endoftext|>", "it's we'll I'D", "a  \n\n b\t\tc \n",
                                  "٣٤ Ⅷ ½ é e\u0301 \u00a0 \u2028x", " ", "\r\n\r\n", "\0\x7f", "🙂" * 50, "x" * 3000]
        write_lines(self.path("a.jsonl"), [json.dumps({"text": text}).encode() for text in texts])
        self.make("out", "a.jsonl", "--bpe-dir", BPE, "--workers", 1, tokenizer="gpt2")
        second = gpt2()
        self.assertEqual(stream(self.path("out")).tolist(),
                         [token for text in texts for token in (50256, *second.encode(text).ids)])

    @needs("tiktoken", data=[SHAKESPEARE, BPE])
    def test_cutting_a_text_file_into_units_does_not_change_its_tokens(self):
        text = SHAKESPEARE.read_bytes()[:9000]
        text += b"no cut\r\n" * 200 + b"\n\n  \n x\ny" + "é\né\n".encode() * 50 + b"end\nend"
        text += b"".join(b"word\n" + b"\n " [i % 3:] + b"%d\n" % i for i in range(900))  # runs of blanks behind a word
        # Skipped lines: after their removal, runs of blanks meet, or a word meets the next word.
        text += b"".join(b"word\n" + b"\n " [i % 3:] + (b"\xff bad\n", b"bad\0\n")[i % 2] + b"next\n%d\n" % i
                         for i in range(300))
        self.path("a.txt").write_bytes(text)
        streams = []
        for unit_bytes in (1 << 20, 5000, 97):
            self.make(str(unit_bytes), "a.txt", "--bpe-dir", BPE, "--unit-bytes", unit_bytes, "--workers", 1,
                      tokenizer="gpt2")
            streams.append(stream(self.path(str(unit_bytes))).tolist())
        self.assertEqual(streams.count(streams[0]), len(streams))

    @needs("tokenizers")
    def test_a_token_may_be_longer_than_255_bytes(self):
        """As in GPT-NeoX-20B's tokenizer, which Pythia and OLMo 1 use. A trained tokenizer has none."""
        import tokenizers
        text = f"{'=' * 512}\ntext\n" * 200
        self.path("lines.txt").write_text(text)
        self.make("out", "lines.txt", tokenizer="train:300")
        trained = tokenizers.Tokenizer.from_file(str(self.path("out", "tokenizer", "tokenizer.json")))
        self.assertEqual(max(map(len, trained.get_vocab())), 128)  # a merge doubles
        trained = byte_level(size=300, texts=[text])
        trained.save(str(self.path("long.json")))
        self.assertEqual(max(map(len, trained.get_vocab())), 512)
        self.make("out2", "lines.txt", tokenizer=self.path("long.json"))
        size = trained.get_vocab_size()
        self.assertEqual(self.decoded(size, size - 1, "out2"), text.encode())

    @needs("tokenizers")
    def test_training_a_tokenizer_is_deterministic_and_its_file_gives_the_same_tokens(self):
        import tokenizers
        texts = some_texts(200)
        write_parquet(self.path("a.parquet"), texts)
        for out, workers in (("one", 1), ("two", 2)):
            self.make(out, "a.parquet", "--workers", workers, tokenizer="train:300")
        self.assertEqual(contents(self.path("one")), contents(self.path("two")))
        manifest = self.manifest("one")
        self.assertLessEqual(manifest["vocab_size"], 300)
        self.path("words.txt").write_text("one two one two\n")  # four merges make its two words, with and without blank
        notice = self.make("few", "words.txt", tokenizer="train:5000")[1]
        size = self.manifest("few")["vocab_size"]
        self.assertTrue(257 < size < 270, size)
        self.assertIn(f"prepare: --tokenizer train:5000: this text gives only {size} tokens\n", notice)
        self.assertNotIn("gives only", self.make("three", "a.parquet", tokenizer="train:270")[1])
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
        self.make("out", "a.parquet", "--workers", 1, "--val-tokens", 2, "--lossy",
                  tokenizer=self.path("tokenizer.json"))
        shard = read_shard(self.path("out", "a_train_000001.bin"))
        self.assertEqual(shard.dtype.itemsize, 4)
        self.assertEqual(stream(self.path("out")).tolist(), [70000, 2, 69999, 70000, 65536, 0, 65535])
        self.assertEqual(run("verify", self.path("out"))[0], 0)

    def decoded(self, size, delimiter, out="out"):
        """Decodes all tokens except the first, with tokens.bin only."""
        table, first_blank = read_token_bytes(self.path(out, "tokenizer", "tokens.bin"), size, delimiter)
        tokens = stream(self.path(out))[1:]
        text = b"".join(table[token] for token in tokens)
        return text[1:] if first_blank and text[:1] == b" " else text

    @needs("tokenizers")
    def test_tokens_bin_has_blanks_for_added_tokens_that_spell_blanks(self):
        import tokenizers
        model = gemma()
        model.save(str(self.path("tokenizer.json")))
        self.path("a.txt").write_text("a  t c")
        self.make("out", "a.txt", tokenizer=self.path("tokenizer.json"))
        self.assertIn(2, stream(self.path("out")))
        self.assertEqual(self.decoded(model.get_vocab_size(), 0), b"a  t c")
        model.decoder = tokenizers.decoders.WordPiece()
        model.save(str(self.path("tokenizer.json")))
        self.assertIn("the decoder WordPiece of this tokenizer.json",
                      self.refused(2, "a.txt", tokenizer=self.path("tokenizer.json")))


class TestInputs(PrepareCase):

    def test_a_txt_file_is_one_document_or_one_per_line(self):
        for name, data in (("1.txt", b"\xef\xbb\xbfone\r\ntwo\n\nthree"), ("2.txt", b""), ("3.txt", b"four\n")):
            self.path(name).write_bytes(data)
        self.assert_documents("out", ".", ["one\r\ntwo\n\nthree", "four\n"], "--workers", 1)
        self.assert_documents("lines", "*.txt", ["one", "two", "three", "four"], "--txt-documents", "line", "--workers",
                              1, "--unit-bytes", 4)

    def test_other_text_files_are_read_if_they_are_named(self):
        for name, data in (("a.md", b"# one"), ("b.py", b"two"), ("c.tex", b"three"), ("d.html", b"four"),
                           ("e.txt", b"five"), ("f.png", b"six")):
            self.path(name).write_bytes(data)
        self.assert_documents("named", ["a.md", "b.py", "c.tex", "d.html"], ["# one", "two", "three", "four"])
        self.assert_documents("folder", ".", ["five"])
        self.assertIn("f.png: unknown kind of file", self.refused(2, "f.png"))

    def test_hidden_files_and_folders_are_not_read(self):
        for name in ("a.txt", ".b.txt", "c/d.txt", "c/.e/f.txt", ".git/g.txt"):
            self.path(name).parent.mkdir(exist_ok=True)
            self.path(name).write_text(name)
        self.assert_documents("out", ".", ["a.txt", "c/d.txt"])
        self.path("out", "._t_train_000000.bin").write_text("of another system")
        self.assertEqual(run("verify", self.path("out"))[0], 0)

    def test_linked_folders_are_entered_once(self):
        for name in ("data/a.txt", "data/below/b.txt", "elsewhere/c.txt"):
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).write_text(name)
        self.path("data", "linked").symlink_to(self.path("elsewhere"))
        self.path("data", "below", "cycle").symlink_to(self.path("data"))
        self.assert_documents("out", "data", ["data/a.txt", "data/below/b.txt", "elsewhere/c.txt"])

    @needs("tokenizers")
    def test_the_text_that_trains_a_tokenizer_is_named_by_its_size(self):
        self.path("a.txt").write_text("some words, " * 1000)
        for flags, notice in (((), "training a tokenizer on the input's 12,000 bytes"),
                              (("--train-bytes", 5000),
                               "training a tokenizer on at most the first 5,000 bytes of the input's text")):
            self.assertIn(notice, self.make(f"out{len(flags)}", "a.txt", *flags, tokenizer="train:300")[1])

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

    def test_bad_rows_are_counted_by_reason_and_omitted(self):
        good = [str(number) for number in range(9)]
        write_parquet(self.path("a.parquet"), [*good, "one", None, b"\xff\xfe", "two", b"ok\x80", None])
        write_lines(self.path("b.jsonl"), [b'{"text": "three"}', b'{"text": null}', b'{"other": 1}',
                                           b'{"text": 7}', b'[1]', b'{"text": "cut',
                                           b'{"text": "\xff"}', b'{"text": "\\ud800"}', b'', b'  ', b'{"text": ""}'])
        self.path("c.txt").write_bytes(b"four\n\xff\nfive")
        self.assert_documents("out", ["a.parquet", "b.jsonl", "c.txt"],
                              [*good, "one", "two", "three", "", "four\nfive"], "--workers", 2)
        self.assertEqual(self.manifest("out")["good_rows"], 9 + 2 + 2 + 2)
        self.assertEqual(self.manifest("out")["bad_rows"],
                         {"null": 4, "not text": 1, "invalid UTF-8": 5, "not JSON": 1, "array": 1, "NUL bytes": 0,
                          "special token": 0, "not tokenized": 0})

    def test_more_bad_rows_than_good_ones_are_an_error_with_advice(self):
        latin = "für\nschön\nplain\nGrüße\n".encode("latin-1")
        write_lines(self.path("b.jsonl"), [b'{"body": "x", "n": 1, "url": "y"}'] * 3)
        for name, data, cure in (("a.txt", latin, "iconv -f LATIN1"),
                                 ("b.jsonl", None, "with --text-field (keys with text: body, url)"),
                                 ("f.jsonl", b'[{"text": "x"}, {"text": "y"}]', "jq -c '.[]' OLD > NEW"),
                                 ("g.jsonl", '{"text": "x"}\r\n{"text": "y"}\r\n'.encode("utf-16"), "iconv -f UTF-16"),
                                 ("c.jsonl", b"<html>\n</html>\n", "one JSON object per line"),
                                 ("d.txt", bytes(5000), "it is not text"),
                                 ("e.txt", "Some text\nof two lines\n".encode("utf-16"), "iconv -f UTF-16")):
            if data:
                self.path(name).write_bytes(data)
            line = self.refused(1, name, out="out-" + name)
            for part in (str(self.path(name)), "more bad rows than good ones", cure):
                self.assertIn(part, line)
        # The advice works, in the same folder.
        self.make("out-b.jsonl", "b.jsonl", "--text-field", "body")
        self.path("a.txt").write_text(latin.decode("latin-1"), encoding="utf-8")
        self.assert_documents("out-a.txt", "a.txt", [latin.decode("latin-1")])
        # A file of bad rows beside many good rows is only counted.
        write_lines(self.path("0.jsonl"), [b'{"text": "x"}'] * 4)
        self.make("mixed", ["0.jsonl", "b.jsonl"])
        self.assertEqual(self.manifest("mixed")["bad_rows"]["null"], 3)

    def test_a_damaged_file_is_named_and_finished_work_is_kept(self):
        texts = some_texts(60)
        write_parquet(self.path("1.parquet"), texts)
        # Without compression, so that only the checksum can detect a changed page.
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
            arguments = self.command(["1.parquet", bad], "--shard-tokens", 5000, out=out)
            self.assertIn(str(bad), self.fails(1, *arguments))
            self.assertFalse(out.joinpath("manifest.json").exists())
            bad.write_bytes(self.path(f"good.{kind}").read_bytes())
            _, err = self.prepare(*arguments)  # the repaired file continues the run
            self.assertIn("continuing", err)
            self.assertEqual(stream(out).tolist(), bytes_stream(texts + texts), (kind, damage))

    def test_a_file_that_changed_during_preparation_is_refused(self):
        write_parquet(self.path("a.parquet"), some_texts(60))
        self.path("z.parquet").write_bytes(b"damaged")
        arguments = self.command(["a.parquet", "z.parquet"], "--shard-tokens", 3000, "--unit-bytes", 100)
        self.fails(1, *arguments)
        write_parquet(self.path("a.parquet"), some_texts(60, seed=2))
        self.assertIn("a.parquet has changed", self.fails(1, *arguments))

    def test_a_complete_folder_whose_files_changed_is_refused(self):
        (self.path("d")).mkdir()
        for name in "ab":
            self.path("d", f"{name}.txt").write_text(f"text of {name}\n" * 20)
        arguments = self.command("d")
        self.prepare(*arguments)
        before = contents(self.path("out"))
        self.path("d", "b.txt").touch()
        self.assertIn("already complete", self.prepare(*arguments)[0])
        self.path("d", "b.txt").write_text("longer than it was\n" * 20)
        self.assertIn("b.txt has changed since its first part was tokenized", self.fails(1, *arguments))
        self.path("d", "c.txt").write_text("new")
        self.assertIn("the list of input files has changed", self.fails(2, *arguments))
        for path in self.path("d").iterdir():  # the source need not be kept
            path.unlink()
        self.assertIn("already complete", self.prepare(*arguments)[0])
        self.assertEqual(contents(self.path("out")), before)

    def test_a_folder_that_cannot_be_read_is_an_error(self):
        self.path("d", "below").mkdir(parents=True)
        self.path("d", "a.txt").write_text("text")
        scan = os.scandir

        def scandir(path):
            if str(path).endswith("below"):
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        with mock.patch("os.scandir", scandir):
            self.assertIn("d/below: Permission denied", self.refused(1, "d"))

    def test_input_without_text_fails_with_the_reason(self):
        write_parquet(self.path("a.parquet"), [None, None])
        self.assertIn("null 2", self.refused(1, "a.parquet"))
        pq.write_table(pa.table({"body": ["x"], "text": [1]}), self.path("b.parquet"))
        self.assertIn("is int64, not text; choose one with --text-field (columns of text: body)",
                      self.refused(1, "b.parquet", out="p"))
        self.make("p", "b.parquet", "--text-field", "body")


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
    def test_a_dataset_is_found_by_name_configuration_and_split(self):
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
    def test_tokenizers_are_found_by_hub_name_and_by_folder(self):
        write_parquet(self.path("a.parquet"), ["a b a"])
        import tokenizers
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[START]": 2}, unk_token="a"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        model.save(str(self.path("tokenizer.json")))
        self.path("tokenizer_config.json").write_text(json.dumps({"bos_token": "[START]"}), encoding="utf-8")
        with self.hub():
            for number, name in enumerate(("hf:a/b", self.folder, self.path("tokenizer.json"))):
                out = self.path(f"out{number}")
                self.prepare(self.path("a.parquet"), "--tokenizer", name, "--val-tokens", 0, "--out", out, "--lossy")
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
    def test_a_download_is_deleted_once_its_tokens_are_in_shards(self):
        self.path("sample", "10BT").mkdir(parents=True)
        for i in range(8):
            write_parquet(self.path("sample", "10BT", f"{i}.parquet"), some_texts(40, seed=i))
        kept, record = [], pipeline.Run._record_shard

        def note(run, shard):
            record(run, shard)
            files = self.path("out", ".prepare", "downloads").rglob("*.parquet")
            kept.append((run.state["frontier"][0], min((int(path.stem) for path in files), default=8)))

        with self.hub(), mock.patch.object(pipeline.Run, "_record_shard", note):
            self.prepare("fineweb", "--tokenizer", "bytes", "--out", self.path("out"), "--delete-downloads",
                         "--shard-tokens", 9000, "--unit-bytes", 500, "--workers", 1)
        self.assertGreater(len(kept), 8)
        self.assertEqual([oldest for _, oldest in kept], [frontier for frontier, _ in kept])

    @needs("huggingface_hub")
    def test_ctrl_c_does_not_wait_for_a_download(self):
        program = """
import pathlib, sys, time
from unittest import mock
import huggingface_hub, prepare
def download(*_, **__):
    pathlib.Path("downloading").touch()
    time.sleep(600)
huggingface_hub.hf_hub_download = download
files = [mock.Mock(path="sample/10BT/a.parquet", size=1)]
huggingface_hub.HfApi = lambda: mock.Mock(repo_info=lambda *_, **__: mock.Mock(sha="c0ffee"),
                                          list_repo_tree=lambda *_, **__: files)
sys.exit(prepare.main(["fineweb", "--tokenizer", "bytes", "--out", "out"]))
"""
        process = self.start(sys.executable, "-c", program, PYTHONPATH=SCRIPTS)
        while process.poll() is None and not self.path("downloading").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(errors, "prepare: interrupted; run the same command to continue\n")

    @needs("huggingface_hub")
    def test_without_a_network_one_line_gives_advice(self):
        with self.hub(ConnectionError("no route\nto host")):
            line = self.fails(1, "fineweb:100BT", "--tokenizer", "bytes", "--out", self.path("out"))
        for part in ("HuggingFaceFW/fineweb", "sample/100BT", "no route", "prepare.py 'FOLDER/*.parquet' --out"):
            self.assertIn(part, line)
        self.assertFalse(self.path("out").exists())
