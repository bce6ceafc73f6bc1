#!/usr/bin/env python3
"""Trains a small model on a text, in a time that is given, and shows what it learned:

    python3 scripts/train_text.py notes.txt                 a file, a folder or a pattern; .txt, .md or .jsonl
    python3 scripts/train_text.py notes.txt --minutes 1     `make demo TEXT=notes.txt MINUTES=1` builds first

Chooses vocabulary, model (a LLaMA), context, dropout, batch and steps from the text's size and three timed steps, and
says why. Prints each command before it runs it. The model has to beat a trigram model with backoff of the same tokens.
Writes runs/NAME-TIME/ (--out): the tokens in data/, the run in model/, and report.html, which is one file. Exit status:
0; 1 if a step failed or the model is not better than the trigram model; 2 usage, or a text that is too small.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import glob
import os
import platform
import shlex
import shutil
import subprocess
import sys
import textwrap
import time

from common import ngrams, page
from common.arguments import Parser, decimal
from common.live import duration
from common.run_folder import BadRun, finite, open_run, read_object, short
from common.startup import printable
from common.written_files import NotAFile

from experiments import Fault

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KINDS = ("txt", "md", "jsonl")
LEAST_BYTES = 20_000  # 12,000 gave no better model than the trigrams (docs/tutorial.md)
# By the least size of a text in bytes: tokenizer; layers, channels, heads and context; batch; passes at most; dropout.
# docs/tutorial.md has the losses that these were chosen by.
CHOICES = (
    (10_000_000, "train:4096", (4, 256, 4, 128), 4096, 20, 0.0),
    (1_000_000, "train:2048", (4, 128, 4, 128), 2048, 20, 0.1),
    (100_000, "train:512", (2, 128, 4, 64), 1024, 20, 0.1),
    (0, "bytes", (2, 64, 2, 64), 512, 20, 0.1),
)
LEAST_STEPS = 100
LEAST_PASSES = 3  # for fewer, a smaller model that sees the text more often is better
EVALS = 20
PATIENCE = 6
VAL_TOKENS = 60_000  # at most; so many bound the time of an evaluation
TRAINING_SHARE = 0.85  # of the time: the rest is for evaluations and samples
SAMPLES, LINES = 3, 10


def sources_of(text):
    """Returns the files of a text, and the words that name them to prepare.py."""
    patterns = [text]
    if os.path.isdir(text):
        patterns = [os.path.join(text, "**", f"*.{kind}") for kind in KINDS]
        patterns = [pattern for pattern in patterns if glob.glob(pattern, recursive=True)]
    files = [path for pattern in patterns for path in
             ([pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
    if not files:
        raise Fault(f"{text}: no such file, and no folder with {', '.join(f'.{kind}' for kind in KINDS)}")
    return files, patterns


class Steps:
    """Runs the commands, each shown before, so that they can be repeated by hand."""

    def __init__(self):
        self.commands = []

    def run(self, words, capture=False):
        line = shlex.join(words).replace(sys.executable, "python3")
        self.commands.append(line)
        print(f"\n$ {printable(line)}", flush=True)
        done = subprocess.run(words, stdout=subprocess.PIPE if capture else None)
        if done.returncode:
            raise BadRun(f"{words[0] if words[0] != sys.executable else words[1]} failed")
        return done.stdout.decode(errors="replace") if capture else ""


def program(name):
    path = os.path.relpath(os.path.join(ROOT, name))
    if not os.path.exists(path):
        raise Fault(f"{path}: not built; type make")
    return path if os.path.dirname(path) else f"./{path}"


def shape_flags(shape, batch, dropout):
    layers, channels, heads, context = shape
    return ["--model", "tiny", "--layers", str(layers), "--channels", str(channels), "--heads", str(heads),
            "--seq-len", str(context), "--batch-tokens", str(batch), "--dropout", f"{dropout:g}",
            "--optimizer", "muon", "--lr", "0.02"]


def step_seconds(data, flags, folder):
    """Returns the time of a step, the shorter one of the second and the third."""
    run = os.path.join(folder, "timed")
    done = subprocess.run([program("train_llama"), "--data", data, *flags, "--steps", "3", "--out", run,
                           "--checkpoint-end", "off", "--eval-tokens", "1024"], capture_output=True)
    if done.returncode:
        said = first_lines(done.stderr.decode(errors="replace"), 1)
        raise BadRun(said or f"train_llama ended with status {done.returncode}")
    seconds = min(list(open_run(run)[1].of_kind("step").column("ms"))[1:]) / 1000
    shutil.rmtree(run)
    return seconds


def smaller(shape):
    """Returns the next smaller shape, which takes about a quarter of the time, or None."""
    layers, channels, heads, context = shape
    return (max(2, layers // 2), channels // 2, max(2, heads // 2), context) if channels > 64 else None


def choose(files_bytes, data, folder, seconds):
    """Returns (flags, steps, lines that say why) for the tokens in `data` and so many seconds of training."""
    _, tokenizer, shape, batch, passes, dropout = next(row for row in CHOICES if files_bytes >= row[0])
    manifest = read_object(os.path.join(data, "manifest.json"), {"vocab_size": int, "shards": list})
    train, val = (sum(s["tokens"] for s in manifest["shards"] if s["split"] == split) for split in ("train", "val"))
    wanted = max(LEAST_STEPS, passes * train // batch)
    while True:
        step = step_seconds(data, shape_flags(shape, batch, dropout), folder)
        steps = min(wanted, max(LEAST_STEPS, int(TRAINING_SHARE * seconds / step)))
        if steps * batch >= LEAST_PASSES * train or steps == wanted or not smaller(shape):
            break
        shape = smaller(shape)
    seen = steps * batch / train
    if seen <= 4:
        dropout = 0.0
    limit = "the most that helps a text of this size" if steps == wanted else "what the time allows"
    lines = [
        f"vocabulary  {manifest['vocab_size']:,} ({tokenizer}): {files_bytes:,} bytes of text are {short(train)} "
        f"tokens to learn from; {short(val)} are held out",
        f"model       a LLaMA of {shape[0]} layers of {shape[1]} channels, context of {shape[3]} tokens: larger ones "
        "memorize this text or take too long",
        f"dropout     {dropout:g}: each token is seen {seen:.1f} times, which "
        + ("invites memorizing" if dropout else "does not invite memorizing"),
        f"steps       {steps:,} of {batch:,} tokens at {1000 * step:.0f} ms: about {duration(steps * step)}, {limit}",
        f"keep        --keep-best: the model of the lowest validation loss; --patience {PATIENCE}: stop if "
        f"{PATIENCE} evaluations bring none"]
    return shape_flags(shape, batch, dropout), steps, lines


def curves_of(metrics):
    """Returns the run's training loss, averaged over its evaluations' intervals, and its validation loss."""
    evals = [(m["step"], m["val_loss"]) for m in metrics.of_kind("eval") if m["val_loss"] is not None]
    losses = [loss for loss in metrics.of_kind("step").column("loss") if finite(loss)]
    width = max(1, len(losses) // 60)
    parts = [losses[begin:begin + width] for begin in range(0, len(losses), width)]
    means = [(i * width + len(part) / 2, sum(part) / len(part)) for i, part in enumerate(parts)]
    return {"training": means, "validation": evals}


def machine(config):
    device = config.get("device") or {}
    return [("machine", f"{device.get('name', '?')}, {os.cpu_count()} cores, {device.get('products', '')}"),
            ("system", f"{platform.system()} {platform.release()}, Python {platform.python_version()}"),
            ("version", config.get("version", "?")), ("date", time.strftime("%Y-%m-%d %H:%M"))]


def comparison(evals, losses, bits):
    """Returns rows (name, nats per token, bits per byte) of the baselines and the model."""
    best = min(evals, key=lambda place: place[1])
    rows = [(f"{name} model{' with backoff' if name != 'unigram' else ''}", loss) for name, loss in losses.items()]
    rows.append((f"this model, step {best[0]}", best[1]))
    return [(name, f"{loss:.3f}", f"{loss * bits:.3f}") for name, loss in rows], best[1]


def first_lines(text, count):
    lines = [part for line in text.splitlines() for part in textwrap.wrap(printable(line), 80) or [""]]
    return "\n".join(lines[:count])


def main():
    parser = Parser(__doc__)
    parser.add_argument("text", help="a file, a folder or a pattern in quotes")
    parser.add_argument("--minutes", type=decimal(0.1, 10_000), default=5, help="time for all of it (default 5)")
    parser.add_argument("--out", help="a new folder (default runs/NAME-TIME)")
    options = parser.parse_args()
    began = time.monotonic()
    files, words = sources_of(options.text)
    size = sum(map(os.path.getsize, files))
    if size < LEAST_BYTES:
        raise Fault(f"{options.text}: {size:,} bytes of text are too few; from {LEAST_BYTES:,} on a model learns more "
                    "than which three tokens follow each other")
    tokenizer = next(row[1] for row in CHOICES if size >= row[0])
    name = os.path.splitext(os.path.basename(os.path.normpath(options.text)))[0].strip("*") or "text"
    out = options.out or os.path.join("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if os.path.exists(out):
        raise Fault(f"{out}: exists; name a new folder")
    os.makedirs(out)
    data, run, steps = os.path.join(out, "data"), os.path.join(out, "model"), Steps()

    held_out = ["--val-tokens", str(VAL_TOKENS)] if size > 2_000_000 else []
    steps.run([sys.executable, os.path.relpath(os.path.join(ROOT, "scripts", "prepare.py")), *words,
               "--tokenizer", tokenizer, *held_out, "--out", data])
    left = max(0.5 * 60 * options.minutes, 60 * options.minutes - (time.monotonic() - began))
    flags, count, why = choose(size, data, out, left)
    print("\n" + "\n".join(why))
    steps.run([program("train_llama"), "--data", data, *flags, "--steps", str(count),
               "--eval-every", str(max(1, count // EVALS)), "--log-every", str(max(1, count // EVALS)),
               "--keep-best", "on", "--patience", str(PATIENCE), "--out", run])

    best = os.path.join(run, "best")
    samples = steps.run([program("generate"), "--checkpoint", best, "--sample-tokens", "400", "--temperature", "0.7",
                         "--samples", str(SAMPLES), "--seed", "1"], capture=True)
    print(first_lines(samples, LINES))
    losses, bits = ngrams.measures(data)
    config, metrics = open_run(run)
    curves = curves_of(metrics)
    rows, loss = comparison(curves["validation"], losses, bits)
    header = ("validation loss", "nats per token", "bits per byte")
    print("\n" + "\n".join(page.curves_as_text(curves, "steps")) + "\n")
    for row in (header, *rows):
        print(f"{row[0]:34}{row[1]:>16}{row[2]:>16}")
    settings = [tuple(line.split(maxsplit=1)) for line in why]
    report = os.path.join(out, "report.html")
    page.write(report, f"A model of {name}", [
        ("What it learned", page.table(rows, header)
         + page.text("Lower is better. Both are losses on text that was held out. The trigram model knows which tokens "
                     "followed each two; a model that is not better has learned no more than that.")),
        ("Loss", page.curves_as_svg(curves, "steps", "nats per token")),
        ("What it writes", page.verbatim(samples)), ("What was chosen, and why", page.table(settings)),
        ("The commands", page.verbatim("\n".join(steps.commands))), ("Where", page.table(machine(config)))])
    print(f"\nwritten: {report} in {duration(time.monotonic() - began)}; more of it: "
          f"{program('generate')} --checkpoint {best} --prompt ...")
    if not loss < losses["trigram"]:
        raise BadRun("the model is not better than the trigram model: it needs more text or more --minutes")
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {Fault: 2, BadRun: 1, NotAFile: 1}))
