#!/usr/bin/env python3
"""Turns text into token shards.

    python3 scripts/prepare.py fineweb:10BT --out datasets/fineweb10B
    python3 scripts/prepare.py 'corpus/*.jsonl.zst' --tokenizer tokenizer.json --out datasets/corpus
    python3 scripts/prepare.py verify datasets/fineweb10B

Needs numpy, pyarrow and tqdm, and for some inputs tiktoken (gpt2), tokenizers (tokenizer.json, train), sentencepiece
(tokenizer.model, llama2) and huggingface_hub (fineweb, llama2, hf:). `make setup` installs all of them into .venv.
docs/data.md describes the format.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import os
import sys
import time

try:
    from common.startup import complain, exit_code, printable
    from teon_data import arguments as words
    from teon_data import file_plan, shards, token_commands, tokenizer_folder
    from teon_data.arguments import Parser, positive
    from teon_data.files import Failure, UsageError, counted
    from teon_data.interrupts import handle
    from teon_data.pipeline import Run, reasons
    from teon_data.sources import check_name, hub_data, open_source
    from teon_data.workers import Job
except ImportError as missing:
    sys.exit(f"prepare: error: {missing}; `make setup` installs it into .venv")

EXAMPLES = """\
sources:
  fineweb[:SAMPLE]      FineWeb from the Hugging Face Hub; SAMPLE is 10BT (default), 100BT, 350BT or edu
  fineweb-edu[:SAMPLE]  FineWeb-Edu; SAMPLE is 10BT (default), 100BT or 350BT
  hf:OWNER/NAME[[:CONFIG]:SPLIT]
                        any dataset of the Hugging Face Hub: name, configuration and split (default train)
  FILE, FOLDER, GLOB    .parquet, .arrow, .csv, .jsonl, .json.gz, .txt (the last four also .gz or .zst); .json, .md,
                        .tex, .py, ... if they are named

other commands:
  prepare.py verify FOLDER    check shards and tokenizer files against manifest.json
  prepare.py info FOLDER      describe a folder of shards
  prepare.py adopt FOLDER     write manifest.json and tokenizer/ beside shards of llm.c or modded-nanogpt
  prepare.py fetch NAME       fetch published shards: fineweb10B, finewebedu10B, ...
  prepare.py export FOLDER    write shards as nanoGPT's or Megatron's files
  prepare.py tokens SOURCE    make shards of tokens that other programs wrote (Megatron, nanoGPT, columns of ids, ...)

