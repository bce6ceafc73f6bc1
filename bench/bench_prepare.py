#!/usr/bin/env python3
"""Compares the speed of scripts/prepare.py with plain tiktoken in one process.

    python bench/bench_prepare.py [--text FILE.jsonl] [--bpe-dir FOLDER] [--megabytes 100] [--workers 1,2]

Plain calls tiktoken's encode_ordinary for each text in memory and keeps a uint16 array of its tokens. Prepare reads
parquet, tokenizes, writes shards and hashes them. Its time is that of the whole command minus that of the same command
on one document, which is the cost of starting. Plain and prepare alternate; figures are medians. Prints one line of
JSON per number of workers: tokens/s, tokens/s per worker relative to plain (target 0.9), the same per second of
processor time, which other work on the machine does not distort, and the peak memory of a process.
"""

if __name__ == "__main__":
    from begin import startup

import json
import os
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
    arrays = [np.array([encoding.eot_token, *encoding.encode_ordinary(text)], np.uint16) for text in texts]
    seconds, cpu = time.perf_counter() - began, cpu_seconds(resource.RUSAGE_SELF) - cpu
    return seconds, cpu, sum(array.size for array in arrays)


def prepare(path, out, bpe_dir, workers):
    """(seconds, processor seconds of all its processes, tokens) of a whole run of prepare.py."""
    began, cpu = time.perf_counter(), cpu_seconds()
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "prepare.py"), path, "--bpe-dir", bpe_dir,
                    "--out", out, "--workers", str(workers), "--shard-tokens", "10M"],
                   check=True, stdout=subprocess.DEVNULL)
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
        encoding = tokenizer.Gpt2(folder, {}).encoding
        path, tiny = os.path.join(folder, "bench.parquet"), os.path.join(folder, "tiny.parquet")
        pq.write_table(pa.table({"text": texts}), path, row_group_size=1000)
        pq.write_table(pa.table({"text": texts[:1]}), tiny)
        for workers in [int(workers) for workers in options.workers.split(",")]:
            rates, plain_rates, cpu_ratios = [], [], []
            for _ in range(options.repeats):
                plain_seconds, plain_cpu, expected = plain(encoding, texts)
                start, start_cpu, _ = prepare(tiny, os.path.join(folder, "out"), options.bpe_dir, workers)
                seconds, cpu, tokens = prepare(path, os.path.join(folder, "out"), options.bpe_dir, workers)
                assert tokens == expected
                plain_rates.append(expected / plain_seconds)
                rates.append(tokens / (seconds - start))
                cpu_ratios.append(plain_cpu / (cpu - start_cpu))
            rate, plain_rate = statistics.median(rates), statistics.median(plain_rates)
            print(json.dumps({
                "bench": "prepare", "workers": workers, "tokens": expected, "start_s": round(start, 2),
                "tokens_per_s": round(rate), "plain_tokens_per_s": round(plain_rate),
                "per_worker_over_plain": round(rate / workers / plain_rate, 3),
                "per_cpu_second_over_plain": round(statistics.median(cpu_ratios), 3),
                "peak_process_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024}), flush=True)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {subprocess.CalledProcessError: 1, ValueError: 1}))
