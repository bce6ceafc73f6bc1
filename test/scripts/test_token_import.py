"""prepare.py tokens on odd, damaged and interrupted input:  dev/run_tests.py test/scripts/test_token_import.py

The files are written here byte by byte; test_token_writers.py has those of their programs.
"""

import gzip
import json
import multiprocessing
import os
import random
import signal
import struct
import sys
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from preparing import PrepareCase, contents, run, stream
from teon_data import token_formats, token_rows
from teon_data.token_stream import Delimited
from testing import SCRIPTS, failing_files

END = 256  # the delimiter of the tokenizer `bytes`


def some_rows(seed, count=60):
    """Returns documents of ids, some empty, some with delimiters at any place."""
    draw = random.Random(seed)
    return [[draw.choice((END, *range(97, 103))) for _ in range(draw.choice((0, 1, 1, 2, 7, 40)))]
            for _ in range(count)]


def placed(rows):
    """Returns the stream by the documented rule, in plain Python."""
    ids = []
    for row in rows:
        row = row[:-1] if row and row[-1] == END else row
        ids += row if row and row[0] == END else [END, *row]
    return ids


class TokensCase(PrepareCase):
    def tokens(self, source, *flags, out="out", status=0):
        return self.prepare("tokens", source, "--tokenizer", "bytes", "--out", self.path(out), *flags, status=status)

    def refused_tokens(self, source, *flags):
        """Converts a source, which must end with status 2 and one line and leave nothing; returns the line."""
        before = sorted(os.listdir(self.folder))
        line = self.fails(2, "tokens", source, "--tokenizer", "bytes", "--out", self.path("refused"), *flags)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        return line

    def write_megatron(self, name, rows, pieces=1):
        """Writes X.bin and X.idx, each document as sequences of at most len / pieces."""
        sequences, ends = [], [0]
        for row in rows:
            size = max(1, -(-len(row) // pieces))
            sequences += [row[i:i + size] for i in range(0, max(len(row), 1), size)]
            ends.append(len(sequences))
        lengths = np.array([len(sequence) for sequence in sequences], "<i4")
        self.path(name + ".bin").write_bytes(np.array(sum(rows, []), "<u2").tobytes())
        self.path(name + ".idx").write_bytes(
            b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sequences), len(ends)) + lengths.tobytes() +
            ((np.cumsum(lengths, dtype=np.int64) - lengths) * 2).tobytes() + np.array(ends, "<i8").tobytes())
        return self.path(name + ".bin")

    def write_datatrove(self, name, rows):
        self.path(name + ".ds").write_bytes(np.array(sum(rows, []), "<u2").tobytes())
        self.path(name + ".ds.index").write_bytes(np.cumsum([len(row) for row in rows]).astype("<u8").tobytes())
        return self.path(name + ".ds")


