"""prepare.py reads what other programs write: each writes the same 20 documents, and their tokens are known
(support/known_documents.py). A writer that is not installed is skipped by name:  test/writers_tests.sh"""

import known_documents
from preparing import PrepareCase, pa, stream
from testing import BPE, needs

OLD = {"text": ["replaced", "deleted"]}


@needs("tiktoken", data=[BPE, known_documents.ENGLISH])
class TestWriters(PrepareCase):
    def setUp(self):
        super().setUp()
        self.texts = known_documents.documents()
        self.rows = {"text": self.texts, "n": list(range(len(self.texts)))}

    def assert_known(self, *sources, flags=()):
        """Prepares each source and compares its tokens. Returns the notices of the last one."""
        for number, source in enumerate(sources):
            out = f"out{len(list(self.folder.glob('out*')))}-{number}"
            _, err = self.make(out, source, "--bpe-dir", BPE, *flags, tokenizer="gpt2")
            tokens = stream(self.path(out))
            self.assertEqual((tokens.size, known_documents.hash_of(tokens)),
                             (known_documents.TOKENS, known_documents.HASH), source)
            self.assertEqual(self.manifest(out)["documents"], len(self.texts))
        return err

    @needs("datasets")
    def test_datasets(self):
        import datasets
        datasets.disable_progress_bars()
        data = datasets.Dataset.from_dict(self.rows)
        self.path("files").mkdir()
        data.to_parquet(self.path("files", "a.parquet"))
        data.to_json(self.path("a.jsonl"))
        data.to_csv(self.path("a.csv"))
        data.save_to_disk(self.path("saved"), num_shards=2)
        self.assert_known("files", "a.jsonl", "a.csv", "saved")
        data.save_to_disk(self.path("saved"), num_shards=1)
        self.assertIn("2 files not read, because state.json does not list them", self.assert_known("saved"))
        datasets.load_from_disk(self.path("saved")).map(lambda row: {"text": row["text"] + "!"})
        self.assertEqual(len(list(self.path("saved").glob("*.arrow"))), 4)
        self.assertIn("3 files not read, because state.json does not list them", self.assert_known("saved"))
        datasets.DatasetDict(train=data.select(range(9)), validation=data.select(range(9, 20))).save_to_disk(
            self.path("dict"))
        self.assert_known("dict", flags=("--split", "all"))
        self.make("split", "dict")
        self.assertEqual([file["rows"] for file in self.manifest("split")["source"]["files"]], [11, 9])

    @needs("deltalake")
    def test_delta(self):
        import deltalake
        table = pa.table(self.rows)
        deltalake.write_deltalake(self.path("table"), pa.table(OLD))
        deltalake.write_deltalake(self.path("table"), table.slice(0, 7), mode="overwrite", schema_mode="overwrite")
        deltalake.write_deltalake(self.path("table"), table.slice(7), mode="append")
        self.assertIn("1 file not read, because the table's log no longer lists them", self.assert_known("table"))

    @needs("pyiceberg", "sqlalchemy")
    def test_iceberg(self):
        from pyiceberg.catalog.sql import SqlCatalog
        catalog = SqlCatalog("test", uri=f"sqlite:///{self.path('catalog.db')}", warehouse=f"file://{self.folder}/lake")
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", schema=pa.table(OLD).schema)
        table.append(pa.table(OLD))
        texts = pa.table({"text": self.texts})
        table.overwrite(texts.slice(0, 7))
        table.append(texts.slice(7))
        self.path("lake", "n", "t").rename(self.path("moved"))  # the log has the paths of before
        self.assertIn("1 file not read, because the table's log no longer lists them", self.assert_known("moved"))

    @needs("polars")
    def test_polars(self):
        import polars
        data = polars.DataFrame(self.rows)
        for codec in ("zstd", "lz4", "gzip", "snappy"):
            data.write_parquet(self.path(f"{codec}.parquet"), compression=codec)
        data.write_ndjson(self.path("a.ndjson"))
        data.write_csv(self.path("a.csv"))
        data.write_ipc(self.path("file.arrow"))
        data.write_ipc_stream(self.path("stream.arrow"))
        data.with_columns(polars.col("text").cast(polars.Categorical)).write_ipc(self.path("categories.arrow"))
        self.assert_known("zstd.parquet", "lz4.parquet", "gzip.parquet", "snappy.parquet", "a.ndjson", "a.csv",
                          "file.arrow", "stream.arrow", "categories.arrow")

    @needs("duckdb")
    def test_duckdb(self):
        import duckdb
        with duckdb.connect() as connection:
            connection.register("rows", pa.table(self.rows))
            for name, options in (("a.parquet", "format parquet, compression zstd, parquet_version v2"),
                                  ("a.json.gz", "format json, compression gzip"), ("a.csv", "format csv, header"),
                                  ("parts", "format parquet, partition_by (half)")):
                half = ", n >= 7 as half" if name == "parts" else ""
                connection.execute(f"copy (select *{half} from rows order by n) to '{self.path(name)}' ({options})")
        self.assert_known("a.parquet", "a.json.gz", "a.csv", "parts")

    @needs("pandas")
    def test_pandas(self):
        import pandas
        pandas.DataFrame(self.rows).to_parquet(self.path("a.parquet.gzip"), compression="gzip")
        pandas.DataFrame(self.rows).to_json(self.path("a.jsonl.bz2"), orient="records", lines=True)
        self.assert_known("a.parquet.gzip", "a.jsonl.bz2")
