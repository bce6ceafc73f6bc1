"""Text to token shards: the modules of scripts/prepare.py.

sources    the input files and their division into units of work
folders    which files of a folder are its text
tables_of_contents   what other programs say of that: datasets, Delta, Iceberg
splits     which files are for training and which for validation
file_plan  each file with its rows, and files of the same content
duplicates   documents that are in both texts
documents  the documents in a unit
columns    tables: parquet, Arrow, CSV
compression   .gz, .zst, .bz2 and .xz
batches    texts to tokens, some at a time
tokenizer  tokenizers behind one interface
tokenizer_folder  makes the folder beside the shards with a tokenizer's files
first_texts   the first texts of the input, to train a tokenizer and to check one
token_table   tokens.bin, the bytes of every token
round_trip    whether texts can be restored from their tokens
source_bytes  bytes of text behind tokens
shards     the binary layout, parts and shards on disk, verify and info
token_commands  adopt, export and tokens: tokens that exist
token_sources   which files of tokens a source has, and their splits
token_formats   Megatron, datatrove, ids without a header
token_rows      columns of ids, mosaicml-streaming, litdata
token_stream    a delimiter before each document, the check of ids, the cut into shards
token_import    tokens to shards
token_export    shards to nanoGPT's and Megatron's files
adopt      a manifest and a tokenizer for shards that exist
arguments  what the command lines have in common
workers    the worker processes and their tasks
shard_plan   which tokens the next shard has
pipeline   the order of work, and the state from which an interrupted run continues
folder_checks  whether options and input are those of that state
progress   the progress bar
files      errors, quantities, atomic writing of files
"""

VERSION = "1.1"
