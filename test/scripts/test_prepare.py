"""The output of scripts/prepare.py:  dev/run_tests.py test/scripts/test_prepare.py"""

import hashlib
import json
import os
import random
from unittest import mock

from preparing import (
    PrepareCase,
    bytes_stream,
    contents,
    prepare,
    read_shard,
    run,
    some_texts,
    stream,
    write_lines,
    write_parquet,
)


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

    def test_default_names_do_not_contain_a_split(self):
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

    def test_damage_after_the_last_wanted_token_is_ignored(self):
        write_parquet(self.path("a.parquet"), some_texts(40))
        self.path("b.parquet").write_bytes(b"damaged")
        self.make("out", ["a.parquet", "b.parquet"], "--max-tokens", 2000, "--workers", 3, "--unit-bytes", 100)

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

    def test_an_input_that_is_not_a_file_is_refused_at_once(self):
        os.mkfifo(self.path("pipe.txt"))
        self.path("zero.txt").symlink_to("/dev/zero")
        self.path("folder.jsonl.d").mkdir()
        self.path("folder.jsonl.d", "z.jsonl").symlink_to("/dev/zero")
        for name, what in (("pipe.txt", "a pipe"), ("zero.txt", "a device"), ("folder.jsonl.d", "a device")):
            for more in ([], ["--txt-documents", "line"]):
                self.assertIn(f"is {what}, not a regular file", self.refused(2, name, *more))
        write_parquet(self.path("a.parquet"), some_texts(5))
        for file in ("manifest.json", "a_train_000001.bin", "tokenizer/tokens.bin"):
            out = self.path("out-" + file.replace("/", "-"))
            self.make(out, "a.parquet")
            (out / file).unlink()
            os.mkfifo(out / file)
            self.assertIn(f"{out / file}: is a pipe, not a regular file", self.fails(1, "verify", out))

    def test_a_damaged_manifest_or_state_is_named(self):
        source, out = self.path("a.parquet"), self.path("out")
        write_parquet(source, some_texts(20))
        command = self.command(source, "--shard-tokens", 100, out=out)
        self.prepare(*command)
        path = out / "manifest.json"
        good = self.manifest("out")

        def places(value, found=()):
            """Yields the path of every value in a JSON value."""
            for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
                yield (*found, key)
                yield from places(value[key], (*found, key))

        damages = ["", "[]", "null", "[" * 100000, "{", '{"shards": 1' + "0" * 5000 + "}"]
        for place in places(good):
            if place[0] not in ("tool", "options", "good_rows", "text", "rows_in_validation") and place[:2] not in (
                    ("source", "kind"), ("source", "files"), ("tokenizer", "kind"), ("tokenizer", "vocab_size"),
                    ("tokenizer", "delimiter"), ("tokenizer", "identity")) and place[-1] not in (
                    "bytes", "trained", "text_bytes", "documents_in_validation"):
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
        for damage in ("[]", "{}", '{"version": 4}', '{"version": 4, "options": []}'):
            state.write_text(damage, encoding="utf-8")
            self.assertIn(str(state), self.fails(1, *command))

    def test_the_progress_bar_moves_within_a_unit(self):
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

    def test_one_is_singular(self):
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
        self.path("a.pdf").write_text("x", encoding="utf-8")
        for arguments in ([], [source], ["--out", out], [source, "--out", out, "--nonsense"],
                          [self.path("none"), "--out", out], [self.path("none*"), "--out", out],
                          [self.path("a.pdf"), "--out", out], ["fineweb:7BT", "--out", out],
                          ["fineweb", source, "--out", out], [source, "--out", source, "--tokenizer", "bytes"]):
            self.fails(2, *arguments)
            self.assertFalse(out.exists(), arguments)
        for options in (["--tokenizer", "nonsense"], ["--tokenizer", "hf:x"], ["--tokenizer", "hf:x/y:z"],
                        ["--tokenizer", "train:9"], ["--tokenizer", self.path("none.json")], ["--shard-tokens", "many"],
                        ["--shard-tokens", "1e12"], ["--max-tokens", "0"], ["--workers", "-1"], ["--name", "a/b"],
                        ["--delimiter", "<s>"], ["--bpe-dir", self.folder]):
            self.fails(2, source, "--out", out, *options)
            self.assertFalse(out.exists(), options)
        self.make("made", source)
        for options in (["--shard-tokens", 8], ["--text-field", "t"]):
            self.assertIn("made with other options", self.refused(2, source, *options, out="made"))

    def test_counts(self):
        from teon_data.files import quantity
        for text, value in (("7", 7), ("1e9", 10**9), ("1.5e3", 1500), ("100M", 10**8), ("512Ki", 524288),
                            ("2b", 2 * 10**9)):
            self.assertEqual(quantity(text), value)
        for text in ("", "-1", "1.5", "1e", "nan", "inf", "1e300", "7q", "0x10", "1 000", "٣", "1e٣", "7" * 5000):
            self.assertRaises(ValueError, quantity, text)