After an interruption, run the same command again to continue. The shards have the same bytes as those of an
uninterrupted run, for any number of workers. Counts accept 524288, 1e9, 100M, 512Ki.
"""


def parse(arguments):
    """Returns the Job of a command line."""
    parser = Parser("Turn text into token shards.", prog="prepare.py", epilog=EXAMPLES)
    add = parser.add_argument
    add("source", nargs="+", help="fineweb, or files of text (see below)")
    add("--out", metavar="FOLDER", help="folder for the shards, manifest.json and tokenizer/")
    add("--name", help="name of the shards: NAME_val_000000.bin, NAME_train_000001.bin, ... (default fineweb, "
                       "edu_fineweb or the first file's name)")
    add("--tokenizer", default="gpt2", metavar="T",
        help="gpt2 (default), llama2, bytes, train:SIZE (byte-level BPE trained on the input), hf:OWNER/NAME on the "
             "hub, or the path of a tokenizer.json, a SentencePiece tokenizer.model or a folder with one of them")
    words.add_tokenizer(parser)
    add("--text-field", default="text", metavar="NAME",
        help="column or key of the text, or a path to it such as meta.text (default text)")
    add("--txt-documents", choices=("file", "line"), default="file",
        help="one document of a .txt file: the whole file (default) or each line that is not empty")
    words.add_shards(parser)
    add("--split", metavar="NAME",
        help="the split of the input to train on, or all for one text (default: train; if file or folder names, or a "
             "data set's own files, tell splits, validation on the validation split, else on the test split)")
    add("--val-from", metavar="PATH", action="append",
        help="file, folder or glob of the validation text; not trained on if it is in the input. Can be repeated")
    add("--drop-validation-duplicates", action="store_true",
        help="leave documents out of the training text that are also in the validation text (exact duplicates)")
    add("--list", action="store_true", help="print what would be read, each file with its rows, and end")
    add("--train-bytes", type=positive, default=2**28, metavar="N",
        help="train:SIZE learns from the first N bytes of the input's text (default 256Mi)")
    add("--unit-bytes", type=positive, default=2**23, metavar="N",
        help="text per unit of work (default 8Mi); does not change the shards")
    add("--workers", type=positive, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count(), metavar="N", help="worker processes (default %(default)s, the cores of this machine)")
    add("--delete-downloads", action="store_true",
        help="remove each downloaded file when its tokens are in the shards; do not keep it in the hub's cache")
    add("--lossy", action="store_true", help="accept a tokenizer from whose tokens texts cannot be restored")
    options = parser.parse_args(arguments)

    tokenizer_folder.check_name(options.tokenizer, options.bpe_dir, options.delimiter)
    if not (options.out or options.list):
        raise UsageError("the following arguments are required: --out (see prepare.py --help)")
    check_name(options.out or "")
    name = options.name or default_name(options.source[0])
    words.check_shards(name, options)
    return Job(tuple(options.source), options.out and os.path.normpath(options.out), name,
               options.tokenizer, options.bpe_dir, options.delimiter, options.text_field,
               options.txt_documents == "line", options.shard_tokens, options.val_tokens,
               options.max_tokens, options.train_bytes, options.unit_bytes, options.workers,
               options.delete_downloads, options.lossy, options.split, options.val_from and tuple(options.val_from),
               options.drop_validation_duplicates, options.list)


def default_name(source):
    if not (data := hub_data(source)):
        return words.default_name(source)
    name = data.repository.split("/")[1]
    return words.unsplit({"fineweb-edu": "edu_fineweb"}.get(name, name))


def notice(line):
    complain(line, "prepare")


def list_source(job):
    source = open_source(job)
    for line in source.notes:
        notice(line)
    for line in file_plan.listing(source):
        print(printable(line))
    return 0


def prepare(arguments):
    job = parse(arguments)
    if job.list_only:
        return list_source(job)
    run = Run(job, notice=notice)
    began = time.monotonic()
    manifest, made_now = run.execute()
    seconds = time.monotonic() - began
    if not made_now:
        print(f"{job.out} is already complete")
    bad = sum(manifest["bad_rows"].values())
    print(printable(
        f"{counted(manifest['tokens'], 'token')} in {counted(manifest['documents'], 'document')}, "
        f"{counted(len(manifest['shards']), 'shard')} of {'uint16' if manifest['token_bytes'] == 2 else 'uint32'} in "
        f"{job.out}; {counted(bad, 'bad row')}{reasons(manifest['bad_rows'])}"))
    if made_now:
        report_duplicates(manifest)
        print(f"{counted(run.made, 'unit')} tokenized in {seconds:.1f} s by {counted(job.workers, 'worker')}")
    if all(shard["split"] == "val" for shard in manifest["shards"]):
        print(f"all tokens are validation tokens; for training tokens, remove {job.out} and reduce --val-tokens")
    return 0


def report_duplicates(manifest):
    if left_out := manifest["rows_in_validation"]:
        notice(f"{counted(left_out, 'document')} left out, which the validation text has, too")
    if repeated := sum(shard.get("documents_in_validation", 0) for shard in manifest["shards"]):
        own = any("split" in file for file in manifest["source"]["files"])
        notice(f"documents for training that are also in the validation shards: {repeated:,}"
               f"{'; --drop-validation-duplicates leaves them out' if own else ''}")


def verify(arguments):
    parser = Parser("Check a folder of shards against its manifest.json.", prog="prepare.py verify")
    parser.add_argument("folder")
    folder = parser.parse_args(arguments).folder
    manifest, faults = shards.verify(folder, os.cpu_count())
    for fault in faults:
        complain(f"error: {fault}", "prepare")
    if not faults:
        print(printable(f"{folder}: {counted(len(manifest['shards']), 'shard')}, "
                        f"{counted(manifest['tokens'], 'token')}, {counted(manifest['documents'], 'document')}: "
                        f"as in the manifest"))
    return 1 if faults else 0


def info(arguments):
    parser = Parser("Describe a folder of shards.", prog="prepare.py info")
    parser.add_argument("folder")
    for line in shards.info(parser.parse_args(arguments).folder):
        print(printable(line))
    return 0


def obey(arguments):
    handle()
    command = ({"verify": verify, "info": info} | token_commands.COMMANDS).get(arguments[0] if arguments else "")
    return command(arguments[1:]) if command else prepare(arguments)


def main(arguments):
    """Returns the exit status: 0 done, 1 failed, 2 usage, 130 interrupted; SIGTERM raises SystemExit(143)."""
    return exit_code(lambda: obey(arguments), {UsageError: 2, Failure: 1},
                     "interrupted; run the same command to continue", "prepare")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
