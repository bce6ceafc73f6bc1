"""The commands of prepare.py for tokens that exist: adopt, export, fetch, tokens."""

import os

from common.startup import complain, printable

from . import adopt as adoption
from . import published, token_export, tokenizer_folder
from .arguments import Parser, add_shards, add_tokenizer, check_shards, default_name, positive
from .files import UsageError
from .sources import check_name
from .token_formats import RAW_TYPES
from .token_import import Import, TokenJob, describe

TOKENS = """\
sources:
  FILE.parquet, .arrow, .jsonl[.gz|.zst]   a column of ids (--field); also a folder of datasets' save_to_disk
  FILE.bin with FILE.idx                   Megatron
  FILE.ds with FILE.ds.index               datatrove
  FOLDER with index.json                   mosaicml-streaming's MDS, litdata
  FILE.bin, FILE.npy with --raw            ids without a header: nanoGPT; OLMo, with dolma's FILE.csv.gz if it is there

Documents begin where the format's index or the rows say, never where an id is. Each gets one delimiter before it; a
delimiter at its end moves there. The printed hash is the beginning of the SHA-256 of all ids.
"""


def notice(line):
    complain(line, "prepare")


def tokenizer_of(options):
    """Checks --tokenizer, which must be one that exists, and returns its name."""
    if options.tokenizer.startswith("train:"):
        raise UsageError("--tokenizer train: names no tokenizer that made these tokens")
    tokenizer_folder.check_name(options.tokenizer, options.bpe_dir, options.delimiter)
    return options.tokenizer


def parser_of(name, purpose, **how):
    return Parser(purpose, prog=f"prepare.py {name}", **how)


def add_named_tokenizer(parser):
    parser.add_argument("--tokenizer", required=True, metavar="T",
                        help="the tokenizer that made the tokens: gpt2, llama2, bytes, hf:OWNER/NAME, or the path of a "
                             "tokenizer.json, a tokenizer.model or a folder with one of them")
    add_tokenizer(parser)


def tokens(arguments):
    parser = parser_of("tokens", "Turn other programs' tokens into token shards.", epilog=TOKENS)
    add = parser.add_argument
    add("source", nargs="+", help="files or folders of tokens (see below)")
    add("--out", required=True, metavar="FOLDER", help="folder for the shards, manifest.json and tokenizer/")
    add("--name", help="name of the shards (default: the first file's)")
    add_named_tokenizer(parser)
    add("--raw", choices=RAW_TYPES, help="type of ids without a header: required for them")
    add("--field", metavar="NAME", help="column or key of the ids (default: input_ids, token_ids, tokens or ids)")
    add("--rows", choices=("documents", "packed"),
        help="a row of a table, of MDS or litdata is a document (default) or a part of one stream, to which no "
             "delimiter is added; must be given if all rows have one length")
    add("--split", metavar="NAME",
        help="the split of a folder to train on, or all for one stream (default: train, if file or folder names tell "
             "splits, with the validation split, else the test split, for validation)")
    add("--val-from", metavar="PATH", help="file or folder of the validation tokens")
    add_shards(parser)
    options = parser.parse_args(arguments)
    check_name(options.out)
    name = options.name or default_name(options.source[0])
    check_shards(name, options)
    job = TokenJob(tuple(options.source), options.split, options.val_from, os.path.normpath(options.out), name,
                   tokenizer_of(options), options.bpe_dir, options.delimiter,
                   options.raw, options.field, options.rows, options.shard_tokens,
                   options.val_tokens, options.max_tokens)
    manifest, made_now = Import(job, notice).execute()
    if not made_now:
        print(f"{job.out} is already complete")
    for line in describe(manifest, job.out):
        print(printable(line))
    return 0


def adopt(arguments):
    parser = parser_of("adopt", "Write manifest.json and tokenizer/ beside shards of llm.c's layout, so that the "
                                "document\nmask, bits per byte, verify, generate and compare.py work.")
    parser.add_argument("folder", help="folder with the shards, whose names state their split")
    add_named_tokenizer(parser)
    options = parser.parse_args(arguments)
    check_name(options.folder)
    job = adoption.Adoption(os.path.normpath(options.folder), tokenizer_of(options), options.bpe_dir, options.delimiter)
    manifest, made_now = job.execute()
    if not made_now:
        print(f"{job.out} has its manifest.json already")
    for line in adoption.describe(manifest, job.out):
        print(printable(line))
    return 0


def fetch(arguments):
    parser = parser_of("fetch", "Fetch token shards that are published on the Hugging Face Hub, of 100M tokens and\n"
                                "200 MB each. The same command goes on after an interruption.")
    add = parser.add_argument
    add("name", choices=published.PUBLISHED, help="which shards")
    add("--shards", type=positive, default=9, metavar="N",
        help="shards for training, beside those for validation (default 9: 900M tokens, 2 GB)")
    add("--out", metavar="FOLDER", help="folder for the shards (default datasets/NAME)")
    add("--bpe-dir", metavar="FOLDER", help="use vocab.bpe and encoder.json of gpt2 from this folder; do not download")
    options = parser.parse_args(arguments)
    folder = os.path.normpath(options.out or os.path.join("datasets", options.name))
    check_name(folder)
    manifest, made_now = published.fetch(options.name, options.shards, folder, options.bpe_dir, notice)
    if not made_now:
        print(f"{folder} is already complete")
    for line in adoption.describe(manifest, folder):
        print(printable(line))
    return 0


def export(arguments):
    parser = parser_of("export", "Write the tokens of a folder of shards as other programs' files: train.bin and "
                                 "val.bin,\nfor Megatron with .idx. The delimiter moves behind each document.")
    parser.add_argument("folder")
    parser.add_argument("--to", required=True, choices=token_export.WRITERS, help="form of the files")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a new folder")
    options = parser.parse_args(arguments)
    check_name(options.out)
    for line in token_export.export(options.folder, options.to, os.path.normpath(options.out)):
        print(printable(line))
    return 0


COMMANDS = {"adopt": adopt, "export": export, "fetch": fetch, "tokens": tokens}
