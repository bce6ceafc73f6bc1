"""The demo's corpora and report:  dev/run_tests.py test/dev/test_corpus.py"""

import contextlib
import io
import json
import math
import sys
from unittest import mock

import make_corpus
from common import ngrams
from testing import ROOT, Case, needs, write_run, write_shard


class CorpusTest(Case):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "corpus"
        with mock.patch.object(sys, "argv", ["make_corpus.py", str(self.out)]), \
                contextlib.redirect_stdout(io.StringIO()):
            make_corpus.main()

    @needs("numpy", "pyarrow", "tqdm")
    def test_prepare_accepts_the_folder(self):
        from teon_data import shards, tokenizer
        manifest, faults = shards.verify(str(self.out), 1)
        self.assertEqual(faults, [])
        self.assertEqual({shard["split"] for shard in manifest["shards"]}, {"train", "val"})
        self.assertEqual(tokenizer.load(str(self.out / "tokenizer")).delimiter, make_corpus.DELIMITER)

    def test_the_shards_are_the_text(self):
        manifest = json.loads((self.out / "manifest.json").read_text())
        tokens = [t for split in ("val", "train") for t in ngrams.tokens_of(self.out, manifest, split)]
        self.assertEqual(tokens[0], 256)
        self.assertEqual(bytes(tokens[1:]), (ROOT / "experiments" / "shakespeare.txt").read_bytes())


class ReportTest(Case):
    def write_data(self):
        """Two tokens and a delimiter."""
        write_shard(self.folder / "d" / "t_train_000000.bin", [0, 1, 1, 2, 1, 1, 2])
        write_shard(self.folder / "d" / "t_val_000001.bin", [1, 2, 1])
        (self.folder / "d" / "manifest.json").write_text(json.dumps({"vocab_size": 3, "shards": [
            {"file": "t_train_000000.bin", "split": "train", "tokens": 7},
            {"file": "t_val_000001.bin", "split": "val", "tokens": 3, "text_bytes": 4}]}))

    def test_baselines_of_a_text_that_can_be_counted_by_hand(self):
        self.write_data()
        manifest = {"shards": json.loads((self.folder / "d" / "manifest.json").read_text())["shards"]}
        train, val = (ngrams.tokens_of(self.folder / "d", manifest, split) for split in ("train", "val"))
        found = ngrams.losses(train, val, 3)
        a, b = 4.1 / 7.3, 2.1 / 7.3  # shares of the tokens 1 and 2, with 0.1 more of each
        self.assertAlmostEqual(found["unigram"], -(math.log(b) + math.log(a)) / 2)
        # Pairs behind 1 and 2: 1 1 twice, 1 2 twice, 2 1 once. Ney's discount: once / (once + 2 twice) = 1 / 5.
        two, one = (2 - 0.2) / 4 + 0.2 * 2 / 4 * b, (1 - 0.2) / 1 + 0.2 * a
        self.assertAlmostEqual(found["bigram"], -(math.log(two) + math.log(one)) / 2)
        # Behind 1 2 came only 1, once, and nothing else is counted, so that the discount is all of it: it backs off.
        self.assertAlmostEqual(found["trigram"], found["bigram"])

    def test_a_run_above_the_baseline_fails(self):
        self.write_data()
        write_run(self.folder / "good", losses=(4, 3, 2, 0.1))
        write_run(self.folder / "bad", losses=(4, 3, 2, 1.9))
        words = ["--data", self.folder / "d", "--must-beat", "unigram"]
        done = self.run_script("demo_report.py", *words, self.folder / "good")
        self.assertRegex(done.stdout, r"good +0\.100 +0\.072\n")  # 0.1 nats of 2 tokens / 4 bytes / ln 2
        done = self.run_script("demo_report.py", *words, self.folder / "good", self.folder / "bad", expect=1)
        self.assertIn("bad did not get below the unigram model", done.stderr)
        self.assertNotIn("good did", done.stderr)
