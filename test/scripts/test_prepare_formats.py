"""Formats of files that scripts/prepare.py reads:  dev/run_tests.py test/scripts/test_prepare_formats.py"""

import base64
import bz2
import csv
import gzip
import json
import lzma
import shutil

from preparing import PrepareCase, bytes_stream, pa, pq, some_texts, stream, write_lines, write_parquet
from testing import needs


def rows_of(texts):
    return [json.dumps({"n": 1, "text": text}).encode() for text in texts]


class TestFormats(PrepareCase):
    def write_arrow(self, name, table, writer=pa.ipc.new_file, **options):
        with pa.OSFile(str(self.path(name)), "wb") as sink, writer(sink, table.schema, **options) as file:
            file.write_table(table, max_chunksize=7)

    def write_csv(self, name, texts, delimiter):
        with open(self.path(name), "w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter).writerows([["n", "text"], *enumerate(texts)])

    def test_every_kind_of_file_gives_the_same_documents(self):
        texts = [text for text in some_texts(60) if text.strip()] + ['a "quoted" word,\r\na comma', "tab\there"]
        table = pa.table({"n": range(len(texts)), "text": texts})
        write_parquet(self.path("a.parquet"), texts)
        pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), self.path("dictionary.parquet"))
        pq.write_table(pa.table({"text": pa.array(texts, pa.string_view())}), self.path("view.parquet"))
        for suffix in ("", ".gz", ".zst"):
            write_lines(self.path(f"a.json{suffix}"), rows_of(texts))
            write_lines(self.path(f"a.jsonl{suffix}"), rows_of(texts))
        self.write_arrow("a.arrow", table)
        self.write_arrow("stream.arrow", table, pa.ipc.new_stream)
        self.write_arrow("a.feather", table, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        self.write_csv("a.csv", texts, ",")
        self.write_csv("a.tsv", texts, "\t")
        self.path("a.csv.gz").write_bytes(gzip.compress(self.path("a.csv").read_bytes()))
        for path in sorted(self.folder.iterdir()):
            for unit_bytes in (300, 1 << 20):
                self.assert_documents(f"{path.name}-{unit_bytes}", path.name, texts, "--workers", 2, "--unit-bytes",
                                      unit_bytes)
        manifest = self.manifest("a.parquet-300")
        self.assertEqual((manifest["vocab_size"], manifest["delimiter"], manifest["documents"]), (257, 256, len(texts)))

    def test_bad_rows_of_csv_and_arrow_are_counted(self):
        rows = [b"good", None, b"\xff", b"fine"]
        self.write_arrow("a.arrow", pa.table({"text": pa.array(rows, pa.binary())}))
        self.path("a.csv").write_bytes(b"text\ngood\n\xff\nfine\n")
        out, _ = self.make("arrow", "a.arrow")
        self.assertIn("2 bad rows: null 1, invalid UTF-8 1", out)
        out, _ = self.make("csv", "a.csv")
        self.assertIn("1 bad row: invalid UTF-8 1", out)
        for name in ("arrow", "csv"):
            self.assertEqual(stream(self.path(name)).tolist(), bytes_stream(["good", "fine"]))

    def test_a_field_within_a_field_is_named_by_its_path(self):
        texts = ["one", "two"]
        nested = [{"meta": {"deep": {"body": text}, "n": 1}} for text in texts]
        write_lines(self.path("a.jsonl"), [json.dumps(row).encode() for row in nested])
        write_lines(self.path("dot.jsonl"), [json.dumps({"meta.deep.body": text}).encode() for text in texts])
        table = pa.Table.from_pylist(nested)
        pq.write_table(table, self.path("a.parquet"), row_group_size=1)
        self.write_arrow("a.arrow", table)
        for name in ("a.jsonl", "dot.jsonl", "a.parquet", "a.arrow"):
            self.assert_documents(f"{name}-out", name, texts, "--text-field", "meta.deep.body")
        for name in ("a.parquet", "a.arrow"):
            for field, fault in (("meta", "is struct"), ("meta.deep.n", "does not exist"), ("meta.n", "is int64")):
                line = self.refused(1, name, "--text-field", field)
                self.assertIn(f"the column '{field}' {fault}", line)
                self.assertIn("(columns of text: meta.deep.body)", line)

    def test_a_missing_column_of_csv_is_named_with_the_others(self):
        self.write_csv("a.csv", ["x"], ",")
        self.assertIn("the column 'body' does not exist; choose one with --text-field (columns of text: n, text)",
                      self.refused(1, "a.csv", "--text-field", "body"))

    def test_files_of_a_folder_that_are_not_read_are_named(self):
        write_parquet(self.path("a.parquet"), ["text"])
        for name in ("README.md", "dataset_info.json", "sub/c.pdf", "d.bin", ".gitattributes"):
            self.path(name).parent.mkdir(exist_ok=True)
            self.path(name).write_text("{}")
        _, err = self.make("out", ".")
        self.assertIn("4 files of other kinds not read: README.md, d.bin, dataset_info.json, ...; name files", err)
        self.assertEqual(stream(self.path("out")).tolist(), bytes_stream(["text"]))
        self.path("sub", "only").mkdir()
        self.path("sub", "only", "x.md").write_text("x")
        self.assertIn("no .parquet, .arrow,", self.refused(2, "sub/only"))

    def test_files_that_stand_for_others_are_refused_with_the_remedy(self):
        self.path("a.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
        for name in ("train.bin", "cl100k.tiktoken"):
            self.path(name).write_bytes(b"\0\1\2\3")
        self.path("a.txt").write_text("text")
        ranks = b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256))
        self.path("tokenizer.model").write_bytes(ranks)
        for name, tokenizer, remedy in (
                ("a.parquet", "bytes", "is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"),
                ("train.bin", "bytes", "prepare.py tokens makes them of nanoGPT's"),
                ("cl100k.tiktoken", "bytes", "has tokens, not text"),
                ("a.txt", self.path("tokenizer.model"), "is tiktoken's file of ranks")):
            self.assertIn(remedy, self.refused(2, name, tokenizer=tokenizer))

    def test_other_compressions_are_read_and_damage_is_named(self):
        texts = some_texts(300)
        data = b"".join(row + b"\n" for row in rows_of(texts))
        for name, packed in (("a.jsonl.bz2", bz2.compress(data[:900]) + bz2.compress(data[900:])),
                             ("a.jsonl.xz", lzma.compress(data[:900]) + lzma.compress(data[900:])),
                             ("a.jsonl.gzip", gzip.compress(data)),
                             ("a.jsonl.zstd", pa.compress(data, "zstd", asbytes=True))):
            self.path(name).write_bytes(packed)
            self.assert_documents(f"{name}-out", name, texts, "--unit-bytes", 5000)
            for damage in (packed[:-20], b"damaged" + packed):
                self.path(name).write_bytes(damage)
                self.assertIn(name, self.refused(1, name, out=f"{name}-damaged"))
                shutil.rmtree(self.path(f"{name}-damaged"), ignore_errors=True)

    def test_names_of_parquet_with_its_codec(self):
        write_parquet(self.path("a.parquet.gzip"), ["a"], compression="gzip")  # as pandas documents it
        self.assert_documents("out", "a.parquet.gzip", ["a"])
        self.path("b.arrow").write_bytes(b"ARROW1 but damaged")
        self.assertIn("damaged or not an Arrow file", self.refused(1, "b.arrow"))

    def test_categories_of_views_are_read(self):
        """As polars writes a Categorical: pyarrow 26.0.1 cannot cast dictionary<string_view, uint32>."""
        words = pa.array(["one", None, "two"]).cast(pa.string_view())
        table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1, 0], pa.uint32()), words)})
        with pa.OSFile(str(self.path("a.arrow")), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self.assert_documents("out", "a.arrow", ["two", "one", "one"])
        self.assertEqual(self.manifest("out")["bad_rows"]["null"], 2)

    @needs("zstandard")
    def test_zst_of_any_window_and_zero_padded_gzip_are_read(self):
        import zstandard
        texts = ["first", "second"]
        lines = [row + b"\n" for row in rows_of(texts)]
        parameters = zstandard.ZstdCompressionParameters(window_log=29)
        writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # of an unknown size
        frame = writer.compress(lines[0]) + writer.flush()
        self.assertGreater(zstandard.get_frame_parameters(frame).window_size, 1 << 27)
        self.path("a.jsonl.zst").write_bytes(frame + zstandard.compress(lines[1]))  # two frames
        self.path("a.jsonl.gz").write_bytes(gzip.compress(lines[0]) + bytes(512) + gzip.compress(lines[1]) + bytes(100))
        for name in ("a.jsonl.zst", "a.jsonl.gz"):
            self.assert_documents(f"{name}-out", name, texts)

    @needs("zstandard")
    def test_compressed_files_that_end_early_or_are_damaged_are_named(self):
        texts = some_texts(300)
        for name in ("a.jsonl.gz", "a.jsonl.zst", "a.csv.gz"):
            if name.endswith("csv.gz"):
                self.write_csv("a.csv", texts, ",")
                self.path(name).write_bytes(gzip.compress(self.path("a.csv").read_bytes()))
            else:
                write_lines(self.path(name), rows_of(texts))
            whole = self.path(name).read_bytes()
            faults = (whole[:-5], whole[:len(whole) // 2], whole[:40] + bytes(20) + whole[60:])
            for i, data in enumerate(faults):
                self.path(name).write_bytes(data)
                self.assertIn(f"{name}: damaged or not a", self.refused(1, name, out=f"{name}-{i}"))

