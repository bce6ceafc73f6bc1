"""Odd inputs, options and signals of scripts/prepare.py:  dev/run_tests.py test/scripts/test_prepare_odd.py"""

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
import types

import pyarrow as pa
import pyarrow.parquet as pq
from preparing import PrepareCase, contents, some_texts, write_lines
from teon_data import files, sources
from testing import PATIENCE, SCRIPTS, failing_files, needs

MOST = 1 << 22  # ids of the engine's reader


class OddTest(PrepareCase):
    def write_text(self, name="a.txt", size=100):
        self.path(name).write_bytes((b"abc d\n" * size)[:size])
        return self.path(name)

    def test_a_name_that_is_not_utf8_is_refused_before_work(self):
        """The engine refuses a manifest with such a name."""
        good = self.write_text()
        folder = self.path("texts")
        folder.mkdir()
        odd = os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")
        with open(odd, "w", encoding="utf-8") as file:
            file.write("abc\n")
        for source in (odd, folder, f"{folder}/*.txt"):
            self.assertIn("is not UTF-8", self.refused(2, source))
        out = os.fsdecode(os.fsencode(self.path("out")) + b"\xe9")
        self.assertIn("is not UTF-8", self.refused(2, good, out=out))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["a.txt", "texts"])

    def test_units_and_shards_that_would_take_days_are_refused_with_the_least_useful_number(self):
        source = self.write_text(size=1 << 20)
        for flag, least in (("--unit-bytes", 11), ("--shard-tokens", 27)):
            self.assertIn(f"use at least {least},", self.refused(2, source, flag, 1))
            self.assertFalse(self.path("refused", "manifest.json").exists())
        self.make("small", self.write_text("small.txt"), "--workers", 1, "--unit-bytes", 1, "--shard-tokens", 9)

    @needs("tokenizers", "sentencepiece")
    def test_a_damaged_tokenizer_is_named_by_the_users_path(self):
        for name, fault in (("mine.json", "not a tokenizer.json"), ("mine.model", "not a SentencePiece model")):
            self.path(name).write_text("{}")
            line = self.refused(1, self.write_text(), tokenizer=self.path(name))
            self.assertIn(f"{self.path(name)}: {fault}", line)
            self.assertNotIn("staged", line)
        self.path("own").mkdir()
        self.tokenizer_file("own/tokenizer.json", range(4))
        self.path("own", "tokenizer_config.json").write_text("{")
        self.assertIn(f"{self.path('own', 'tokenizer_config.json')}: cannot be read as JSON",
                      self.refused(1, "a.txt", tokenizer=self.path("own")))

    def tokenizer_file(self, name, ids):
        vocabulary = dict(zip(("a", "<s>", "b", "c"), ids))
        self.path(name).write_text(json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}}))
        return self.path(name)

    def refuse_ids(self, ids, seed=0):
        """Prepares with a tokenizer of these ids, which must be refused exactly if the engine does not read one."""
        source, name = self.write_text("ids.txt"), self.tokenizer_file(f"{seed}.json", ids)
        out = self.path(f"ids-{seed}")
        # A process of its own, because the soak's threads may not set signal handlers.
        result = self.run_script("prepare.py", source, "--tokenizer", name, "--out", out, "--lossy", "--workers", 1,
                                 expect=None)
        status, errors = result.returncode, result.stderr
        if max(ids) >= MOST:
            self.assertEqual((status, errors.count("\n")), (2, 1), errors)
            self.assertIn(f"its largest id is {max(ids)}; the training programs read ids below {MOST}", errors)
            self.assertFalse((out / "tokenizer").exists())
        else:
            self.assertEqual(status, 0, errors)

    @needs("tokenizers")
    def test_ids_that_the_engine_does_not_read_are_refused_by_name(self):
        for seed, top in enumerate((100, MOST, MOST + 1, 2**31 - 1, 2**32 - 1)):
            with self.subTest(top):
                self.refuse_ids((0, 1, 2, top), seed)
        for size in (MOST + 1, 1 << 24, "٣٣٣", "7" * 5000):
            self.assertIn(f"257 to {MOST} ids", self.refused(2, "ids.txt", tokenizer=f"train:{size}"))

    @needs("tokenizers")
    def test_odd_delimiters_and_configurations_of_a_tokenizer(self):
        source, name = self.write_text("t.txt"), self.tokenizer_file("tokenizer.json", (0, 1, 2, 3))
        for delimiter in ("7" * 5000, "٣", "¹", "-1", "4"):
            with self.subTest(delimiter[:5]):
                error = self.refused(2, source, "--delimiter", delimiter, tokenizer=name)
                self.assertIn("has no such token", error)
                self.assertLess(len(error), 1000)
        odd_tokens = ([], ["<s>"], {}, {"content": None}, {"content": ["<s>"]}, {"content": 5}, 3, None, True)
        for i, odd in enumerate(odd_tokens):
            with self.subTest(odd):
                for eos, delimiter in (("b", 2), (odd, 1)):
                    self.path("tokenizer_config.json").write_text(json.dumps({"bos_token": odd, "eos_token": eos}))
                    self.make(f"{i}-{delimiter}", source, "--lossy", tokenizer=name)
                    self.assertEqual(self.manifest(f"{i}-{delimiter}")["delimiter"], delimiter)

    def test_two_columns_of_one_name_are_refused(self):
        table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "text", "other"])
        pq.write_table(table, self.path("two.parquet"))
        self.assertIn("has 2 columns 'text', expected one", self.refused(1, "two.parquet"))
        self.make("other", "two.parquet", "--text-field", "other")
        self.assertIn("columns of text: text, text, other", self.refused(1, "two.parquet", "--text-field", "none"))

    def test_odd_listings_of_the_hub(self):
        for path, size in ((5, 1), (None, 1), (["a.parquet"], 1), ("a.parquet", None), ("a.parquet", "1"),
                           ("a.parquet", -1)):
            entry = types.SimpleNamespace(path=path, size=size)
            api = types.SimpleNamespace(repo_info=lambda *_, **__: types.SimpleNamespace(sha="1"),
                                        list_repo_tree=lambda *_, **__: [entry])
            before, sources.hub_client = sources.hub_client, lambda _: types.SimpleNamespace(HfApi=lambda: api)
            try:
                with self.subTest(path=path, size=size), self.assertRaisesRegex(files.Failure, "cannot list the"):
                    sources.HubSource(sources.hub_data("fineweb"))
            finally:
                sources.hub_client = before

    def test_a_name_too_long_for_a_shard_is_refused_before_work(self):
        self.assertIn("has 245 characters; at most 200", self.refused(2, self.write_text(), "--name", "n" * 245))
        self.assertFalse(self.path("refused").exists())

    def test_what_a_disk_cannot_do_is_named_with_the_file_or_done_without(self):
        source, library = self.path("a.txt"), failing_files(self.folder)
        write_lines(source, [text.encode() for text in some_texts(50)])
        self.make("whole", source)
        for function in ("mkdir", "open", "write", "fsync", "rename", "fsync_folder"):
            unsupported = (errno.ENOTSUP, errno.ENOSYS) if function == "fsync_folder" else ()
            for code in (errno.EINVAL, errno.EIO, *unsupported):
                out = self.path(f"{function}-{code}")
                with self.subTest(function, error=os.strerror(code)):
                    done = self.call(sys.executable, SCRIPTS / "prepare.py", *self.command(source, out=out),
                                     expect=None, LD_PRELOAD=library, FAIL_UNDER=out, FAIL_CALL=function,
                                     FAIL_ERRNO=code)
                    if function == "fsync_folder" and code != errno.EIO:
                        self.assertEqual(done.returncode, 0, done.stderr)
                        self.assertEqual(contents(out), contents(self.path("whole")))
                        continue
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertRegex(done.stderr.splitlines()[-1],
                                     rf"^prepare: error: .*{out}\S*: .*{os.strerror(code)}")

    def test_a_device_in_place_of_the_manifest_stays(self):
        out = self.path("out")
        out.mkdir()
        (out / "manifest.json.staged").symlink_to("/dev/null")
        os.mkfifo(out / "text_train_000001.bin")
        self.assertIn("contains .bin files of another tool", self.refused(2, self.write_text("text.txt"), out=out))
        os.remove(out / "text_train_000001.bin")
        (out / "manifest.json").symlink_to("/dev/null")
        self.refused(1, "text.txt", out=out)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def stop_while_workers_start(self, number, delay):
        """Sends the signal `delay` seconds after the output folder appears; prepare must end by it."""
        out = self.path(f"stopped-{number}-{delay:.6f}")
        process = subprocess.Popen([sys.executable, SCRIPTS / "prepare.py", self.path("many.jsonl"), "--tokenizer",
                                    "bytes", "--out", out, "--workers", "12", "--unit-bytes", "2000"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        while not out.exists() and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(delay)
        process.send_signal(number)
        errors = process.communicate(timeout=PATIENCE)[1]
        self.assertNotIn("Traceback", errors)
        self.assertEqual(process.returncode, 130 if number == signal.SIGINT else 143, errors)
        self.assertFalse((out / "manifest.json").exists())

    def write_many(self):
        write_lines(self.path("many.jsonl"), [json.dumps({"text": text}).encode() for text in some_texts(20000)])

    def test_no_signal_is_lost_while_workers_start(self):
        self.write_many()
        dice = random.Random(5)
        for i in range(12):
            number = (signal.SIGINT, signal.SIGTERM)[i % 2]
            with self.subTest(number, i=i):
                self.stop_while_workers_start(number, dice.uniform(0, 0.12))
