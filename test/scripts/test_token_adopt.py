"""prepare.py adopt and export, and training on shards without a manifest:
dev/run_tests.py test/scripts/test_token_adopt.py"""

import json
import os
import shutil
import struct
import subprocess

import numpy as np
from preparing import PrepareCase, contents, read_shard, run, some_texts, stream, write_lines
from test_token_writers import PYTHON, WRITERS, writers
from testing import BUILD, as_flags, needs, read_json

END = 256
TINY = {"--layers": 1, "--channels": 16, "--heads": 2, "--seq-len": 32, "--batch-tokens": 64, "--micro-batch": 2,
        "--steps": 4, "--eval-every": 4, "--schedule": "constant", "--document-mask": "on"}


class ShardCase(PrepareCase):
    def make_shards(self, out="out", *flags, count=60):
        write_lines(self.path("x.jsonl"), [json.dumps({"text": text}).encode() for text in some_texts(count)])
        self.make(out, "x.jsonl", "--shard-tokens", 2000, *flags)
        return self.path(out)

    def without_manifest(self, folder):
        (folder / "manifest.json").unlink()
        shutil.rmtree(folder / "tokenizer")
        return folder


class TestAdopt(ShardCase):
    def test_the_manifest_is_that_of_prepared_shards(self):
        folder = self.make_shards()
        before, hashes = self.manifest("out"), contents(folder)
        self.without_manifest(folder)
        printed, _ = self.prepare("adopt", folder, "--tokenizer", "bytes")
        self.assertIn(f"{before['documents']} documents after the delimiter 256", printed)
        after = self.manifest("out")
        for shard in before["shards"]:
            shard.pop("documents_in_validation", None)  # counted while text is tokenized
        for key in ("shards", "tokenizer", "vocab_size", "delimiter", "token_bytes", "tokens", "documents"):
            self.assertEqual(after[key], before[key], key)
        self.assertEqual({path for path, found in contents(folder).items() if hashes[path] != found},
                         {(folder / "manifest.json").relative_to(folder)})
        self.assertEqual(run("verify", folder)[0], 0)
        self.assertIn("already", self.prepare("adopt", folder, "--tokenizer", "bytes")[0])
        self.assertIn("made with other options", self.fails(2, "adopt", folder, "--tokenizer", "gpt2"))

    def test_names_of_llm_cs_starter_data(self):
        folder = self.make_shards()
        files = sorted(folder.glob("*.bin"))
        self.without_manifest(folder)
        for path, name in zip(files, ("tiny_val.bin", "tiny_train.bin")):
            path.rename(folder / name)
        for path in files[2:]:
            path.unlink()
        self.prepare("adopt", folder, "--tokenizer", "bytes")
        self.assertEqual([(shard["file"], shard["split"]) for shard in self.manifest("out")["shards"]],
                         [("tiny_val.bin", "val"), ("tiny_train.bin", "train")])

    def test_shards_that_do_not_fit_are_refused_and_nothing_is_left(self):
        folder = self.without_manifest(self.make_shards())
        shard = sorted(folder.glob("*.bin"))[1]
        good, before = shard.read_bytes(), contents(folder)

        def refused(said, *flags):
            left = contents(folder)
            line = self.fails(2, "adopt", folder, "--tokenizer", "bytes", *flags)
            self.assertIn(said, line)
            self.assertEqual(contents(folder), left)
            return line

        for data, said in ((good[:-2] + struct.pack("<H", 257), "token 257 at position 1,999 is outside"),
                           (good[:-2], "the header says"), (b"abc", "shorter than the header"),
                           (struct.pack("<3i", 20240801, 7, 1).ljust(1024, b"\0") + bytes(4), "tokens of 4 bytes")):
            shard.write_bytes(data)
            self.assertIn(str(shard), refused(said))
        shard.write_bytes(good)
        shard.rename(folder / "x_000001.bin")
        refused("states no split")
        (folder / "x_000001.bin").rename(shard)
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "mine.txt").write_text("x")
        refused("is there and not of prepare.py")
        (folder / "tokenizer" / "description.json").write_text("{}")  # of prepare.py: a refused call leaves it
        for path in folder.glob("*.bin"):
            data = np.fromfile(path, np.uint8)
            data[1024:].view("<u2")[data[1024:].view("<u2") == END] = 97
            data.tofile(path)
        refused("no token is 256")
        self.assertNotEqual(contents(folder), before)
        refused("no .bin files") if not [path.unlink() for path in folder.glob("*.bin")] else None
        self.fails(2, "adopt", self.path("none"), "--tokenizer", "bytes")

    def test_training_masks_documents_by_the_flag_as_by_the_manifest(self):
        if not os.path.exists(BUILD / "train_gpt2"):
            self.skipTest(f"needs {BUILD}/train_gpt2")
        folder = self.make_shards()
        losses = {}

        def train(name, *flags):
            done = self.run_program("--data", folder, "--out", self.path(name), *as_flags(TINY), *flags)
            losses[name] = [json.loads(line).get("loss") for line in
                            self.path(name, "metrics.jsonl").read_text().splitlines()]
            return done.stdout + done.stderr

        train("manifest")
        self.without_manifest(folder)
        said = train("flag", "--delimiter", END, "--vocab-size", 257)
        self.assertNotIn("is assumed", said)
        self.assertEqual(losses["flag"], losses["manifest"])
        train("other", "--delimiter", 97, "--vocab-size", 257)
        self.assertNotEqual(losses["other"], losses["manifest"])
        self.assertEqual(read_json(self.path("flag", "config.json"))["data"]["delimiter"], END)
        self.run_program("--data", folder, "--resume", self.path("flag"), "--steps", 6)
        self.prepare("adopt", folder, "--tokenizer", "bytes")
        train("adopted")
        self.assertEqual(losses["adopted"], losses["manifest"])


