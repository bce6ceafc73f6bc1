#!/usr/bin/env python3
"""Prepares a checkpoint for llama.cpp's converter:  scripts/export_gguf.py runs/NAME/step_00001000 --out FOLDER

FOLDER gets the model's files with a tokenizer as llama.cpp expects it: without the template that puts the first token
before each text, because the converter recognizes a byte-level BPE by the SHA-256 of the tokens of a text of its own,
and with add_bos_token, by which llama.cpp then adds that token itself; and generation_config.json. Then:

    python3 convert_hf_to_gguf.py FOLDER --outfile model.gguf

The last line says under which name llama.cpp knows the tokenizer, or what a tokenizer of one's own needs.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import hashlib
import json
import os
import pathlib
import shutil
import sys

from common.arguments import Parser
from common.written_files import replacing
from teon_data.files import Failure, UsageError, need, read_json
from teon_data.sentencepiece_model import sentencepiece_kind

# The text that llama.cpp's converter encodes, and the SHA-256 of the decimal list of its tokens for tokenizers of the
# families here (github.com/ggml-org/llama.cpp, convert_hf_to_gguf_update.py and get_vocab_base_pre()).
CHECK_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ 🦙🦙 "
    "3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ "
    "------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? "
    "'M not sure I'll make it, 'D you like some tea? We'Ve a'lL")
KNOWN_HASHES = {"3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454": "gpt-2",
                "0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5": "llama-bpe",
                "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea": "qwen2"}
# The activation that llama.cpp computes for each model_type, whatever the file says: config.json's key and its values.
ACTIVATIONS = {"gpt2": ("activation_function", ("gelu_new", "gelu_pytorch_tanh")),
               **dict.fromkeys(("llama", "qwen2", "qwen3", "olmo2", "smollm3"), ("hidden_act", ("silu", "swish")))}
MODEL_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "merges.txt")


def without_template(tokenizer):
    """Removes what adds tokens to texts from the content of a tokenizer.json."""
    processor = tokenizer.get("post_processor")
    if processor and processor.get("type") == "TemplateProcessing":
        tokenizer["post_processor"] = None
    elif processor and processor.get("type") == "Sequence":
        processor["processors"] = [part for part in processor["processors"] if part["type"] != "TemplateProcessing"]
        if not processor["processors"]:
            tokenizer["post_processor"] = None
    return tokenizer


def check_hash(path):
    """Returns the hash by which llama.cpp's converter recognizes a tokenizer.json."""
    model = need("tokenizers", "the hash of a tokenizer").Tokenizer.from_file(str(path))
    return hashlib.sha256(str(model.encode(CHECK_TEXT).ids).encode()).hexdigest()


def check_activation(path, config):
    key, values = ACTIVATIONS.get(config.get("model_type"), (None, ()))
    if key and config.get(key, values[0]) not in values:
        raise UsageError(f"{path}: {key} is {config[key]}, but llama.cpp computes {values[0]} in every model of type "
                         f"{config['model_type']}")


def check_window(path, config):
    """llama.cpp has no model whose layers all have a window: it would compute full attention."""
    if config.get("sliding_window"):
        raise UsageError(f"{path}: the model has a window of {config['sliding_window']} tokens, which llama.cpp "
                         "ignores in some or all layers")


def check_positions(path, config):
    """llama.cpp rotates all layers of a SmolLM3 but each fourth, and computes YaRN's factor of queries and keys."""
    rotated = config.get("no_rope_layers") or []
    if rotated != [int((layer + 1) % 4 != 0) for layer in range(len(rotated))]:
        raise UsageError(f"{path}: no_rope_layers is {rotated}, but llama.cpp does not rotate each fourth layer")
    if (config.get("rope_scaling") or {}).get("rope_type") == "yarn":
        raise UsageError(f"{path}: rope_type is yarn, whose attention_factor llama.cpp ignores")


def export(checkpoint, out):
    """Writes the folder `out`. Returns the line that says how llama.cpp knows the tokenizer."""
    config = read_json(str(checkpoint / "config.json"), dict)
    check_activation(checkpoint / "config.json", config)
    check_window(checkpoint / "config.json", config)
    check_positions(checkpoint / "config.json", config)
    out.mkdir(parents=True)
    for pattern in (*MODEL_FILES, *TOKENIZER_FILES):
        for path in sorted(checkpoint.glob(pattern)):
            link_or_copy(path, out / path.name)
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
    write(out / "generation_config.json", {"_from_model_config": True, **tokens})
    own = checkpoint / "tokenizer_config.json"
    if not own.exists():
        return "the checkpoint has no tokenizer that llama.cpp could read: the converter needs --no-vocab"
    settings = read_json(str(own), dict)
    settings["add_bos_token"] = "bos_token_id" in tokens
    settings["add_eos_token"] = False
    write(out / "tokenizer_config.json", settings)
    if (checkpoint / "tokenizer.model").exists():  # the converter reads it first
        return sentencepiece_line(checkpoint / "tokenizer.model")
    # The hashes of some published tokenizers include the token that their own template puts first.
    for path, edit in ((checkpoint / "tokenizer.json", without_template),
                       (checkpoint / "tokenizer" / "tokenizer.json", lambda tokenizer: tokenizer)):
        if not path.exists():
            continue
        write(out / "tokenizer.json", edit(read_json(str(path), dict)))
        digest = check_hash(out / "tokenizer.json")
        if digest in KNOWN_HASHES:
            return f"llama.cpp knows this tokenizer as {KNOWN_HASHES[digest]} ({digest})"
    write(out / "tokenizer.json", without_template(read_json(str(checkpoint / "tokenizer.json"), dict)))
    digest = check_hash(out / "tokenizer.json")
    return (f"llama.cpp does not know this tokenizer ({digest}): add to get_vocab_base_pre() of the converter the line "
            f'if chkhsh == "{digest}": res = "NAME", where NAME is the pre-tokenizer that splits words as this '
            'tokenizer does ("gpt-2" for one that prepare.py trained)')


def sentencepiece_line(path):
    """llama.cpp implements SentencePiece's BPE, and takes every tokenizer.model of a LLaMA for one."""
    kind = sentencepiece_kind(path.read_bytes())
    if kind != "bpe":
        raise Failure(f"{path}: is a SentencePiece model of the kind {kind}; llama.cpp would read it as a BPE and give "
                      "other tokens")
    return "llama.cpp reads tokenizer.model, a SentencePiece BPE, without a hash"


def link_or_copy(source, target):
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def write(path, content):
    with replacing(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("checkpoint", type=pathlib.Path, help="a checkpoint's folder, runs/NAME/step_00001000")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder to write; it must not exist")
    options = parser.parse_args(arguments)
    staged = options.out.with_name(options.out.name + ".staged")
    try:
        if not (options.checkpoint / "config.json").is_file():
            raise UsageError(f"{options.checkpoint}: no config.json; give a checkpoint, runs/NAME/step_00001000")
        if options.out.exists():
            raise UsageError(f"--out {options.out}: already exists; name another folder")
        shutil.rmtree(staged, ignore_errors=True)
        print(export(options.checkpoint, staged))
        staged.rename(options.out)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {Failure: 1, UsageError: 2}))
