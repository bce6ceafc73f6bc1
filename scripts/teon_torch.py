"""Muon and Teon as one torch.optim.Optimizer: the engine's update for PyTorch.

    from teon_torch import Teon, stacks_of
    hidden, others = stacks_of(model)
    optimizers = [Teon(hidden, lr=5e-3), torch.optim.AdamW(others, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)]

Needs only torch. The update of a stack of K matrices W_k (m x n, outputs x inputs), arXiv 2601.23261,
algorithm 1:

    M_k <- mu M_k + G_k                                momentum, as a sum, in float
    Z   <- unfold_i(M_1 .. M_K)                        mode 1: [M_1 M_2 ..]; 2: [M_1^T M_2^T ..]; 3: rows vec(M_k)
    O_k <- fold(Ortho(Z))
    W_k <- (1 - lr wd) W_k - lr sqrt(m / n) O_k

test/scripts/test_teon_torch.py compares it with the expected steps of the engine's tests and with torch.optim.Muon.
"""
import math
import re
import warnings

import torch

# Coefficients (a, b, c) of the steps X <- a X + (b R + c R^2) X with R = X X^T; the last triple is repeated.
# optim/ns_coefficients.h has the source of each set.
NEWTON_SCHULZ = {
    "jordan": [(3.4445, -4.7750, 2.0315)],
    "you": [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012)],
    "you6": [(3955 / 1024, -8306 / 1024, 5008 / 1024), (3735 / 1024, -6681 / 1024, 3463 / 1024),
             (3799 / 1024, -6499 / 1024, 3211 / 1024), (4019 / 1024, -6385 / 1024, 2906 / 1024),
             (2677 / 1024, -3029 / 1024, 1162 / 1024), (2172 / 1024, -1833 / 1024, 682 / 1024)],
    "polar-express": [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673))] + [(1.875, -1.25, 0.375)],
}
MARGIN = {"polar-express": 1.01}  # the set expects a norm of at most 1 / margin
BATCH_BYTES = 256 << 20  # limit for the momentum in one batch; a single larger stack is a batch of its own

# (stacks, K, parts, m, n) permuted for an unfolding: its rows, then the two dimensions that form its columns.
UNFOLDED = {1: (0, 2, 3, 1, 4), 2: (0, 2, 4, 1, 3), 3: (0, 2, 1, 3, 4)}

# Names of matrices that contain Q, K and V, and the transformers classes in which Q, K and V are row blocks. None: all
# classes (GPT-2, torch.nn.MultiheadAttention) except INTERLEAVED. Other classes may interleave them by head (GPT-NeoX).
JOINED = {"c_attn": None, "in_proj_weight": None, "qkv_proj": {"Phi3Attention", "Phi4MultimodalAttention"},
          "Wqkv": {"DbrxAttention", "ModernBertAttention", "MptAttention"}, "query_key_value": set(), "qkv": set()}
INTERLEAVED = {"GPTBigCodeAttention"}
QKV = {"q_proj", "k_proj", "v_proj"}

# For each option, a description and a test of valid values.
RATE = ("a finite number, at least 0", lambda x: 0 <= x < math.inf)
COUNT = ("an integer, at least 1", lambda x: isinstance(x, int) and x >= 1)
PARTS = ("an integer, at least 1, or a tuple of them",
         lambda x: all(map(COUNT[1], x if isinstance(x, (tuple, list)) else [x])))
LEGAL = {"lr": RATE, "weight_decay": RATE, "momentum": ("at least 0 and less than 1", lambda x: 0 <= x < 1),
         "k": COUNT, "parts": PARTS, "ns_steps": COUNT, "mode": ("1, 2 or 3", lambda x: x in (1, 2, 3)),
         "ortho": (f"svd, {', '.join(NEWTON_SCHULZ)}", lambda x: x == "svd" or x in NEWTON_SCHULZ),
         "ns_dtype": ("None or a floating-point type", lambda x: x is None or getattr(x, "is_floating_point", False)),
         "update_rms": ("None or a positive number", lambda x: x is None or 0 < x < math.inf)}


