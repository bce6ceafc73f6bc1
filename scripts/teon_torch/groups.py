"""Which parameters of a model Teon updates, and in which stacks."""
import re
import warnings

import torch

# Names of matrices that contain Q, K and V, and the transformers classes in which Q, K and V are row blocks. None: all
# classes (GPT-2, torch.nn.MultiheadAttention) except INTERLEAVED. Other classes may interleave them by head (GPT-NeoX).
JOINED = {"c_attn": None, "in_proj_weight": None, "qkv_proj": {"Phi3Attention", "Phi4MultimodalAttention"},
          "Wqkv": {"DbrxAttention", "ModernBertAttention", "MptAttention"}, "query_key_value": set(), "qkv": set()}
INTERLEAVED = {"GPTBigCodeAttention"}
QKV = {"q_proj", "k_proj", "v_proj"}


def _unwrapped(model):
    """Returns the model inside DistributedDataParallel, DataParallel and torch.compile."""
    while ([name for name, _ in model.named_children()] in (["module"], ["_orig_mod"])
           and not list(model.parameters(recurse=False))):
        model, = model.children()
    return model


def _parts_of(model, name, m, n):
    """Returns the row blocks of the matrix `name` (Teon's parts), or None for a joined QKV that is interleaved or
    unknown."""
    words = name.split(".")
    at = next((i for i, word in enumerate(words) if word in JOINED), None)
    if at is None:
        return 1
    attention = model.get_submodule(".".join(words[:at]))
    kinds, known = {kind.__name__ for kind in type(attention).__mro__}, JOINED[words[at]]
    if known is None and not kinds & INTERLEAVED:
        if m not in (2 * n, 3 * n):
            raise ValueError(f"{name}: {m} x {n} does not consist of 2 or 3 matrices of {n} x {n}; give it to AdamW "
                             "(adamw=...)")
        return m // n
    if not kinds & (known or set()):
        return None
    kv = attention.num_key_value_heads * attention.head_dim if hasattr(attention, "num_key_value_heads") else m // 3
    return 3 if m == 3 * kv else (m - 2 * kv, kv, kv)


def stacks_of(model, stacked=None, k=2, adamw=()):
    """Divides the parameters of an nn.Module: (groups for Teon, groups for AdamW).

    Teon gets the matrices of numbered layers, such as layers.3.up_proj.weight, except embeddings, LoRA's factors and
    the last matrix of an nn.Sequential, its head. Matrices of one shape whose names differ only in the layer's number
    are one role and one group; "role" is the name with * for the number. AdamW gets two groups: all other parameters
    with two or more dimensions, and vectors (norms and biases) with weight_decay 0. DistributedDataParallel,
    DataParallel and torch.compile may be around the model.

    stacked: the roles that are stacked k by k, by a part of their names ("q_proj", not "proj"); Muon updates the
    others. Default: Q, K and V if the model has them; otherwise it warns. Joined matrices are split into their parts if
    these are known to be row blocks. Matrices of a Conv1D are transposed.
    adamw: further matrices for AdamW, by a part of their names.
    Raises ValueError for a name that matches nothing, for FSDP, and for a model without matrices for Teon."""
    def has(name, words):
        return not set(words).isdisjoint(name.split("."))

    model = _unwrapped(model)
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError("FSDP flattens and shards matrices, and Teon needs whole ones; use DistributedDataParallel")
    outer = {id(p) for module in model.modules() if isinstance(module, torch.nn.Embedding) for p in module.parameters()}
    if isinstance(model, torch.nn.Sequential):
        matrices = [p for _, p in model.named_parameters(remove_duplicate=False) if p.ndim == 2]
        outer |= {id(p) for p in matrices[-1:]}
    conv1d = {f"{name}.weight" for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}
    roles, decayed, vectors = {}, {}, []
    for name, p in model.named_parameters():
        role = re.sub(r"(^|\.)\d+\.", r"\1*.", name, count=1)
        if p.ndim < 2:
            vectors.append(p)
        # LoRA's factors too: the weight moves by their product, which is not orthogonal even if each update is.
        elif p.ndim > 2 or role == name or id(p) in outer or has(name, adamw) or re.search(r"(^|\.)lora_", name):
            decayed[name] = p
        else:
            m, n = reversed(p.shape) if name in conv1d else p.shape
            roles.setdefault((role, p.shape, name in conv1d, _parts_of(model, name, m, n)), []).append(p)
    found = {"stacked": [role for role, *_ in roles], "adamw": list(decayed)}
    for option, words in (("stacked", stacked or ()), ("adamw", adamw)):
        for word in words:
            if not any(has(name, [word]) for name in found[option]):
                raise ValueError(f"{option}: {word!r} matches no matrix; the matrices are "
                                 f"{', '.join(found['stacked'])}")
    if not roles:
        raise ValueError("the model has no matrices in numbered layers (such as layers.0.up_proj.weight); give Teon "
                         "its groups yourself")

    hidden = []
    for (role, _, transposed, parts), params in roles.items():
        chosen = has(role, QKV) or parts not in (1, None) if stacked is None else has(role, stacked)
        hidden.append({"params": params, "role": role, "parts": parts or 1, "transposed": transposed,
                       "k": k if chosen else 1})
    if stacked is None and k > 1 and not any(group["k"] > 1 for group in hidden):
        uncut = [role for role, _, _, parts in roles if parts is None]
        words = sorted({word for role in uncut for word in role.split(".") if word in JOINED})
        warnings.warn(f"nothing is stacked, so Teon is Muon: found no separate Q, K and V in "
                      f"{', '.join(uncut or dict.fromkeys(found['stacked']))}; stack whole matrices with "
                      f"stacked={words or '[...]'}, or choose Muon with k=1", stacklevel=2)
    return hidden, [{"params": list(decayed.values())}, {"params": vectors, "weight_decay": 0.0}]
