"""One row for each model_type of a config.json that llama.cpp computes: metadata, tensors, and what it reads otherwise.

Keys, names and values are those of llama.cpp's converter (github.com/ggml-org/llama.cpp, conversion/).
"""

import math
from typing import NamedTuple

from teon_data.files import UsageError

# The sizes of a model: the key in GGUF after the architecture's name, and that of config.json.
GPT2_SIZES = {"block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd",
              "feed_forward_length": "n_inner", "attention.head_count": "n_head"}
SIZES = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
         "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
         "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads"}
GELU, SILU = ("gelu_new", "gelu_pytorch_tanh"), ("silu", "swish")


class Family(NamedTuple):
    arch: str  # a name of gguf.MODEL_ARCH
    sizes: dict = SIZES
    norm: tuple = ("attention.layer_norm_rms_epsilon", "rms_norm_eps")
    activation: tuple = ("hidden_act", SILU)  # what llama.cpp computes, whatever the file says
    head_size: tuple = ("attention.key_length", "attention.value_length")
    transposed: tuple = ()  # ends of the names of tensors that are stored (in, out)
    # Of LLaMA's kind: rotations turn neighbours instead of halves of a head, so that rows of queries and keys change
    # places; factors of frequencies are read; and more is in the metadata.
    like_llama: bool = False
    biases: bool = False  # of attention and MLP are read


FAMILIES = {
    "gpt2": Family("GPT2", GPT2_SIZES, ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
                   ("activation_function", GELU), head_size=(), biases=True,
                   transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight")),
    "llama": Family("LLAMA", like_llama=True, biases=True),
    "mistral": Family("LLAMA", like_llama=True),
    "qwen2": Family("QWEN2"),
    "qwen3": Family("QWEN3"),
    "olmo2": Family("OLMO2"),
    "olmo3": Family("OLMO2"),  # with windows
    "smollm3": Family("SMOLLM3", like_llama=True),
}


def family_of(path, config):
    """Returns the row of the model in `config`, the content of the file `path`. Raises UsageError for what llama.cpp
    would compute otherwise, or not at all."""
    kind = config.get("model_type")
    if config.get("sliding_window") and kind != "olmo3":
        raise UsageError(f"{path}: the model has a window of {config['sliding_window']} tokens, which llama.cpp "
                         "ignores in some or all layers")
    family = FAMILIES.get(kind)
    if not family:
        raise UsageError(f"{path}: model_type is {kind}; only {', '.join(FAMILIES)} can be exported")
    key, values = family.activation
    if config.get(key, values[0]) not in values:
        raise UsageError(f"{path}: {key} is {config[key]}, but llama.cpp computes {values[0]} in every model of type "
                         f"{kind}")
    if kind == "gpt2" and config.get("n_inner") not in (None, 4 * config["n_embd"]):
        raise UsageError(f"{path}: n_inner is {config['n_inner']}, but llama.cpp's GPT-2 has an MLP of 4 n_embd = "
                         f"{4 * config['n_embd']}")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key) and not family.biases:
            raise UsageError(f"{path}: {key} is true, but llama.cpp has no biases in models of type {kind}")
    scaling = rope_scaling(config)
    if scaling not in (None, "default", "linear", "llama3") or (scaling == "llama3" and not family.like_llama):
        raise UsageError(f"{path}: rope_type is {scaling}, which llama.cpp does not compute as we do in models of type "
                         f"{kind}")
    rotated = config.get("no_rope_layers") or []
    if rotated != [int(layer % 4 != 0) for layer in range(1, len(rotated) + 1)]:
        raise UsageError(f"{path}: no_rope_layers is {rotated}, but llama.cpp rotates all layers except each fourth")
    return family


def rope_scaling(config):
    """Returns the name of the scaling of positions, or None."""
    return (config.get("rope_scaling") or {}).get("rope_type")


def add_metadata(writer, family, config, file_type):
    """Adds what describes the model, in the converter's order."""
    def key(name):
        return f"{writer.arch}.{name}"

    for name, theirs in family.sizes.items():
        value = config.get(theirs)
        writer.add_uint32(key(name), 4 * config["n_embd"] if theirs == "n_inner" and value is None else value)
    if rope_scaling(config) == "linear":
        writer.add_string(key("rope.scaling.type"), "linear")
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
    if "rope_theta" in config:
        writer.add_rope_freq_base(config["rope_theta"])
        if config.get("sliding_window"):
            writer.add_float32(key("rope.freq_base_swa"), config["rope_theta"])
    writer.add_float32(key(family.norm[0]), config[family.norm[1]])
    for name in family.head_size:
        writer.add_uint32(key(name), config["head_dim"])
    writer.add_file_type(file_type)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if family.like_llama:
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(config["head_dim"])


def stored(family, config, name, values):
    """Returns the values of a checkpoint's tensor in llama.cpp's order."""
    if name.endswith(family.transposed):
        return values.T
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if not family.like_llama or not heads:
        return values
    halves = values.reshape(config[heads], 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def rope_factors(config):
    """Returns the number that divides each frequency in Llama 3.1's scaling, or None without it."""
    if rope_scaling(config) != "llama3":
        return None
    scaling, size = config["rope_scaling"], config["head_dim"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for i in range(0, size, 2):
        turns = scaling["original_max_position_embeddings"] * config["rope_theta"] ** (-i / size) / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0), 1)
        factors.append(1 / ((1 - kept) / scaling["factor"] + kept))
    return factors
