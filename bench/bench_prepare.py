#!/usr/bin/env python3
"""Compares the speed of scripts/prepare.py with plain tiktoken in one process, and with another checkout of it.

    python bench/bench_prepare.py [--text FILE.jsonl] [--bpe-dir FOLDER] [--megabytes 100] [--workers 1,2]
                                  [--before FOLDER]

Plain calls tiktoken's encode_ordinary_batch with one thread for texts in memory and keeps uint16 arrays of the tokens.
Prepare reads a parquet file with FineWeb's columns, tokenizes the text, writes shards and hashes them. Its time is that
of the whole command minus that of the same command on one document, which is the cost of starting. The programs
alternate; figures are medians. Prints one line of JSON per number of workers: tokens/s, tokens/s per worker relative to
plain, the same per second of processor time, which other work on the machine does not distort, also relative to the
checkout --before, and the peak memory of a process.
"""

if __name__ == "__main__":
    from begin import startup

import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common.arguments import Parser
from starts import cpu_seconds
from teon_data import tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "..", "shared", "data")


def plain(encoding, texts):
    """(seconds, processor seconds, tokens with one delimiter per document)."""
    began, cpu = time.perf_counter(), cpu_seconds(resource.RUSAGE_SELF)
    arrays = [np.array([encoding.eot_token, *ids], np.uint16) for begin in range(0, len(texts), 256)
              for ids in encoding.encode_ordinary_batch(texts[begin:begin + 256], num_threads=1)]
    seconds, cpu = time.perf_counter() - began, cpu_seconds(resource.RUSAGE_SELF) - cpu
    return seconds, cpu, sum(array.size for array in arrays)


def like_fineweb(texts):
    """A table with FineWeb's columns."""
    count = len(texts)
    return pa.table({
        "text": texts, "id": [f"<urn:uuid:{random.randbytes(16).hex()}>" for _ in texts],
        "dump": ["CC-MAIN-2013-20"] * count, "url": [f"http://{random.randbytes(40).hex()}.example" for _ in texts],
        "file_path": [f"s3://crawl/segments/1368696381249/warc/{i % 999}.warc.gz" for i in range(count)],
        "language": ["en"] * count, "language_score": [random.random() for _ in texts],
        "token_count": [len(text) // 4 for text in texts]})


def prepare(tree, path, out, bpe_dir, workers):
    """(seconds, processor seconds of all its processes, tokens) of a whole run of prepare.py."""
    began, cpu = time.perf_counter(), cpu_seconds()
    subprocess.run([sys.executable, os.path.join(tree, "scripts", "prepare.py"), path, "--bpe-dir", bpe_dir,
                    "--out", out, "--workers", str(workers), "--shard-tokens", "10M"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    with open(os.path.join(out, "manifest.json"), encoding="utf-8") as file:
        tokens = json.load(file)["tokens"]
    shutil.rmtree(out)
    return seconds, cpu, tokens


def main():
    parser = Parser(__doc__)
    parser.add_argument("--text", default=os.path.join(DATA, "english", "english_train.jsonl"))
    parser.add_argument("--bpe-dir", default=os.path.join(DATA, "gpt2_bpe"))
    parser.add_argument("--megabytes", type=float, default=100,
                        help="text to tokenize, repeated from FILE (default 100)")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, comma-separated (default 1,2)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", help="another checkout, to compare with")
    options = parser.parse_args()
    for path in (options.text, options.bpe_dir):
        if not os.path.exists(path):
            print(f"SKIPPED bench_prepare: {path} does not exist (--text, --bpe-dir)")
            return

    with open(options.text, encoding="utf-8") as file:
        source = [json.loads(line)["text"] for line in file]
    texts, size = [], 0
    while size < options.megabytes * 1e6:
        texts.append(source[len(texts) % len(source)])
        size += len(texts[-1].encode())
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(options.bpe_dir, "vocab.bpe"), folder)
        shutil.copy(os.path.join(options.bpe_dir, "encoder.json"), folder)
        encoding = tokenizer.Gpt2(folder, {}).plain
        path, tiny = os.path.join(folder, "bench.parquet"), os.path.join(folder, "tiny.parquet")
        pq.write_table(like_fineweb(texts), path, row_group_size=1000)
        pq.write_table(like_fineweb(texts[:1]), tiny)
        trees = [ROOT, options.before] if options.before else [ROOT]
        for workers in [int(workers) for workers in options.workers.split(",")]:
            rates, plain_rates, cpu_ratios, gains = [], [], [], []
            for _ in range(options.repeats):
                plain_seconds, plain_cpu, expected = plain(encoding, texts)
                spent = []
                for tree in trees:
                    start, start_cpu, _ = prepare(tree, tiny, os.path.join(folder, "out"), options.bpe_dir, workers)
                    seconds, cpu, tokens = prepare(tree, path, os.path.join(folder, "out"), options.bpe_dir, workers)
                    assert tokens == expected
                    spent.append((seconds - start, cpu - start_cpu))
                plain_rates.append(expected / plain_seconds)
                rates.append(expected / spent[0][0])
                cpu_ratios.append(plain_cpu / spent[0][1])
                gains.append(spent[-1][1] / spent[0][1])
            rate, plain_rate = statistics.median(rates), statistics.median(plain_rates)
            print(json.dumps({
                "bench": "prepare", "workers": workers, "tokens": expected, "start_s": round(start, 2),
                "tokens_per_s": round(rate), "plain_tokens_per_s": round(plain_rate),
                "per_worker_over_plain": round(rate / workers / plain_rate, 3),
                "per_cpu_second_over_plain": round(statistics.median(cpu_ratios), 3),
                **({"over_before": round(statistics.median(gains), 3)} if options.before else {}),
                "peak_process_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024}), flush=True)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1, ValueError: 1}))
