"""Muon and Teon as one torch.optim.Optimizer: this engine's update, for people who train in PyTorch.

    from teon_torch import Teon, stacks_of
    hidden, rest = stacks_of(model.named_parameters(), stacked=("q_proj", "k_proj", "v_proj"), k=2)
    optimizers = [Teon(hidden, lr=5e-3), torch.optim.AdamW(rest, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)]

Needs nothing but torch. test/test_teon_torch.py holds it against the steps that the engine is tested with, and against
torch.optim.Muon. The update of a stack of K same-shaped matrices W_k (m x n), arXiv 2601.23261, algorithm 1:

    M_k <- mu M_k + G_k                                       momentum, as a sum, in float
    Z   <- unfold_i(M_1 .. M_K)                               mode 1: [M_1 M_2 ..]; 2: [M_1^T M_2^T ..]; 3: rows
    vec(M_k) O_k <- fold(Ortho(Z))
    W_k <- (1 - lr wd) W_k - lr sqrt(m / n) O_k
"""
import math
import re

import torch

# Coefficients (a, b, c) of the steps X <- a X + (b R + c R^2) X with R = X X^T; the last triple is repeated. The
# sources stand beside each set in optim/ns_coefficients.h.
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
MARGIN = {"polar-express": 1.01}  # such a set expects a norm of at most 1 / margin


def orthogonalize(z, method="polar-express", steps=5, dtype=None):
    """U V^T of a matrix (or of the last two dimensions of a batch): exactly ("svd"), or nearly by Newton-Schulz in
    dtype (default: bfloat16 on a GPU, else z's own)."""
    if method == "svd":
        u, s, vt = torch.linalg.svd(z, full_matrices=False)
        cutoff = torch.finfo(z.dtype).eps * math.sqrt(s.shape[-1]) * s[..., :1]
        return (u * (s > cutoff).unsqueeze(-2).to(z.dtype)) @ vt
    triples = NEWTON_SCHULZ[method]
    x = z / (z.norm(dim=(-2, -1), keepdim=True) * MARGIN.get(method, 1.0) + 1e-7)
    x = x.to(dtype or (torch.bfloat16 if z.is_cuda else z.dtype))
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for step in range(steps):
        a, b, c = triples[min(step, len(triples) - 1)]
        r = x @ x.mT
        x = a * x + (b * r + c * r @ r) @ x
    return (x.mT if tall else x).to(z.dtype)


def unfold(slices, mode):
    """K matrices (m x n) as one: m x nK (mode 1), n x mK (mode 2) or K x mn (mode 3)."""
    if mode == 1:
        return torch.cat(slices, dim=1)
    if mode == 2:
        return torch.cat([x.mT for x in slices], dim=1)
    return torch.stack([x.flatten() for x in slices])


def fold(z, mode, shape, K):
    """The slices that unfold() joined."""
    if mode == 1:
        return z.chunk(K, dim=1)
    if mode == 2:
        return [x.mT for x in z.chunk(K, dim=1)]
    return [row.view(shape) for row in z]


class Teon(torch.optim.Optimizer):
    """params: matrices, or groups (dicts) whose "params" are one role's matrices in the order of the layers;
    consecutive k of them are a stack (a shorter one may remain). k = 1 is Muon. A matrix whose gradient is None ends
    the step with an error: its stack would be another one.

    parts: each matrix holds so many roles below each other (3: a joined QKV), which are stacked separately.
    transposed: matrices are stored input x output (transformers' Conv1D), so that m and n change places.
    rms_match: scales O_k so that the mean slice has the size that Muon's update has (docs/teon.md).
    normalize_slices: each M_k is divided by its norm before it is stacked.
    update_rms: instead of sqrt(m / n), the factor update_rms sqrt(max(m, n)) (Moonlight, arXiv 2502.16982: 0.2)."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=False, k=1, mode=1,
                 ortho="polar-express", ns_steps=5, ns_dtype=None, rms_match=False, normalize_slices=False, parts=1,
                 transposed=False, update_rms=None):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, k=k,
                                      mode=mode, ortho=ortho, ns_steps=ns_steps, ns_dtype=ns_dtype,
                                      rms_match=rms_match, normalize_slices=normalize_slices, parts=parts,
                                      transposed=transposed, update_rms=update_rms))
        for group in self.param_groups:
            self._check(group)

    @staticmethod
    def _check(group):
        if group["ortho"] != "svd" and group["ortho"] not in NEWTON_SCHULZ:
            raise ValueError(f"ortho {group['ortho']!r}: one of svd, {', '.join(NEWTON_SCHULZ)}")
        if group["mode"] not in (1, 2, 3) or group["k"] < 1 or group["ns_steps"] < 1:
            raise ValueError(f"mode {group['mode']}, k {group['k']}, ns_steps {group['ns_steps']}: "
                             "mode is 1, 2 or 3, the others at least 1")
        shapes = {tuple(p.shape) for p in group["params"]}
        if any(len(shape) != 2 for shape in shapes) or (group["k"] > 1 and len(shapes) > 1):
            raise ValueError(f"a group's parameters are matrices, of one shape where they are stacked; found "
                             f"{sorted(shapes)}")
        if any(shape[1 if group["transposed"] else 0] % group["parts"] for shape in shapes):
            raise ValueError(f"matrices of {sorted(shapes)} cannot be cut into {group['parts']} parts")

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            directions = [self._direction(p, group) for p in group["params"]]
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            for first in range(0, len(directions), group["k"]):
                stack = slice(first, first + group["k"])
                self._update(group["params"][stack], directions[stack], group)
        return loss

    def _direction(self, p, group):
        if p.grad is None:
            raise RuntimeError(f"a matrix of shape {tuple(p.shape)} has no gradient; leave it out of the optimizer")
        m = self.state[p].setdefault("momentum", torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)))
        m.mul_(group["momentum"]).add_(p.grad)
        return m * group["momentum"] + p.grad if group["nesterov"] else m

    @staticmethod
    def _update(params, directions, group):
        def roles(x):  # views, m x n each
            return (x.mT if group["transposed"] else x).chunk(group["parts"])

        for weights, slices in zip(zip(*map(roles, params)), zip(*map(roles, directions))):
            (m, n), K = slices[0].shape, len(slices)
            if group["normalize_slices"]:
                slices = [x / (x.norm() + 1e-7) for x in slices]
            z = unfold(slices, group["mode"])
            factor = group["update_rms"] * math.sqrt(max(m, n)) if group["update_rms"] else math.sqrt(m / n)
            if group["rms_match"]:
                factor *= math.sqrt(min(m, n) / (min(z.shape) / K))
            o = orthogonalize(z, group["ortho"], group["ns_steps"], group["ns_dtype"])
            for w, update in zip(weights, fold(o, group["mode"], (m, n), K)):
                w.add_(update, alpha=-group["lr"] * factor)


def stacks_of(named_parameters, stacked=("q_proj", "k_proj", "v_proj"), k=2,
              embeddings=("embed", "wte", "wpe", "lm_head")):
    """(groups for Teon, the other parameters for AdamW). Parameters whose names differ in the layer's number only are
    one role; those with a word of `stacked` in their name are stacked k by k, the other matrices of layers are
    Muon's."""
    roles, rest = {}, []
    for name, p in named_parameters:
        if p.ndim == 2 and re.search(r"\.\d+\.", name) and not any(word in name for word in embeddings):
            roles.setdefault(re.sub(r"\.\d+\.", ".*.", name, count=1), []).append(p)
        else:
            rest.append(p)
    return [{"params": params, "k": k if any(word in role for word in stacked) else 1}
            for role, params in roles.items()], rest
