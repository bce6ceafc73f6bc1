"""Text to token shards: the modules of scripts/prepare.py.

sources    the input files and their division into units of work
documents  the documents in a unit
columns    tables: parquet, Arrow, CSV
compression   .gz and .zst
batches    texts to tokens, some at a time
tokenizer  tokenizers behind one interface, and their folder beside the shards
token_table   tokens.bin, the bytes of every token
round_trip    whether texts can be restored from their tokens
source_bytes  bytes of text behind tokens, and their hash
shards     the binary layout, parts and shards on disk, verify and info
workers    the worker processes and their tasks
pipeline   the order of work, and the state from which an interrupted run continues
progress   the progress bar
files      errors, quantities, atomic writing of files
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's; the workers use all cores

VERSION = "1.1"
