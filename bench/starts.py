"""Starts ./train_gpt2 or ./train_llama on random tokens, for the benchmarks."""

import json
import pathlib
import random
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def random_shard(folder, vocabulary, count):
    """Writes a shard of `count` uniform tokens and returns its path."""
    generator = random.Random(1)
    tokens = generator.choices(range(vocabulary), k=count)
    path = pathlib.Path(folder) / "random_train_000000.bin"
    path.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + struct.pack(f"<{count}H", *tokens))
    return path


def train(shard, *flags, steps, program="train_gpt2"):
    """Trains and returns the metrics of the steps after the first quarter."""
    with tempfile.TemporaryDirectory(dir=shard.parent) as folder:
        command = [ROOT / program, "--data", shard, "--steps", steps, "--checkpoint-end", "off", "--out",
                   f"{folder}/run", *flags]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line)
                 for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["kind"] == "step" and line["step"] > steps // 4]


def on_gpu():
    """Whether ./train_gpt2 was built for CUDA."""
    return (ROOT / "train_gpt2").resolve().parent.name == "cuda"
