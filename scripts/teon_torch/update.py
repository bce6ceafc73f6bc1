"""The update's formulas: its factors, and what is added to the matrices of a stack."""
import math

import torch

from teon_torch.buckets import rows_of_parts
from teon_torch.orthogonalization import EPSILON, STEPS, orthogonalize

NEURON_EPSILON = 1e-8    # the engine's
UPDATE_RMS = 0.2         # Moonlight's, of update_scale="rms"
# The factor of an m x n matrix's update, beside "rms".
SCALES = {"spectral": lambda m, n: math.sqrt(m / n), "original": lambda m, n: math.sqrt(max(1, m / n)),
          "none": lambda m, n: 1.0}
NESTEROV_FORMS = ("usual", "bias-corrected", "ema")

# (stacks, K, parts, m, n) permuted for an unfolding: its rows, then the two dimensions that form its columns.
UNFOLDED = {1: (0, 2, 3, 1, 4), 2: (0, 2, 4, 1, 3), 3: (0, 2, 1, 3, 4)}


def momentum_factors(group):
    """Returns the factors of this update: M <- keep M + add g, and Nesterov's g + ahead M."""
    mu, t = group["momentum"], group["updates"] + 1
    keep, add = mu, 1.0
    if t <= group["momentum_warmup"]:
        keep = group["momentum_start"] + (mu - group["momentum_start"]) * (t - 1) / group["momentum_warmup"]
        add = (1 - keep) / (1 - mu)
    if group["nesterov_form"] == "ema":
        return keep, add, 1 - mu
    corrected = (1 - keep**t) / (1 - keep**(t + 1)) if group["nesterov_form"] == "bias-corrected" else 1.0
    return keep, add, keep / add * corrected


def rms_of(group):
    """Returns the root mean square of updates that the group asks for, or None."""
    return group["update_rms"] or (UPDATE_RMS if group["update_scale"] == "rms" else None)


def factor_of(group, m, n):
    """Returns the factor of an m x n matrix's update."""
    rms = rms_of(group)
    return rms * math.sqrt(max(m, n)) if rms else SCALES[group["update_scale"]](m, n)


def decay_factor(group, shape):
    """Returns what multiplies the rate of weight decay, for a tensor as it is stored."""
    if group["decay_at"] == "base":
        return 1.0
    m, n = reversed(shape[-2:]) if group["transposed"] else shape[-2:]
    return factor_of(group, rows_of_parts(m, group["parts"])[0], n)


def update_of_stacks(momenta, neurons, K, group, lr):
    """Returns lr factor O_k of M_k, and NorMuon's new second moments. momenta: (stacks * K, m, n) as they are
    stored; neurons: (stacks * K, m, 1) likewise, or None."""
    if not len(momenta):
        return momenta, neurons
    x, v = momenta, neurons
    if group["transposed"]:
        x, v = momenta.mT, None if neurons is None else neurons.mT
    rows = rows_of_parts(x.shape[1], group["parts"])
    # Equal parts are one batch.
    blocks = [(rows[0], len(rows))] if len(set(rows)) == 1 else [(count, 1) for count in rows]
    updates, moments, first = [], [], 0
    for m, count in blocks:
        end = first + m * count
        part = x[:, first:end].unflatten(1, (count, m)).unflatten(0, (-1, K))
        o, second = update_of_part(part, None if v is None else v[:, first:end], group, lr)
        updates.append(o)
        moments.append(second)
        first = end
    update = torch.cat(updates, 1) if len(updates) > 1 else updates[0]
    second = None if v is None else torch.cat(moments, 1)
    return (update.mT, second if second is None else second.mT) if group["transposed"] else (update, second)


def update_of_part(x, v, group, lr):
    """As update_of_stacks(), for x (stacks, K, parts, m, n) and v (stacks * K, parts * m, 1), or (stacks * K, 1, n)."""
    K, (m, n) = x.shape[1], x.shape[-2:]
    heads = m // group["head_size"] if group["head_size"] else 1
    x = x.unflatten(3, (heads, -1)).flatten(2, 3)  # the same head of K slices is a stack
    if group["equalize_rows"]:
        norms = x.norm(dim=-1, keepdim=True)
        x = x * (norms.square().sum(-2, keepdim=True) / x.shape[-2]).sqrt() / norms.clamp(min=torch.finfo(x.dtype).tiny)
    if group["normalize_slices"]:
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + EPSILON)
    # With k = 1 every mode is Muon. A last stack of one keeps its role's mode, as in the engine, so that in mode 3
    # its update has the same size as those of the other stacks.
    order = UNFOLDED[group["mode"] if group["k"] > 1 else 1]
    x = x.permute(order)
    z = x.flatten(-2)
    o = orthogonalize(z, group["ortho"], group["ns_steps"] or STEPS, group["ns_dtype"], group["ns_form"])
    o = o.unflatten(-1, x.shape[-2:]).permute([order.index(i) for i in range(5)])
    factor, rms = factor_of(group, m, n), rms_of(group)
    if v is not None:
        per_slice = (o.shape[-2], 1) if v.shape[-1] == 1 else (1, n)
        o, v = normalize_neurons(o, v.view(*o.shape[:3], *per_slice), group)
        v = v.flatten(2, 3).flatten(0, 1)
        factor = rms or factor
    if v is None or not rms:  # else the root mean square is given
        # Slices of a semi-orthogonal unfolding have a mean square norm of its short side / K. The heads together get
        # the size of the whole matrix's update or, with rms_match, of Muon's.
        rows, columns = z.shape[-2:]
        whole = min(rows * heads, columns) if order == UNFOLDED[1] else min(rows, columns * heads)
        wanted = min(m, n) if group["rms_match"] else whole / K
        factor *= math.sqrt(wanted / (heads * min(rows, columns) / K))
    return o.mul_(lr * factor).flatten(2, 3).flatten(0, 1), v


def normalize_neurons(o, v, group):
    """NorMuon: divides each row by the root of the running mean v of its mean square, and restores the Frobenius norm
    of the slice; with update_rms, its root mean square becomes 1. o: (..., m, n), v: (..., m, 1); or v: (..., 1, n),
    and columns instead of rows."""
    m, n = o.shape[-2:]
    dim = -1 if v.shape[-1] == 1 else -2
    if group["renormalize"]:
        o = o * (math.sqrt(min(m, n)) / o.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(o.dtype).tiny))
    squares = o.square().sum(dim, keepdim=True)
    v = v * group["neuron_beta2"] + (1 - group["neuron_beta2"]) * (squares / o.shape[dim])
    scale = 1 / (v.sqrt() + NEURON_EPSILON)
    norm = m * n if rms_of(group) else squares.sum((-2, -1), keepdim=True)
    after = (squares * scale.square()).sum((-2, -1), keepdim=True)
    return o * scale * torch.where(after > 0, (norm / after).sqrt(), torch.zeros_like(after)), v
