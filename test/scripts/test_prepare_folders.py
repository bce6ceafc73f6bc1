"""Which files of a folder prepare.py reads, and which of them are for validation:
dev/run_tests.py test/scripts/test_prepare_folders.py"""

import json

import pyarrow as pa
from preparing import PrepareCase, bytes_stream, contents, read_shard, run, stream, write_lines, write_parquet
from teon_data.splits import role_of, split_of


class FolderCase(PrepareCase):
    def write(self, name, texts):
        """Writes documents in the format that the name tells."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".arrow":
            with pa.OSFile(str(path), "wb") as sink:
                table = pa.table({"text": texts})
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
        elif path.suffix == ".parquet":
            write_parquet(path, texts)
        elif path.suffix == ".jsonl":
            write_lines(path, [json.dumps({"text": text}).encode() for text in texts])
        else:
            path.write_text("".join(texts))
        return path

    def assert_splits(self, out, source, training, validation, *flags):
        """Prepares and compares the shards of each split. Returns the notices."""
        _, err = self.make(out, source, *flags)
        for split, texts in (("train", training), ("val", validation)):
            found = [token for path in sorted(self.path(out).glob(f"*_{split}_*.bin")) for token in read_shard(path)]
            self.assertEqual(found, bytes_stream(texts), split)
        return err


class TestTablesOfContents(FolderCase):

    def state(self, folder, *names, **more):
        self.path(folder, "state.json").write_text(json.dumps(
            {"_data_files": [{"filename": name} for name in names], "_split": None} | more))

    def test_state_json_names_the_files_and_their_order(self):
        """Dataset.save_to_disk, a second time with another number of shards, and map()'s cache beside them."""
        for name, texts in (("data-00000-of-00001", ["old"]), ("data-00000-of-00002", ["1"]),
                            ("data-00001-of-00002", ["2"]), ("cache-0123456789abcdef", ["1", "2"])):
            self.write(f"saved/{name}.arrow", texts)
        self.state("saved", "data-00001-of-00002.arrow", "data-00000-of-00002.arrow")
        _, err = self.make("out", "saved", "--val-tokens", 0)
        self.assertEqual(stream(self.path("out")).tolist(), bytes_stream(["2", "1"]))
        self.assertIn("2 files not read, because state.json does not list them: cache-0123456789abcdef.arrow, "
                      "data-00000-of-00001.arrow", err)
        self.assertEqual([file["rows"] for file in self.manifest("out")["source"]["files"]], [1, 1])
        self.state("saved", "gone.arrow")
        self.assertIn("gone.arrow, which is missing", self.refused(2, "saved"))
        self.state("saved", "data-00000-of-00002.arrow", _indices_data_files=[{"filename": "indices.arrow"}])
        self.assertIn("flatten_indices()", self.refused(2, "saved"))
        for damage in ("{", '{"_data_files": [{"filename": 7}]}'):
            self.path("saved", "state.json").write_text(damage)
            self.assertIn("state.json", self.refused(2, "saved"))
        # A file of this name that is something else.
        self.path("saved", "state.json").write_text('{"step": 1}')
        self.assertIn("is of another division of the same text than data-00000-of-00001.arrow",
                      self.refused(2, "saved"))

    def test_dataset_dict_json_names_the_splits(self):
        for split, text in (("train_sft", "a"), ("test_sft", "b"), ("old", "c")):
            self.write(f"saved/{split}/data-00000-of-00001.arrow", [text])
            self.state(f"saved/{split}", "data-00000-of-00001.arrow")
        self.path("saved", "dataset_dict.json").write_text('{"splits": ["train_sft", "test_sft"]}')
        err = self.assert_splits("out", "saved", ["a"], ["b"])
        self.assertIn("1 file not read, because dataset_dict.json does not list them: old/data-00000", err)
        self.assertIn("training on train, validating on test", err)
        self.assert_splits("one", "saved", ["b"], [], "--split", "test_sft", "--val-tokens", 0)

    def test_caches_of_a_prepared_data_set_are_not_read(self):
        self.write("cached/x-train.arrow", ["a"])
        self.write("cached/cache-0123456789abcdef_00000_of_00002.arrow", ["b"])
        self.path("cached", "dataset_info.json").write_text("{}")
        _, err = self.make("out", "cached", "--val-tokens", 0)
        self.assertEqual(stream(self.path("out")).tolist(), bytes_stream(["a"]))
        self.assertIn("caches of the library datasets: cache-0123456789abcdef_00000_of_00002.arrow", err)

    def test_working_files_of_other_programs_are_not_read(self):
        for name in ("data/part-0.parquet", "data/.part-0.parquet.crc", "data/.ipynb_checkpoints/a.txt",
                     "data/_SUCCESS", "data/__MACOSX/a.txt", "data/_temporary/0/part-1.parquet",
                     "data/_year=1/part-2.parquet"):
            self.write(name, [name])
        _, err = self.make("out", "data", "--val-tokens", 0)
        self.assertEqual(stream(self.path("out")).tolist(),
                         bytes_stream(["data/_year=1/part-2.parquet", "data/part-0.parquet"]))
        self.assertIn("3 files not read: names that begin with _", err)

    def test_a_table_with_a_log_needs_its_library(self):
        for log, name in (("_delta_log/00000000000000000000.json", "Delta"), ("metadata/v1.metadata.json", "Iceberg")):
            self.write(f"{name}/{log}", ["not a log"])
            self.write(f"{name}/part-0.parquet", ["a"])
            line = self.refused(2, name)
            self.assertIn(f"{name.lower()}_scan('{self.path(name)}')) TO 'copy.parquet'", line)
            self.assertFalse(self.path("refused").exists())
        self.write("plain/metadata/a.txt", ["a"])
        self.assert_documents("out", "plain", ["a"], "--val-tokens", 0)


