"""Which parameters of a model Teon updates, and in which stacks."""
import dataclasses
import re
import warnings

import torch

# Names of matrices that contain Q, K and V, and the transformers classes in which Q, K and V are row blocks. None: all
# classes (GPT-2, torch.nn.MultiheadAttention) except INTERLEAVED. Other classes may interleave them by head (GPT-NeoX).
JOINED = {"c_attn": None, "in_proj_weight": None, "qkv_proj": {"Phi3Attention", "Phi4MultimodalAttention"},
          "Wqkv": {"DbrxAttention", "ModernBertAttention", "MptAttention"}, "query_key_value": set(), "qkv": set(),
          "wqkv": set()}
INTERLEAVED = {"GPTBigCodeAttention"}
# transformers, torchtitan, nanochat; q_b_proj and kv_b_proj make Q, K and V of DeepSeek's latents.
QKV = {"q_proj", "k_proj", "v_proj", "wq", "wk", "wv", "c_q", "c_k", "c_v", "q_b_proj", "kv_b_proj"}
# Attributes of attention modules whose sum is the number of rows of a head in a matrix; the first that exist count.
HEAD_SIZES = {"q_proj": [["qk_head_dim"]], "q_b_proj": [["qk_head_dim"]],
              "kv_b_proj": [["qk_nope_head_dim", "v_head_dim"]]}
ANY_HEAD_SIZE = [["head_dim"], ["head_size"], ["attention_head_size"]]
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile, activation checkpointing
ROUTERS = {"router", "gate", "shared_expert_gate"}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the matrices of a group of Teon have in common."""
    role: str
    shape: torch.Size
    transposed: bool
    parts: object  # row blocks, as of Teon; None: a joined QKV that is interleaved or unknown
    experts: bool = False
    head_size: object = None


def has(name, words):
    return not set(words).isdisjoint(name.split("."))


def _unwrapped(model):
    """Returns the model inside DistributedDataParallel, DataParallel, torch.compile and activation checkpointing."""
    while ([name for name, _ in model.named_children()] in (["module"], *([name] for name in WRAPPERS))
           and not list(model.parameters(recurse=False))):
        model, = model.children()
    return model


def _plain(name):
    """Returns a name without the words that wrappers inside the model add."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


def _classes(module):
    return {kind.__name__ for kind in type(module).__mro__}


class _Model:
    """A model's parameters by name. Names are those of the model without wrappers."""

    def __init__(self, model):
        self.modules = {_plain(name): module for name, module in model.named_modules()}
        self.parameters = {_plain(name): p for name, p in model.named_parameters()}
        embeddings = [x for x in model.modules() if isinstance(x, torch.nn.Embedding)]
        self.outer = {id(p) for module in embeddings for p in module.parameters()}
        if isinstance(model, torch.nn.Sequential):
            matrices = [p for _, p in model.named_parameters(remove_duplicate=False) if p.ndim == 2]
            self.outer |= {id(p) for p in matrices[-1:]}

    def module_of(self, name):
        """Returns the module that has this parameter or module, without wrappers."""
        return _unwrapped(self.modules[name.rpartition(".")[0]])

    def is_router(self, name):
        module = self.module_of(name)
        if any(kind.endswith("Router") for kind in _classes(module)) or has(name, ["router"]):
            return True
        words = name.split(".")
        return words[-2:-1] and words[-2] in ROUTERS and ".".join([*words[:-2], "experts"]) in self.modules

    def has_experts(self, name):
        """Returns whether a tensor (E, m, n) holds matrices of E experts."""
        return self.parameters[name].ndim == 3 and has(name, ["experts"])

    def is_transposed(self, name):
        module = self.module_of(name)
        return "Conv1D" in _classes(module) or self.has_experts(name) and getattr(module, "is_transposed", False)

    def parts_of(self, name, m, n):
        """Returns the row blocks of a matrix, or None for a joined QKV that is interleaved or unknown."""
        words = name.split(".")
        if self.has_experts(name):
            joined = words[-1] == "gate_up_proj" and getattr(self.module_of(name), "is_concatenated", True)
            return 2 if joined and m % 2 == 0 else 1
        at = next((i for i, word in enumerate(words) if word in JOINED), None)
        if at is None:
            return 1
        attention = self.module_of(".".join(words[:at + 1]))
        kinds, known = _classes(attention), JOINED[words[at]]
        if known is None and not kinds & INTERLEAVED:
            if m not in (2 * n, 3 * n):
                raise ValueError(f"{name}: {m} x {n} does not consist of 2 or 3 matrices of {n} x {n}; give it to "
                                 "AdamW (adamw=...)")
            return m // n
        if not kinds & (known or set()):
            return None
        kv = attention.num_key_value_heads * attention.head_dim if hasattr(attention, "num_key_value_heads") else m // 3
        return 3 if m == 3 * kv else (m - 2 * kv, kv, kv)

    def head_size(self, name):
        """Returns the rows of an attention head in this matrix of Q, K or V."""
        words = name.split(".")
        at = next(i for i, word in enumerate(words) if word in QKV or word in JOINED)
        for end in range(at, max(at - 2, -1), -1):  # torchtitan's attention has its Linears in a module of their own
            attention = _unwrapped(self.modules[".".join(words[:end])])
            for names in HEAD_SIZES.get(words[at], []) + ANY_HEAD_SIZE:
                if all(isinstance(getattr(attention, one, None), int) for one in names):
                    return sum(getattr(attention, one) for one in names)
        kind = type(self.module_of(".".join(words[:at + 1]))).__name__
        raise ValueError(f"ortho_per_head: {kind} of {name} has no head_dim; set head_size of the group to the rows of "
                         "a head")

    def kind_of(self, name, role, ortho_per_head):
        p, transposed = self.parameters[name], self.is_transposed(name)
        m, n = reversed(p.shape[-2:]) if transposed else p.shape[-2:]
        parts = self.parts_of(name, m, n)
        per_head = ortho_per_head and (has(name, QKV) or parts not in (1, None)) and not has(name, ["experts"])
        return Kind(role, p.shape, transposed, parts, self.has_experts(name) or ".experts.*." in f".{role}",
                    self.head_size(name) if per_head else None)


