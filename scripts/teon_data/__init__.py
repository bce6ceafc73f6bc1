"""Text to token shards: what scripts/prepare.py is made of.

sources    which files to read, and how they are divided into units of work
documents  the documents in a unit
tokenizer  tokenizers behind one interface, and the folder that describes one beside the shards
shards     the binary layout, parts and shards on disk, verify and info
workers    the worker processes and their tasks
pipeline   the order of work, and the state that makes a killed run continue
progress   the progress bar
files      errors, quantities, and writing files so that they are whole or absent
"""

VERSION = "1.1"
