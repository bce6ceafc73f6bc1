"""Writes documents of tokens with the programs that people use:  token_writers.py NAME FOLDER < documents.json

Runs in the environment of dev/requirements-token-writers.txt, without this project. The input has `texts`, their ids
`rows` without delimiters, and `delimiter`. `token_writers.py` alone prints the names of the writers that can run here.
"""

import importlib
import json
import pathlib
import sys

# Each writer needs the module of this name.
NEEDED = {"datasets_folder": "datasets", "datasets_files": "datasets", "datatrove": "datatrove.pipeline.tokens",
          "megatron": "megatron.core.datasets.indexed_dataset", "mds": "streaming", "litdata": "litdata"}


def after(documents):
    """Returns the rows as programs write them that put the delimiter after each document."""
    return [[*row, documents["delimiter"]] for row in documents["rows"]]


def blocks(documents, size=1024):
    """Returns the rows of a stream that is cut into blocks, as packed data has them; the tail is dropped."""
    stream = [token for row in after(documents) for token in row]
    return [stream[i:i + size] for i in range(0, len(stream) - size + 1, size)]


def datasets_folder(documents, out):
    """save_to_disk, in a folder that also has the caches of map() and of a saving before."""
    from datasets import Dataset, load_from_disk
    Dataset.from_dict({"input_ids": documents["rows"]}).save_to_disk(out / "saved", num_shards=2)
    load_from_disk(out / "saved").map(lambda row: {"input_ids": row["input_ids"][:1]})
    assert list((out / "saved").glob("cache-*.arrow"))
    Dataset.from_dict({"input_ids": documents["rows"]}).save_to_disk(out / "again", num_shards=2)
    Dataset.from_dict({"input_ids": documents["rows"]}).save_to_disk(out / "again", num_shards=1)
    assert len(list((out / "again").glob("data-*.arrow"))) == 3


def datasets_files(documents, out):
    from datasets import Dataset, Features, Sequence, Value
    for name, kind in (("i32", "int32"), ("i64", "int64"), ("u16", "uint16")):
        features = Features({"token_ids": Sequence(Value(kind)), "n": Value("int32")})
        rows = after(documents)
        data = Dataset.from_dict({"token_ids": rows, "n": list(map(len, rows))}, features=features)
        data.to_parquet(out / f"{name}.parquet")
        data.to_json(out / f"{name}.jsonl")
    Dataset.from_dict({"input_ids": blocks(documents)}).to_parquet(out / "packed.parquet")


def datatrove(documents, out):
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer
    for name, token in (("eos", "<|endoftext|>"), ("none", None)):
        step = DocumentTokenizer(str(out / name), tokenizer_name_or_path=documents["tokenizer_json"], eos_token=token,
                                 shuffle_documents=False)
        step.run((Document(text, str(i)) for i, text in enumerate(documents["texts"])), 0, 1)


def megatron(documents, out):
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    for name, kind, rows, pieces in (("eod", np.uint16, after(documents), 1), ("plain", np.int32, documents["rows"], 1),
                                     ("sentences", np.uint16, after(documents), 2)):
        builder = IndexedDatasetBuilder(str(out / f"{name}.bin"), dtype=kind)
        for row in rows:
            half = len(row) // 2 if pieces == 2 else 0
            for piece in (row[:half], row[half:]) if half else (row,):
                builder.add_item(torch.tensor(piece))
            builder.end_document()
        builder.finalize(str(out / f"{name}.idx"))
        assert sum(map(len, IndexedDataset(str(out / name)))) == sum(map(len, rows))


def mds(documents, out):
    import numpy as np
    from streaming import MDSWriter
    rows = {"documents": after(documents), "packed": blocks(documents), "bytes": blocks(documents),
            "compressed": after(documents)}
    for name, encoding in (("documents", "ndarray:int32"), ("packed", "ndarray:int32:1024"), ("bytes", "bytes"),
                           ("compressed", "ndarray")):
        with MDSWriter(out=str(out / name), columns={"id": "str", "tokens": encoding, "n": "int32"}, size_limit=1 << 14,
                       compression="zstd" if name == "compressed" else None) as writer:
            for i, row in enumerate(rows[name]):
                ids = np.array(row, np.int64 if name == "bytes" else np.int32)
                writer.write({"id": str(i), "tokens": ids.tobytes() if name == "bytes" else ids,
                              "n": np.int32(len(row))})


def litdata_rows(row):
    import torch
    yield torch.tensor(row, dtype=torch.int32)


def litdata(documents, out):
    from litdata import TokensLoader, optimize
    optimize(fn=litdata_rows, inputs=after(documents), output_dir=str(out / "documents"), chunk_size=3000,
             item_loader=TokensLoader(), num_workers=1)


def read_megatron(prefix):
    """Prints the documents of an indexed data set as its own reader reads them."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    data = IndexedDataset(prefix)
    ends = data.document_indices
    print(json.dumps([[int(token) for i in range(ends[d], ends[d + 1]) for token in data[i]]
                      for d in range(len(ends) - 1)]))


def can_run(module):
    try:
        importlib.import_module(module)
        return True
    except Exception:  # a package that does not fit another one fails in many ways
        return False


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(*(name for name, module in NEEDED.items() if can_run(module)))
    elif sys.argv[1] == "read_megatron":
        read_megatron(sys.argv[2])
    else:
        folder = pathlib.Path(sys.argv[2])
        folder.mkdir()
        globals()[sys.argv[1]](json.load(sys.stdin), folder)
