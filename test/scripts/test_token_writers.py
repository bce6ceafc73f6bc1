"""prepare.py tokens on the files of the programs that people use:  dev/run_tests.py test/scripts/test_token_writers.py

The environment variable TEON_WRITERS names a Python with the packages of dev/requirements-token-writers.txt. They write
20 documents. The stream must be that of llm.c's rule, which is computed here from tiktoken's ids.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import unittest

import known_documents
import numpy as np
from known_documents import DELIMITER, ENGLISH
from preparing import PrepareCase, run, stream
from testing import BPE, ROOT, needs

WRITERS = ROOT / "test" / "support" / "token_writers.py"
PYTHON = os.environ.get("TEON_WRITERS", sys.executable)


@functools.cache
def writers():
    """Returns the names of the writers that can run here."""
    return subprocess.run([PYTHON, WRITERS], capture_output=True, text=True).stdout.split()


@functools.cache
def documents():
    """Returns the texts of known_documents.py, their ids and the delimiter."""
    from teon_data.tokenizer import GPT2_PATTERN
    from tiktoken import Encoding
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(BPE / "vocab.bpe"),
                                            encoder_json_file=str(BPE / "encoder.json"))
    encoding = Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks,
                        special_tokens={"<|endoftext|>": DELIMITER})
    texts = known_documents.documents()
    return {"texts": texts, "rows": [encoding.encode_ordinary(text) for text in texts], "delimiter": DELIMITER}


def before(rows):
    """Returns the stream of llm.c's rule: the delimiter before each document."""
    return [token for row in rows for token in (DELIMITER, *row)]


def digest(ids):
    return hashlib.sha256(np.array(ids, "<u2").tobytes()).hexdigest()[:16]


@needs("tiktoken", "tokenizers", data=[BPE, ENGLISH])
class TestWriters(PrepareCase):
    def write(self, name, **more):
        """Lets a writer write the documents, or skips the test."""
        if name not in writers():
            raise unittest.SkipTest(f"needs dev/requirements-token-writers.txt for {name} (TEON_WRITERS)")
        done = subprocess.run([PYTHON, WRITERS, name, self.path(name)], input=json.dumps(documents() | more), text=True,
                              capture_output=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return self.path(name)

    def assert_stream(self, source, expected, *flags):
        """Converts a source, whose stream must be the expected ids."""
        out = self.path(f"out-{len(list(self.folder.iterdir()))}")
        printed, errors = self.prepare("tokens", source, "--tokenizer", "gpt2", "--bpe-dir", BPE, "--out", out, *flags)
        self.assertEqual(stream(out).tolist(), expected, source)
        self.assertIn(f"stream {digest(expected)}", printed)
        self.assertEqual(run("verify", out)[0], 0)
        return printed + errors

    def test_the_expected_stream_is_the_known_one(self):
        expected = before(documents()["rows"])
        self.assertEqual((len(expected), digest(expected)), (known_documents.TOKENS, known_documents.HASH))

    def test_datasets_folders(self):
        folder = self.write("datasets_folder")
        for name in ("saved", "again"):
            said = self.assert_stream(folder / name, before(documents()["rows"]))
            self.assertIn("in 20 documents", said)

    def test_datasets_files(self):
        folder, rows = self.write("datasets_files"), documents()["rows"]
        for name in ("i32", "i64", "u16"):
            for ending in ("parquet", "jsonl"):
                self.assert_stream(folder / f"{name}.{ending}", before(rows))
        after = [token for row in rows for token in (*row, DELIMITER)]
        kept = after[:len(after) // 1024 * 1024]
        self.assert_stream(folder / "packed.parquet", kept, "--rows", "packed")
        self.assertIn("say --rows packed", self.fails(2, "tokens", folder / "packed.parquet", "--tokenizer", "gpt2",
                                                      "--bpe-dir", BPE, "--out", self.path("refused")))

    def test_datatrove(self):
        """It takes <|endoftext|> in a text for the delimiter: 21 for 20 documents, of which the index knows."""
        from tokenizers import ByteLevelBPETokenizer
        tokenizer = ByteLevelBPETokenizer(str(BPE / "encoder.json"), str(BPE / "vocab.bpe"))
        tokenizer.add_special_tokens(["<|endoftext|>"])
        tokenizer.save(str(self.path("tokenizer.json")))
        folder = self.write("datatrove", tokenizer_json=str(self.path("tokenizer.json")))
        rows = [tokenizer.encode(text).ids for text in documents()["texts"]]
        self.assertEqual(sum(row.count(DELIMITER) for row in rows), 1)
        for name in ("eos", "none"):
            said = self.assert_stream(folder / name, before(rows))
            self.assertIn("20 documents by the index; 1 delimiter within", said)

    def test_megatron(self):
        folder = self.write("megatron")
        for name in ("eod.bin", "plain.idx", "sentences.bin"):
            self.assertIn("in 20 documents", self.assert_stream(folder / name, before(documents()["rows"])))

    def test_mds(self):
        folder, rows = self.write("mds"), documents()["rows"]
        after = [token for row in rows for token in (*row, DELIMITER)]
        kept = after[:len(after) // 1024 * 1024]
        self.assert_stream(folder / "documents", before(rows))
        self.assert_stream(folder / "compressed", before(rows))
        self.assert_stream(folder / "packed", kept, "--rows", "packed")
        self.assert_stream(folder / "bytes", kept, "--rows", "packed", "--raw", "int64")
        line = self.fails(2, "tokens", folder / "bytes", "--tokenizer", "bytes", "--out", self.path("refused"))
        self.assertIn("bytes without a type", line)

    def test_litdata(self):
        folder = self.write("litdata") / "documents"
        self.assertGreater(len(list(folder.glob("*.bin"))), 1)
        self.assert_stream(folder, before(documents()["rows"]))

    def test_nanogpt(self):
        """As its prepare.py writes them: uint16 in a memory map, the delimiter after each document."""
        folder, rows = self.path("nanogpt"), documents()["rows"]
        folder.mkdir()
        for name, some in (("train", rows[2:]), ("val", rows[:2])):
            ids = np.concatenate([[*row, DELIMITER] for row in some])
            array = np.memmap(folder / f"{name}.bin", np.uint16, "w+", shape=(ids.size,))
            array[:] = ids
            array.flush()
        self.assert_stream(folder / "train.bin", before(rows[2:]), "--raw", "uint16")
        out = self.path("both")
        printed, errors = self.prepare("tokens", folder, "--raw", "uint16", "--tokenizer", "gpt2", "--bpe-dir", BPE,
                                       "--out", out)
        self.assertIn("validating on validation", errors)
        self.assertIn(f"stream val {digest(before(rows[:2]))}, train {digest(before(rows[2:]))}", printed)
        self.assertEqual({shard["file"]: shard["tokens"] for shard in self.manifest("both")["shards"]},
                         {"nanogpt_val_000000.bin": len(before(rows[:2])),
                          "nanogpt_train_000001.bin": len(before(rows[2:]))})