class TestExport(ShardCase):
    def documents(self, ids):
        """Returns the documents of a stream whose delimiter ends them."""
        ends = np.flatnonzero(np.array(ids) == END) + 1
        return [part.tolist() for part in np.split(np.array(ids), ends) if part.size]

    def test_nanogpt_reads_the_stream_with_the_delimiter_after_documents(self):
        folder = self.make_shards()
        self.prepare("export", folder, "--to", "nanogpt", "--out", self.path("nano"))
        found = [np.memmap(self.path("nano", f"{split}.bin"), dtype=np.uint16, mode="r") for split in ("val", "train")]
        whole = stream(folder)
        self.assertEqual(np.concatenate(found).tolist(), [*whole.tolist()[1:], END])
        self.assertLessEqual(abs(found[0].size - read_shard(sorted(folder.glob("*_val_*.bin"))[0]).size), 1)

    def test_megatron_and_back(self):
        for number, flags in enumerate(((), ("--val-tokens", 0), ("--max-tokens", 1500), ("--val-tokens", 10**6))):
            folder, out = self.make_shards(f"s{number}", *flags), self.path(f"m{number}")
            printed, _ = self.prepare("export", folder, "--to", "megatron", "--out", out)
            shards = {split: [token for shard in self.manifest(folder)["shards"] if shard["split"] == split
                              for token in read_shard(folder / shard["file"]).tolist()] for split in ("val", "train")}
            whole, got = [*shards["val"], *shards["train"]], []
            for split in ("val", "train"):
                if not shards[split]:
                    self.assertFalse((out / f"{split}.bin").exists())
                    continue
                ids = np.fromfile(out / f"{split}.bin", "<u2").tolist()
                self.assertIn(f"{split}.bin: {len(ids):,} tokens", printed)
                got += ids
                if number in (0, 2) and "megatron" in writers():
                    done = subprocess.run([PYTHON, WRITERS, "read_megatron", out / split], capture_output=True,
                                          text=True)
                    self.assertEqual(json.loads(done.stdout), self.documents(ids))
                back = self.path(f"back{number}{split}")
                self.prepare("tokens", out / f"{split}.bin", "--tokenizer", "bytes", "--out", back)
                self.assertEqual(stream(back).tolist(), [token for document in self.documents(ids) for token in
                                                         (END, *(token for token in document if token != END))])
            self.assertEqual(got, [*whole[1:], END])

    def test_what_cannot_be_exported(self):
        folder = self.make_shards()
        shard = sorted(folder.glob("*.bin"))[1]
        good = shard.read_bytes()
        shard.write_bytes(good[:1022] + b"xx" + good[1024:-2])
        before = sorted(os.listdir(self.folder))
        self.fails(1, "export", folder, "--to", "nanogpt", "--out", self.path("e"))
        shard.write_bytes(good)
        value = self.manifest(folder)
        (folder / "manifest.json").write_text(json.dumps(value | {"vocab_size": 65537}))
        self.assertIn("ids of uint16", self.fails(2, "export", folder, "--to", "nanogpt", "--out", self.path("e")))
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.path("full").mkdir()
        self.path("full", "x").write_text("x")
        self.assertIn("not an empty folder", self.fails(2, "export", folder, "--to", "megatron", "--out",
                                                        self.path("full")))


@needs("numpy")
class TestMegatronTypes(ShardCase):
    def test_a_large_vocabulary_has_ids_of_four_bytes(self):
        folder = self.make_shards()
        value = self.manifest(folder)
        (folder / "manifest.json").write_text(json.dumps(value | {"vocab_size": 65500}))
        self.prepare("export", folder, "--to", "megatron", "--out", self.path("wide"))
        self.assertEqual(np.fromfile(self.path("wide", "val.bin"), "<i4").max(), END)
        self.assertEqual(self.path("wide", "val.idx").read_bytes()[17], 4)