def orthogonalize(z, method="polar-express", steps=5, dtype=None):
    """Returns U V^T of a matrix (or of the last two dimensions of a batch): exactly ("svd"), or approximately by
    Newton-Schulz in dtype (default: bfloat16 on a GPU, otherwise z's own)."""
    if method == "svd":
        u, s, vt = torch.linalg.svd(z, full_matrices=False)
        cutoff = torch.finfo(z.dtype).eps * math.sqrt(s.shape[-1]) * s[..., :1]
        return (u * (s > cutoff).unsqueeze(-2).to(z.dtype)) @ vt
    triples = NEWTON_SCHULZ[method]
    x = z / (z.norm(dim=(-2, -1), keepdim=True) * MARGIN.get(method, 1.0) + 1e-7)
    x = x.to(dtype or (torch.bfloat16 if z.is_cuda else z.dtype)).reshape(-1, *z.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for step in range(steps):
        a, b, c = triples[min(step, len(triples) - 1)]
        r = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(r, r, r, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(z.dtype).view(z.shape)


class Teon(torch.optim.Optimizer):
    """params: matrices, or groups (dicts) whose "params" are one role's matrices in layer order, as made by
    stacks_of(). Each k consecutive ones are a stack; the last may be shorter. k = 1 is Muon. A matrix without a
    gradient is skipped, and the others of its stack are orthogonalized without it.

    parts: the number of roles in each matrix, as row blocks (3: a joined QKV), which are stacked separately. If the
    blocks differ in size (grouped-query attention), a tuple of their rows.
    transposed: matrices are stored input x output (transformers' Conv1D), so m and n are exchanged.
    rms_match: scale O_k so that the mean slice has the size of Muon's update (docs/teon.md).
    normalize_slices: divide each M_k by its norm before stacking.
    update_rms: replaces sqrt(m / n) by update_rms sqrt(max(m, n)) (Moonlight, arXiv 2502.16982: 0.2).
    capturable: step() can be captured as a CUDA graph after one uncaptured step; lr is then a tensor on the GPU, or
    fixed.

    All matrices of one shape in a group are updated together; the number of launches does not depend on their number.
    Raises ValueError for invalid options and matrices, and leaves the optimizer unchanged."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=False, k=1, mode=1,
                 ortho="polar-express", ns_steps=5, ns_dtype=None, rms_match=False, normalize_slices=False, parts=1,
                 transposed=False, update_rms=None, maximize=False, capturable=False):
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, k=k, mode=mode,
                        ortho=ortho, ns_steps=ns_steps, ns_dtype=ns_dtype, rms_match=rms_match,
                        normalize_slices=normalize_slices, parts=parts, transposed=transposed, update_rms=update_rms,
                        maximize=maximize, capturable=capturable)
        self._check(defaults | {"params": []})
        super().__init__(params, defaults)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except Exception:
            del self.param_groups[-1]
            raise

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:  # an earlier version may have fewer options
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def load_state_dict(self, state_dict):
        given = {}
        handle = self.register_load_state_dict_pre_hook(lambda _, final: given.update(final))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        # Optimizer casts all state to the parameter's type, but the momentum of a bfloat16 matrix must stay float.
        loaded = [i for group in given["param_groups"] for i in group["params"]]
        for i, p in zip(loaded, (p for group in self.param_groups for p in group["params"])):
            if "momentum" in given["state"].get(i, {}):
                self.state[p]["momentum"] = given["state"][i]["momentum"].to(p.device, _momentum_type(p))

    @staticmethod
    def _check(group):
        where = group.get("role", "a group of matrices")
        if torch.is_tensor(group["lr"]) and group["lr"].numel() != 1:
            raise ValueError(f"{where}: Tensor lr must be 1-element; it has {group['lr'].numel()}")
        for name, (legal, test) in LEGAL.items():
            if not test(group[name]):
                raise ValueError(f"{where}: {name} is {group[name]!r}; expected {legal}")
        if group["capturable"] and group["ortho"] == "svd":
            raise ValueError(f"{where}: svd waits for the GPU, so it cannot be captured; choose another ortho")
        parts = group["parts"]
        for p in group["params"]:
            if type(p).__name__ == "DTensor":
                raise ValueError(f"{where}: a DTensor of shape {tuple(p.shape)} is refused, because Teon needs whole "
                                 "matrices; replace FSDP by DistributedDataParallel, or give it to AdamW")
            if p.ndim != 2 or not p.numel() or not p.is_floating_point():
                raise ValueError(f"{where}: a tensor of shape {tuple(p.shape)} and {p.dtype} is not a matrix of "
                                 "floats; give it to AdamW")
            outputs = p.shape[1 if group["transposed"] else 0]
            if outputs % parts if isinstance(parts, int) else outputs != sum(parts):
                raise ValueError(f"{where}: {outputs} outputs cannot be cut into {parts} parts")
        kinds = {(tuple(p.shape), p.dtype, str(p.device)) for p in group["params"]}
        if group["k"] > 1 and len(kinds) > 1:
            raise ValueError(f"{where}: stacked matrices have one shape, type and device; found "
                             f"{', '.join(sorted(map(str, kinds)))}")

    @torch.no_grad()
    def step(self, closure=None):
        """Performs one update and returns the result of closure. Raises RuntimeError, before any change, for sparse
        gradients and for a capture that was not prepared."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.layout != torch.strided for p in moving):
                raise RuntimeError("Teon does not support sparse gradients")
            if capturing and not (group["capturable"] and all("momentum" in self.state[p] for p in moving)):
                raise RuntimeError("to capture step(), construct Teon with capturable=True and take one step before")
        for group in self.param_groups:
            for stacks in self._batches(group):
                self._update(stacks, group)
        return loss

    @staticmethod
    def _batches(group):
        """Yields a group's stacks (lists of matrices with gradients) in batches (lists) that are updated together."""
        alike = {}
        for first in range(0, len(group["params"]), group["k"]):
            stack = [p for p in group["params"][first:first + group["k"]] if p.grad is not None]
            if stack:
                alike.setdefault((len(stack), stack[0].shape, stack[0].dtype, stack[0].device), []).append(stack)
        for (K, shape, *_), stacks in alike.items():
            most = max(1, BATCH_BYTES // (4 * K * shape.numel()))
            yield from (stacks[first:first + most] for first in range(0, len(stacks), most))

    def _update(self, stacks, group):
        """Updates a batch: stacks of one size, of matrices of one shape. The first dimension of all tensors is the
        stack."""
        params = [p for stack in stacks for p in stack]
        dtype, K = _momentum_type(params[0]), len(stacks[0])
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p, dtype=dtype)
        momenta = [self.state[p]["momentum"] for p in params]

        grads = torch.stack([p.grad for p in params]).to(dtype)
        grads = -grads if group["maximize"] else grads
        momentum = torch.stack(momenta).mul_(group["momentum"]).add_(grads)
        torch._foreach_copy_(momenta, momentum.unbind())
        direction = grads.add_(momentum, alpha=group["momentum"]) if group["nesterov"] else momentum

        # Keep a tensor on its device: reading it would wait for the device, and a captured step would fix its value.
        lr = group["lr"].to(momentum.device).squeeze() if torch.is_tensor(group["lr"]) else group["lr"]
        x = direction.mT if group["transposed"] else direction
        count, rows = (group["parts"], x.shape[1]) if isinstance(group["parts"], int) else (1, group["parts"])
        updates = [self._orthogonalized(block.unflatten(0, (len(stacks), K)).unflatten(2, (count, -1)), group, lr)
                   for block in x.split(rows, 1)]
        weights = torch.stack(params).to(dtype).mul_(1 - lr * group["weight_decay"])
        for w, update in zip((weights.mT if group["transposed"] else weights).split(rows, 1), updates):
            w.sub_(update)
        torch._foreach_copy_(params, weights.to(params[0].dtype).unbind())

    @staticmethod
    def _orthogonalized(x, group, lr):
        """Returns lr sqrt(m / n) O_k of M_k as (stacks * K, parts * m, n), for x (stacks, K, parts, m, n)."""
        K, (m, n) = x.shape[1], x.shape[-2:]
        if group["normalize_slices"]:
            x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        # With k = 1 every mode is Muon. A last stack of one keeps its role's mode, as in the engine, so that in mode 3
        # its update has the same size as those of the other stacks.
        order = UNFOLDED[group["mode"] if group["k"] > 1 else 1]
        x = x.permute(order)
        z = x.flatten(-2)
        factor = group["update_rms"] * math.sqrt(max(m, n)) if group["update_rms"] else math.sqrt(m / n)
        if group["rms_match"]:
            factor *= math.sqrt(min(m, n) / (min(z.shape[-2:]) / K))
        o = orthogonalize(z, group["ortho"], group["ns_steps"], group["ns_dtype"])
        o = o.unflatten(-1, x.shape[-2:]).permute([order.index(i) for i in range(5)]).flatten(2, 3).flatten(0, 1)
        return o * (lr * factor)


def _momentum_type(p):
    return torch.promote_types(p.dtype, torch.float32)


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
