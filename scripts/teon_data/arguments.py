"""What the command lines of prepare.py have in common."""

import argparse
import os
import re

from common.arguments import Parser as ArgumentParser

from .files import UsageError, quantity


class Parser(ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message} (see {self.prog} --help)")


def count(text, least=0):
    try:
        value = quantity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is below {least}")
    return value


def positive(text):
    return count(text, 1)


def add_tokenizer(parser):
    add = parser.add_argument
    add("--bpe-dir", metavar="FOLDER", help="use vocab.bpe and encoder.json of gpt2 from this folder; do not download")
    add("--delimiter", metavar="TOKEN", help="token before each document, as text or id (default: the tokenizer's own, "
                                             "<|endoftext|>, <s>, ...)")


def add_shards(parser):
    add = parser.add_argument
    add("--shard-tokens", type=positive, default=10**8, metavar="N", help="tokens per shard (default 100M)")
    add("--val-tokens", type=count, metavar="N",
        help="tokens in the validation shard, the first of the stream; 0 for none (default: a full shard, or a tenth "
             "of a text that does not fill two)")
    add("--max-tokens", type=positive, metavar="N", help="stop after exactly N tokens")


def check_shards(name, options):
    """Refuses names and sizes that no shard can have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"--name '{name}': use only letters, digits, '.', '_' and '-'")
    if len(name) > 200:  # before any work, because the shards' names are longer
        raise UsageError(f"--name {name}: has {len(name)} characters; at most 200")
    if options.shard_tokens > 2**31 - 1 or (options.val_tokens or 0) > 2**31 - 1:
        raise UsageError("--shard-tokens, --val-tokens: a shard has at most 2^31 - 1 tokens")


def default_name(path):
    """Returns a name of shards after a file or folder. A shard's name states its own split."""
    stem = os.path.basename(os.path.normpath(path)).split(".")[0]
    return unsplit(re.sub(r"[^A-Za-z0-9_-]+", "", stem).lstrip("_-"))


def unsplit(name):
    return re.sub(r"([_-](train|val))+$", "", name) or "text"
