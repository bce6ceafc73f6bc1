#!/usr/bin/env python3
"""Writes a checkpoint as a file for llama.cpp:  scripts/export_gguf.py runs/NAME --out NAME.gguf

Takes a checkpoint or a run, whose newest it takes. Names and metadata are those of llama.cpp's converter, but a
tokenizer of one's own (prepare.py --tokenizer train:SIZE) needs no change there. What llama.cpp would compute
otherwise, or divide into other tokens, is refused with the reason. Then:

    llama-completion -m NAME.gguf -p "Once upon a time" -n 50
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import contextlib
import math
import os
import pathlib
import re
import sys

from common.arguments import Parser
from common.run_folder import BadRun, find_checkpoint
from teon_data.files import Failure, UsageError, need, read_json
from teon_gguf import families, tokenizer

TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}


def library():
    try:
        import gguf
    except ImportError as error:
        raise Failure(f"needs the Python package gguf ({error}): .venv/bin/pip install gguf==0.19.0") from error
    return gguf


class Tensor:
    """A tensor of the checkpoint, read when it is written."""

    def __init__(self, gguf, name, shape, wanted, read):
        self.name, self.read = name, read
        matrix = len(shape) > 1 and not name.endswith("_norm.weight") and not name.startswith("position_embd")
        self.type = gguf.GGMLQuantizationType[wanted.upper()] if matrix else gguf.GGMLQuantizationType.F32
        block, size = gguf.GGML_QUANT_SIZES[self.type]
        if shape[-1] % block:  # as the converter does
            self.type, block, size = gguf.GGMLQuantizationType.F16, 1, 2
        self.shape, self.bytes = shape, math.prod(shape) // block * size

    def data(self, gguf, numpy):
        values = numpy.ascontiguousarray(self.read(), dtype=numpy.float32)
        with numpy.errstate(over="ignore"):
            data = gguf.quants.quantize(values, self.type)
        if self.type.name == "F16" and not numpy.isfinite(data).all():
            raise Failure(f"{self.name}: holds {abs(values).max():.3g}, beyond the range of F16; give --type bf16")
        return data


def tensors_of(gguf, numpy, checkpoint, family, config, wanted):
    """Returns the tensors in the checkpoint's order, those that llama.cpp wants beside them first."""
    safetensors = need("safetensors", "a checkpoint's weights")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.arch], config[family.sizes["block_count"]])
    tensors = []
    if factors := families.rope_factors(config):
        tensors.append(Tensor(gguf, "rope_freqs.weight", [len(factors)], wanted, lambda: numpy.array(factors)))
    for path in sorted(checkpoint.glob("model*.safetensors")):
        file = safetensors.safe_open(str(path), "numpy")
        for name in file.keys():
            known = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if known is None:
                raise Failure(f"{path}: llama.cpp has no tensor for {name} in models of type {config['model_type']}")

            def read(file=file, name=name):
                return families.stored(family, config, name, file.get_tensor(name))

            shape = file.get_slice(name).get_shape()
            shape = shape[::-1] if name.endswith(family.transposed) else shape
            tensors.append(Tensor(gguf, known, shape, wanted, read))
    if not tensors:
        raise UsageError(f"{checkpoint}: no model.safetensors")
    return tensors


def add_vocabulary(writer, gguf, checkpoint, family, config, vocabulary):
    """Adds the tokenizer's tokens and settings, in the converter's order."""
    has_scores = vocabulary.model == "llama"
    if not vocabulary.first_blank and (has_scores or family.like_llama):
        writer.add_add_space_prefix(False)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.words)
    texts, scores, kinds = zip(*vocabulary.pieces)
    writer.add_token_list(texts)
    if has_scores:
        writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    special = gguf.SpecialVocab(checkpoint, load_merges=not has_scores, n_vocab=len(texts))
    # As ./generate puts it before each text. llama.cpp's defaults differ between tokenizers.
    special.add_special_token = {"bos": config.get("bos_token_id") is not None, "eos": False}
    special.add_to_gguf(writer, quiet=True)


def export(checkpoint, out, wanted):
    """Writes the file `out`. Returns lines on what it holds."""
    config = read_json(str(checkpoint / "config.json"), dict)
    family = families.family_of(checkpoint / "config.json", config)
    vocabulary = tokenizer.vocabulary_of(checkpoint, config["vocab_size"])
    gguf, numpy = library(), need("numpy", "a GGUF")
    tensors = tensors_of(gguf, numpy, checkpoint, family, config, wanted)
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[family.arch]])
    for tensor in tensors:
        writer.add_tensor_info(tensor.name, tensor.shape, numpy.float32, tensor.bytes, tensor.type)
    writer.add_type(gguf.GGUFType.MODEL)
    named = checkpoint.parent if re.fullmatch(r"step_\d+|best", checkpoint.name) else checkpoint
    total, *_ = writer.get_total_parameter_count()
    metadata = gguf.Metadata.load(None, named.resolve(), None, total)
    metadata.size_label = metadata.size_label or gguf.size_label(total, total, 0, 0)
    metadata.set_gguf_meta_model(writer)
    families.add_metadata(writer, family, config, gguf.LlamaFileType[TYPES[wanted]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_vocabulary(writer, gguf, checkpoint, family, config, vocabulary)
    writer.write_header_to_file(out)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data(gguf, numpy))
    writer.close()
    return [f"{metadata.name}: {writer.arch}, {total:,} weights, {wanted}, {os.path.getsize(out) / 2**20:,.1f} MiB",
            *(f"note: {note}" for note in vocabulary.notes)]


def main(arguments=None):
    parser = Parser(__doc__)
    parser.add_argument("checkpoint", type=pathlib.Path, help="runs/NAME/step_00001000, or runs/NAME for the newest")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the file to write; it must not exist")
    parser.add_argument("--type", choices=TYPES, default="f16",
                        help="of matrices; the checkpoint has float32, q8_0 takes 8.5 bits a weight (default: f16)")
    options = parser.parse_args(arguments)
    if options.out.exists():
        raise UsageError(f"--out {options.out}: already exists; name another file")
    checkpoint = pathlib.Path(find_checkpoint(options.checkpoint))
    staged = options.out.with_name(options.out.name + ".staged")
    try:
        lines = export(checkpoint, staged, options.type)
        staged.rename(options.out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {Failure: 1, UsageError: 2, BadRun: 2}))