def _role_of(name, experts):
    """Returns the name with * for the layer's number. Experts that are modules of their own (experts.0.up_proj) are
    matrices of one role, which has one group per layer if experts are stacked."""
    role = re.sub(r"(^|\.)experts\.\d+\.", r"\1experts.*.", name, count=1)
    if experts == "stack" and role != name:
        return role
    return re.sub(r"(^|\.)\d+\.", r"\1*.", role, count=1)


def stacks_of(model, stacked=None, k=2, adamw=(), experts="each", ortho_per_head=False):
    """Divides the parameters of an nn.Module: (groups for Teon, groups for AdamW).

    Teon gets the matrices of numbered layers, such as layers.3.up_proj.weight, except embeddings, LoRA's factors,
    routers and the last matrix of an nn.Sequential, its head. Matrices of one shape whose names differ only in the
    layer's number are one role and one group; "role" is the name with * for the number. AdamW gets two groups: all
    other parameters with two or more dimensions, and vectors (norms and biases) with weight_decay 0. fully_shard,
    parallelize_module, DistributedDataParallel and DataParallel may have been applied to the model, and torch.compile
    and activation checkpointing to it or its layers.

    stacked: the roles that are stacked k by k, by a part of their names ("q_proj", not "proj"); Muon updates the
    others. Default: Q, K and V if the model has them; otherwise it warns. Joined matrices are split into their parts if
    these are known to be row blocks. Matrices of a Conv1D are transposed.
    adamw: further matrices for AdamW, by a part of their names.
    experts: tensors (experts, m, n) below a module "experts", and experts that are modules of their own. "each": each
    expert's matrices are Muon's; "stack": each k experts of a layer are a stack. Joined gates and ups are split.
    ortho_per_head: the rows of each head of Q, K and V are orthogonalized separately; the size comes from the model.
    Raises ValueError for a name that matches nothing, for FSDP1, and for a model without matrices for Teon."""
    model = _unwrapped(model)
    if any("FullyShardedDataParallel" in _classes(module) for module in model.modules()):
        raise ValueError("FullyShardedDataParallel flattens and shards matrices, and Teon needs their shapes; use "
                         "fully_shard (FSDP2) or DistributedDataParallel")
    if experts not in ("each", "stack"):
        raise ValueError(f"experts is {experts!r}; expected each or stack")
    model = _Model(model)
    kinds, decayed, vectors = {}, {}, []
    for name, p in model.parameters.items():
        role = _role_of(name, experts)
        if p.ndim < 2 or name.endswith("bias"):  # biases of experts are matrices (experts, m)
            vectors.append(p)
        # LoRA's factors too: the weight moves by their product, which is not orthogonal even if each update is.
        elif (p.ndim > 2 and not model.has_experts(name) or role == name or id(p) in model.outer or has(name, adamw)
              or model.is_router(name) or re.search(r"(^|\.)lora_", name)):
            decayed[name] = p
        else:
            kinds.setdefault(model.kind_of(name, role, ortho_per_head), []).append(p)
    _check_words(kinds, decayed, stacked, adamw)
    hidden = [{"params": params, "role": kind.role, "parts": kind.parts or 1, "transposed": kind.transposed,
               **_stacking(kind, stacked, k, experts)} for kind, params in kinds.items()]
    if stacked is None and k > 1 and not any(group["k"] > 1 for group in hidden):
        _warn_that_nothing_is_stacked(kinds)
    return hidden, [{"params": list(decayed.values())}, {"params": vectors, "weight_decay": 0.0}]


def _stacking(kind, stacked, k, experts):
    """Returns the options of a group that say what is orthogonalized together."""
    options = {} if kind.head_size is None else {"head_size": kind.head_size}
    if kind.experts:
        options |= {"experts": experts} if len(kind.shape) == 3 else {}
        return options | {"k": k if experts == "stack" else 1}
    joined_qkv = has(kind.role, JOINED) and kind.parts is not None
    chosen = has(kind.role, QKV) or joined_qkv if stacked is None else has(kind.role, stacked)
    return options | {"k": k if chosen else 1}


def _check_words(kinds, decayed, stacked, adamw):
    matrices = {"stacked": [kind.role for kind in kinds], "adamw": list(decayed)}
    for option, words in (("stacked", stacked or ()), ("adamw", adamw)):
        for word in words:
            if not any(has(name, [word]) for name in matrices[option]):
                raise ValueError(f"{option}: {word!r} matches no matrix; the matrices are "
                                 f"{', '.join(matrices['stacked'])}")
    if not kinds:
        raise ValueError("the model has no matrices in numbered layers (such as layers.0.up_proj.weight); give Teon "
                         "its groups yourself")


def _warn_that_nothing_is_stacked(kinds):
    uncut = [kind.role for kind in kinds if kind.parts is None]
    words = sorted({word for role in uncut for word in role.split(".") if word in JOINED})
    warnings.warn(f"nothing is stacked, so Teon is Muon: found no separate Q, K and V in "
                  f"{', '.join(uncut or dict.fromkeys(kind.role for kind in kinds))}; stack whole matrices with "
                  f"stacked={words or '[...]'}, or choose Muon with k=1", stacklevel=3)
