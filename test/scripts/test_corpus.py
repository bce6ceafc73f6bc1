"""scripts/make_corpus.py:  scripts/run_tests.py test/scripts/test_corpus.py"""

import contextlib
import io
import sys
from unittest import mock

import make_corpus
from testing import Case, needs


class CorpusTest(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "stdlib").mkdir()
        for i in range(60):
            (self.folder / "stdlib" / f"module{i}.py").write_text(f"def function_{i}(value):\n    return value + {i}\n")
        self.out = self.folder / "corpus"
        with mock.patch.object(sys, "argv", ["make_corpus.py", str(self.out)]), \
                mock.patch("sysconfig.get_path", return_value=str(self.folder / "stdlib")), \
                contextlib.redirect_stdout(io.StringIO()):
            make_corpus.main()

    @needs("numpy", "pyarrow", "tqdm")
    def test_prepare_accepts_the_folder(self):
        from teon_data import shards, tokenizer
        manifest, faults = shards.verify(str(self.out), 1)
        self.assertEqual(faults, [])
        self.assertEqual({shard["split"] for shard in manifest["shards"]}, {"train", "val"})
        made = tokenizer.create(str(self.folder / "tokenizer"), "bytes", None, None, ())
        self.assertEqual(made, manifest["tokenizer"])
        for file in ("description.json", "tokens.bin"):
            self.assertTrue((self.out / "tokenizer" / file).exists())
        self.assertEqual((self.out / "tokenizer" / "tokens.bin").read_bytes(),
                         (self.folder / "tokenizer" / "tokens.bin").read_bytes())
        self.assertEqual(tokenizer.load(str(self.out / "tokenizer")).delimiter, make_corpus.DELIMITER)