class TestSplits(FolderCase):

    def test_names_of_splits(self):
        for path, split in {
                "data/train-00000-of-00001.parquet": "train", "train/a.txt": "train", "english_val.jsonl": "val",
                "c4-validation.00000-of-00008.json.gz": "validation", "Dev/a.csv": "dev", "split=test/a.csv": "test",
                "train_sft-00000-of-00003-abcdef0123456789.parquet": "train_sft", "wiki.train.raw.txt": "train",
                "validation/train-00000-of-00001.arrow": "validation", "train.parquet.gzip": "train",
                "test-plan.txt": "", "training_log.txt": "", "latest.txt": "", "contest.txt": "", "0000.parquet": "",
                "trainer/a.txt": "", "data-00000-of-00001.arrow": ""}.items():
            self.assertEqual(split_of(path), split, path)
        for split, role in (("train_sft", "train"), ("dev", "validation"), ("eval", "test"), ("en", "")):
            self.assertEqual(role_of(split), role)

    def test_a_split_for_validation_is_not_trained_on(self):
        for split, text in (("test", "a"), ("train", "b"), ("validation", "c")):
            self.write(f"repo/data/{split}-00000-of-00001.parquet", [text, text + text])
        err = self.assert_splits("out", "repo", ["b", "bb"], ["c", "cc"])
        self.assertIn("training on train, validating on validation, not reading test", err)
        self.assertEqual([(file["split"], file["rows"]) for file in self.manifest("out")["source"]["files"]],
                         [("val", 2), ("train", 2)])
        # A glob, or the files that the shell makes of one, is no other text.
        self.assert_splits("glob", "repo/data/*.parquet", ["b", "bb"], ["c", "cc"])
        self.assert_splits("names", sorted(self.path("repo", "data").iterdir()), ["b", "bb"], ["c", "cc"])
        self.assert_splits("many", "repo", ["b", "bb"], ["c", "cc"], "--shard-tokens", 2, "--workers", 2)
        self.assertEqual(len(list(self.path("many").glob("*_val_*.bin"))), 3)
        self.assert_splits("test", "repo", ["a", "aa"], [], "--split", "test", "--val-tokens", 0)
        self.assert_splits("all", "repo", ["a", "aa", "b", "bb", "c", "cc"], [], "--split", "all", "--val-tokens", 0)
        self.assertIn("--split dev: no such split; the input has test (1 file), train (1 file)",
                      self.refused(2, "repo", "--split", "dev"))
        self.assertIn("leave the option out", self.refused(2, "repo", "--val-tokens", 5))
        self.write("repo/data/more.parquet", ["d"])
        self.assertIn("no split (1 file)", self.refused(2, "repo"))

    def test_a_text_of_its_own_for_validation(self):
        self.write("texts/a.txt", ["a"])
        self.write("texts/b.txt", ["b"])
        self.write("other.jsonl", ["c", "d"])
        self.assert_splits("out", "texts", ["a", "b"], ["c", "d"], "--val-from", self.path("other.jsonl"))
        err = self.assert_splits("held", "texts", ["a"], ["b"], "--val-from", self.path("texts", "b.txt"))
        self.assertIn("1 file of the input are in --val-from", err)
        self.assertIn("none is left", self.refused(2, "texts", "--val-from", self.path("texts")))
        self.assertIn("other.jsonl: no text found for validation", self.refused(
            1, "texts", "--val-from", self.write("empty/other.jsonl", [])))
        self.assertIn("--split and --val-from are for local files",
                      self.fails(2, "hf:a/b", "--split", "test", "--out", self.path("refused")))

    def test_documents_in_both_texts_are_counted_and_can_be_left_out(self):
        self.write("train.jsonl", ["a", "same", "b", "", "same", "samE"])
        self.write("validation.jsonl", ["same", "", "c"])
        err = self.assert_splits("out", "*.jsonl", ["a", "same", "b", "", "same", "samE"], ["same", "", "c"])
        self.assertIn("also in the validation shards: 2; --drop-validation-duplicates", err)
        err = self.assert_splits("dropped", "*.jsonl", ["a", "b", "", "samE"], ["same", "", "c"],
                                 "--drop-validation-duplicates")
        self.assertIn("2 documents left out", err)
        self.assertNotIn("also in the validation shards", err)
        self.assertEqual(self.manifest("dropped")["rows_in_validation"], 2)
        self.assertIn("name it with --val-from", self.refused(2, "train.jsonl", "--drop-validation-duplicates"))
        # The validation shard cut from the stream has "a", "same" and a part of "b".
        err = self.make("cut", "train.jsonl", "--val-tokens", 8)[1]
        self.assertIn("also in the validation shards: 1\n", err)

    def test_files_of_the_same_content_are_named(self):
        for name in ("texts/a.txt", "texts/b.txt", "other/c.txt"):
            self.write(name, ["one text\n" * 20000])
        self.write("texts/d.txt", ["one text\n" * 10000 + "one Text\n" + "one text\n" * 9999])
        err = self.make("out", "texts")[1]
        names = ", ".join(str(self.path("texts", name)) for name in ("a.txt", "b.txt"))
        self.assertIn(f"2 files have the same content: {names}; each is read", err)
        err = self.make("dropped", "texts", "--val-from", self.path("other"), "--drop-validation-duplicates")[1]
        self.assertIn("only the one for validation is read", err)
        self.assertEqual([file["file"] for file in self.manifest("dropped")["source"]["files"]],
                         [str(self.path("other", "c.txt")), str(self.path("texts", "d.txt"))])

    def test_list_prints_the_plan_and_makes_nothing(self):
        self.write("repo/train.parquet", ["a"] * 1234)
        self.write("repo/dev.jsonl", ["b"])
        before = contents(self.folder)
        status, out, err = run(self.path("repo"), "--list")
        self.assertEqual(status, 0, err)
        lines = [line.split() for line in out.splitlines()]
        self.assertEqual(lines[0], ["val", "14", "bytes", "rows", "unknown", str(self.path("repo", "dev.jsonl"))])
        self.assertEqual(lines[1][0], "train")
        self.assertEqual(lines[1][3:], ["1,234", "rows", str(self.path("repo", "train.parquet"))])
        self.assertIn("validating on validation", err)
        self.assertEqual(contents(self.folder), before)
        self.assertIn("--out", self.fails(2, self.path("repo")))