class TestStream(TokensCase):
    def test_each_document_gets_one_delimiter_however_the_stream_is_divided(self):
        for seed in range(300):
            rows = some_rows(seed)
            ids = np.array(sum(rows, []), "<u2")
            begins = np.cumsum([0] + [len(row) for row in rows[:-1]])
            draw = random.Random(seed)
            cuts = sorted({0, ids.size, *(draw.randrange(ids.size + 1) for _ in range(draw.choice((0, 3, 200))))})
            blocks = [(ids[low:high], begins[(begins >= low) & (begins < high + (high == ids.size))] - low)
                      for low, high in zip(cuts, cuts[1:])]
            delimited = Delimited(END)
            self.assertEqual(np.concatenate(list(delimited.of(blocks))).tolist(), placed(rows), seed)
            self.assertEqual(delimited.documents, len(rows))

    def test_formats_in_blocks_of_any_size(self):
        rows = [*some_rows(7, 198), [97], []]
        sources = [self.write_megatron("m", rows), self.write_megatron("pieces", [row for row in rows if row], 3),
                   self.write_datatrove("d", rows)]
        ends = np.cumsum([len(row) for row in rows])
        self.path("o.npy").write_bytes(np.array(sum(rows, []), "<u2").tobytes())
        self.path("o.csv.gz").write_bytes(gzip.compress("".join(
            f"{end - len(row)},{end},id,a.jsonl,{i}\n" for i, (row, end) in enumerate(zip(rows, ends))).encode()))
        lists = pa.array(rows, pa.list_(pa.int32()))
        pq.write_table(pa.table({"n": list(range(200)), "ids": lists}), self.path("t.parquet"), row_group_size=30)
        with pa.OSFile(str(self.path("t.arrow")), "wb") as file, pa.ipc.new_stream(file, pa.schema(
                [("ids", pa.large_list(pa.int64()))])) as writer:
            table = pa.table({"ids": lists.cast(pa.large_list(pa.int64()))})
            for batch in table.to_batches(max_chunksize=45):
                writer.write_batch(batch.slice(0, batch.num_rows))
        self.path("t.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
        sources += [self.path(name) for name in ("o.npy", "t.parquet", "t.arrow", "t.jsonl")]
        for size in (1, 3, 64, 1 << 21):
            for source in sources:
                expected = placed([row for row in rows if row] if "pieces" in source.name else rows)
                with mock.patch.object(token_formats, "BLOCK", size), mock.patch.object(token_rows, "BLOCK", size), \
                        mock.patch.object(token_formats, "INDEX_BLOCK", max(size, 8) if size < 64 else 1 << 16):
                    self.tokens(source, *(("--raw", "uint16") if source.suffix == ".npy" else ()),
                                out=f"{source.name}-{size}")
                self.assertEqual(stream(self.path(f"{source.name}-{size}")).tolist(), expected, (source, size))

    def test_a_raw_stream_with_the_delimiter_after_documents_is_turned(self):
        for name, ids, expected in (("after", [97, END, 98, END], [END, 97, END, 98]),
                                    ("before", [END, 97, END, 98], [END, 97, END, 98]),
                                    ("both", [END, 97, END], [END, 97, END]), ("none", [97, 98], [97, 98]),
                                    ("one", [END], [END])):
            for kind in ("uint16", "uint32", "int32"):
                self.path(name + ".bin").write_bytes(np.array(ids, kind).tobytes())
                with mock.patch.object(token_formats, "BLOCK", 3):
                    self.tokens(self.path(name + ".bin"), "--raw", kind, out=name + kind)
                self.assertEqual(stream(self.path(name + kind)).tolist(), expected)
        np.save(self.path("header.npy"), np.array([97, END], np.int64))
        self.tokens(self.path("header.npy"))
        self.assertEqual(stream(self.path("out")).tolist(), [END, 97])

    def test_sizes_of_shards(self):
        source = self.write_datatrove("d", [[97] * 99] * 30)
        for number, (flags, sizes) in enumerate((((), [300, 2700]), (["--shard-tokens", 1000], [1000, 1000, 1000]),
                (["--shard-tokens", 2000], [300, 2000, 700]), (["--val-tokens", 0], [3000]),
                (["--val-tokens", 5000], [3000]), (["--max-tokens", 1500], [150, 1350]),
                (["--shard-tokens", 1000, "--val-tokens", 64, "--max-tokens", 1700], [64, 1000, 636]))):
            out = f"out{number}"
            self.tokens(source, *flags, out=out)
            shards = self.manifest(out)["shards"]
            self.assertEqual([shard["tokens"] for shard in shards], sizes)
            self.assertEqual(stream(self.path(out)).tolist(), ([END] + [97] * 99) * 30 if sum(sizes) == 3000 else
                             (([END] + [97] * 99) * 30)[:sum(sizes)])
            self.assertEqual(run("verify", self.path(out))[0], 0)
            self.assertEqual(sum(shard["text_bytes"] for shard in shards), sum(sizes) - sum(
                shard["documents"] for shard in shards))

    def test_splits_of_a_folder(self):
        data = self.path("data")
        data.mkdir()
        for name, letter in (("test-00000", 97), ("train-00000", 98), ("train-00001", 99), ("validation-00000", 100)):
            pq.write_table(pa.table({"input_ids": [[letter], [letter] * 2]}), data / f"{name}.parquet")
        (data / ".hidden.parquet").write_bytes(b"x")
        _, errors = self.tokens(data)
        self.assertIn("training on train, validating on validation, not reading test", errors)
        self.assertEqual(stream(self.path("out")).tolist(), placed([[100], [100] * 2, [98], [98] * 2, [99], [99] * 2]))
        self.tokens(data, "--val-from", data / "test-00000.parquet", out="other")
        self.assertEqual(stream(self.path("other")).tolist()[:5], placed([[97], [97] * 2]))
        (data / "validation-00000.parquet").unlink()
        self.assertIn("validating on test", self.tokens(data, out="by-test")[1])
        self.tokens(data, "--split", "test", out="test")
        self.assertEqual(stream(self.path("test")).tolist(), placed([[97], [97] * 2]))
        self.assertIn("leaves no tokens", self.refused_tokens(data / "train-00000.parquet", "--val-from", data))


class TestRefused(TokensCase):
    def test_damaged_and_foreign_indexes(self):
        rows = [[97, 98, END]] * 50
        for write, suffix in ((self.write_megatron, ".idx"), (self.write_datatrove, ".ds.index")):
            source = write("a", rows)
            index = self.path("a" + suffix)
            good = index.read_bytes()
            write("b", rows[:40])
            other = self.path("b" + suffix).read_bytes()
            for damage, said in ((good[:-3], ""), (good[:-8], ""), (other, "the index of another file"), (b"", ""),
                                 (good[:20], ""), (good + b"\0" * 8, "")):
                index.write_bytes(damage)
                self.assertIn(said, self.refused_tokens(source))
                self.assertIn(str(self.path("a")), self.refused_tokens(source))
            index.write_bytes(good)
            draw = random.Random(3)
            for _ in range(60):  # any bit: refused, or a stream of the same length but for delimiters
                bit = draw.randrange(8 * len(good))
                damaged = bytearray(good)
                damaged[bit // 8] ^= 1 << bit % 8
                index.write_bytes(damaged)
                status, _, errors = run("tokens", source, "--tokenizer", "bytes", "--out", self.path("bit"))
                self.assertEqual((status, len(errors.splitlines())), (2, 1) if status else (0, 0), errors)
                if not status:
                    kept = stream(self.path("bit"))
                    self.assertEqual(kept[kept != END].tolist(), [97, 98] * 50)
                    for path in sorted(self.path("bit").rglob("*"), reverse=True):
                        path.rmdir() if path.is_dir() else path.unlink()
                    self.path("bit").rmdir()
            index.unlink()
            self.assertRegex(self.refused_tokens(source), "is missing|--raw")
            index.write_bytes(good)
            source.write_bytes(source.read_bytes()[:-2])
            self.assertIn("cut short", self.refused_tokens(source))

    def test_dolmas_rows_must_be_those_of_the_ids(self):
        self.path("a.npy").write_bytes(np.full(9, 97, "<u2").tobytes())
        for lines, said in (("0,4\n", "end at token 4"), ("0,4\n4,99\n", "end at token 99"), ("0,4\n5,9\n", "line 2"),
                            ("", "end at token 0"), ("start,end\n", "line 1")):
            self.path("a.csv.gz").write_bytes(gzip.compress(lines.encode()))
            self.assertIn(said, self.refused_tokens(self.path("a.npy"), "--raw", "uint16"))
        self.path("a.csv.gz").write_bytes(gzip.compress(b"0,9\n")[:-9])
        self.assertIn("cannot be read", self.refused_tokens(self.path("a.npy"), "--raw", "uint16"))

    def test_ids_of_another_type_or_tokenizer(self):
        ids = np.arange(1000) % 256
        for kind, wrong, said in (("<u4", "uint16", "use --raw uint32"), ("<u2", "uint32", "use --raw uint16"),
                                  ("<u2", "int32", "use --raw uint16")):
            self.path("a.bin").write_bytes(ids.astype(kind).tobytes())
            self.assertIn(said, self.refused_tokens(self.path("a.bin"), "--raw", wrong))
        self.assertIn("give their type, --raw", self.refused_tokens(self.path("a.bin")))
        for at, kind in ((0, "<u2"), (999, "<u2"), (500, "<i4")):
            bad = ids.copy()
            bad[at] = 257 if kind == "<u2" else -1
            self.path("a.bin").write_bytes(bad.astype(kind).tobytes())
            line = self.refused_tokens(self.path("a.bin"), "--raw", "uint16" if kind == "<u2" else "int32")
            self.assertIn(f"id {bad[at]} at token {at} is outside", line)
        self.path("a.bin").write_bytes(ids.astype("<u4").tobytes()[:-2])
        self.assertIn("no whole number of ids", self.refused_tokens(self.path("a.bin"), "--raw", "uint32"))
        self.path("a.bin").write_bytes(struct.pack("<3i", 20240520, 1, 9).ljust(1024, b"\0") + b"ab" * 9)
        self.assertIn("prepare.py adopt", self.refused_tokens(self.path("a.bin"), "--raw", "uint16"))
        self.path("a.bin").write_bytes(b"")
        self.assertIn("has no tokens", self.refused_tokens(self.path("a.bin"), "--raw", "uint16"))

    def test_lines_of_json_are_read_as_json_reads_them(self):
        draw = random.Random(2)
        others = [{}, {"text": "x[1, 2]"}, {"text": 'q"ids": [3]'}, {"meta": {"ids": [4]}}, {"b": [5]}, {"é": {"a": 1}}]
        for separators in ((",", ":"), (", ", ": "), (" ,  ", " : ")):
            rows = [[draw.randrange(10 ** draw.randrange(1, 9)) for _ in range(draw.choice((0, 1, 2, 9)))]
                    for _ in range(200)]
            lines = [json.dumps({**draw.choice(others), "ids": row}, separators=separators).encode() for row in rows]
            for few in (1, 60, 1 << 20):  # bytes at a time
                with mock.patch.object(token_rows, "JSON_BYTES", few):
                    self.path("a.jsonl").write_bytes(b"\n".join(lines))
                    blocks = list(token_rows.jsonl(str(self.path("a.jsonl")), "", "ids"))
                found = [part.tolist() for _, ids, begins in blocks for part in np.split(ids, begins)[1:]]
                self.assertEqual(found, rows)

    def test_rows_that_are_no_ids(self):
        table = self.path("a.parquet")
        for rows, kind, said in (([[1], None], pa.list_(pa.int32()), "null"),
                                 ([[1, None]], pa.list_(pa.int8()), "null"),
                                 ([[1.5]], pa.list_(pa.float32()), "no column"), ([1], pa.int32(), "no column"),
                                 ([[300]], pa.list_(pa.int32()), "id 300"), ([[-1]], pa.list_(pa.int32()), "id -1"),
                                 ([[5] * 4] * 4, pa.list_(pa.int32()), "--rows packed")):
            pq.write_table(pa.table({"input_ids": pa.array(rows, kind)}), table)
            self.assertIn(said, self.refused_tokens(table))
        self.assertIn("has no column 'x'", self.refused_tokens(table, "--field", "x"))
        table.write_bytes(table.read_bytes()[:-9])
        self.assertIn("not a parquet file", self.refused_tokens(table))
        for line in ("[1, 2]", "{}", '{"ids": 5}', '{"ids": [1.5]}', '{"ids": ["a"]}', '{"ids": [[1]]}',
                     '{"ids": [true]}', '{"ids": null}', "x", '{"ids": [' + "9" * 30 + "]}", "[" * 10000):
            self.path("a.jsonl").write_text('{"ids": [97]}\n' + line + "\n")
            self.assertIn("line 2", self.refused_tokens(self.path("a.jsonl")))

    def test_folders_with_an_index(self):
        folder = self.path("folder")
        folder.mkdir()
        for content, said in (("[]", ""), ('{"shards": 1}', "shards"), ('{"chunks": [], "config": {}}', "data_format"),
                              ('{"shards": [{"format": "json"}]}', ""), ("{}", "no tokens here")):
            (folder / "index.json").write_text(content)
            self.assertIn(said, self.refused_tokens(folder))

    def test_the_list_of_a_saved_data_set_decides_as_for_texts(self):
        folder = self.path("saved")
        folder.mkdir()
        for name, ids in (("data-00000-of-00001.arrow", [1, 2]), ("data-00000-of-00002.arrow", [3])):
            table = pa.table({"ids": pa.array([ids], pa.list_(pa.int32()))})
            with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
                out.write_table(table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
        said = self.tokens(folder, "--val-tokens", 0)
        self.assertEqual(stream(self.path("out")).tolist(), [END, 1, 2])
        self.assertIn("not read, because state.json does not list them: data-00000-of-00002.arrow", said[1])
        (folder / "state.json").write_text(json.dumps(state | {"_indices_files": [{"filename": "indices.arrow"}]}))
        self.assertIn("flatten_indices()", self.refused_tokens(folder))


class TestKilled(TokensCase):
    def test_killed_at_every_rename_and_sync_it_leaves_nothing_or_all(self):
        source = self.write_datatrove("d", [[97] * 99] * 30)
        flags = ["tokens", source, "--tokenizer", "bytes", "--shard-tokens", "700", "--name", "d", "--out"]
        self.assertEqual(run(*flags, self.path("whole"))[0], 0)
        expected, moment, finished = contents(self.path("whole")), 0, False
        while not finished:
            out = self.path(f"out{moment}")
            process = multiprocessing.get_context("fork").Process(target=run_until, args=(moment, [*flags, out]))
            process.start()
            process.join()
            finished = process.exitcode == 0
            if not finished:
                self.assertEqual(process.exitcode, -signal.SIGKILL)
                self.assertTrue(not out.exists() or contents(out) == expected)
                self.assertEqual(run(*flags, out)[0], 0)
            self.assertEqual(contents(out), expected)
            self.assertFalse(self.path(f".out{moment}.prepare").exists())
            moment += 1
        self.assertGreater(moment, 10)

    def test_a_complete_folder_stays(self):
        source = self.write_datatrove("d", [[97] * 9] * 30)
        self.tokens(source)
        before = contents(self.path("out"))
        self.assertIn("is already complete", self.tokens(source)[0])
        self.assertIn("made with other options", self.tokens(source, "--max-tokens", 5, status=2)[1])
        self.write_datatrove("d", [[97] * 9] * 31)
        self.assertIn("have changed", self.tokens(source, status=2)[1])
        self.assertEqual(contents(self.path("out")), before)
        self.path("full").mkdir()
        self.path("full", "x").write_text("x")
        self.assertIn("not an empty folder", self.tokens(source, out="full", status=2)[1])

    def test_a_full_disk_is_named_and_leaves_nothing(self):
        source, library = self.write_datatrove("d", [[97] * 99] * 3000), failing_files(self.folder)
        for call in ("write", "fsync", "rename", "mkdir"):
            out = self.path("out-" + call)
            done = self.call(sys.executable, SCRIPTS / "prepare.py", "tokens", source, "--tokenizer", "bytes", "--out",
                             out, expect=None, LD_PRELOAD=library, FAIL_UNDER=self.folder, FAIL_CALL=call,
                             FAIL_ERRNO=28)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, r"^prepare: error: \S+: No space left on device\n$")
            self.assertFalse(out.exists())


def run_until(moment, arguments):
    """Runs prepare.py in this process, which is killed before the rename or sync with the number `moment`."""
    calls = 0

    def killing(function):
        def call(*words):
            nonlocal calls
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return function(*words)
        return call

    os.replace, os.rename, os.fsync = map(killing, (os.replace, os.rename, os.fsync))
    sys.exit(run(*arguments)[0])
