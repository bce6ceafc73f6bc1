"""Starts ./train_gpt2 or ./train_llama on random tokens, and counts processor time, for the benchmarks."""

import pathlib
import random
import resource
import subprocess
import tempfile

from common.run_folder import Metrics
from make_corpus import shard_of

ROOT = pathlib.Path(__file__).resolve().parent.parent


def random_shard(folder, vocabulary, count):
    """Writes a shard of `count` uniform tokens and returns its path."""
    path = pathlib.Path(folder) / "random_train_000000.bin"
    path.write_bytes(shard_of(random.Random(1).choices(range(vocabulary), k=count)))
    return path


def train(shard, *flags, steps, program="train_gpt2"):
    """Trains and returns the metrics of the steps after the first quarter."""
    with tempfile.TemporaryDirectory(dir=shard.parent) as folder:
        command = [ROOT / program, "--data", shard, "--steps", steps, "--checkpoint-end", "off", "--out",
                   f"{folder}/run", *flags]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        return [line for line in Metrics(f"{folder}/run").of_kind("step") if line["step"] > steps // 4]


def cpu_seconds(who=resource.RUSAGE_CHILDREN):
    """Returns the processor time of ended children, or of this process."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def on_gpu():
    """Whether ./train_gpt2 was built for CUDA."""
    return (ROOT / "train_gpt2").resolve().parent.name == "cuda"
