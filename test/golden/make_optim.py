#!/usr/bin/env python3
"""Golden optimizer steps from PyTorch:  python3 test/golden/make_optim.py

Writes test/golden/optim.safetensors. For every case: the matrices' initial weights, ten gradients of each, and the
weights after ten steps.
  torch.*   torch.optim.Muon (Newton-Schulz in bfloat16, Jordan's coefficients). Its `spectral_unclamped` learning rate
            is sqrt(m / n) here. Its momentum is an average, here it is a sum; the normalization removes the difference
  teon.*    the update of arXiv 2601.23261, algorithm 1, written out below in float64
Needs dev/requirements-dev.txt. The fixture is committed, so running the tests does not need it.
"""

import math
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
STEPS, LR, DECAY, MOMENTUM = 10, 0.05, 0.1, 0.95
SHAPES = {"q": (16, 16), "up": (28, 16), "down": (16, 28)}
LAYERS = 3

POLAR_EXPRESS = [(8.28721201814563, -23.595886519098837, 17.300387312530933),
                 (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                 (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
                 (3.3184196573706015, -2.488488024314874, 0.51004894012372),
                 (2.300652019954817, -1.6689039845747493, 0.4188073119525673)]
YOU = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
       (2.8366, -3.0525, 1.2012)]
SETS = {"polar-express": POLAR_EXPRESS, "you": YOU, "jordan": [(3.4445, -4.7750, 2.0315)] * 5}


def orthogonalize(z, name):
    if name == "svd":
        u, _, vt = torch.linalg.svd(z, full_matrices=False)
        return u @ vt
    safety = 1.01 if name == "polar-express" else 1.0
    x = z / (z.norm() * safety + 1e-7)
    for a, b, c in SETS[name]:
        a, b, c = a / safety, b / safety**3, c / safety**5
        r = x @ x.T
        x = a * x + (b * r + c * r @ r) @ x
    return x


def unfold(tensor, mode):  # tensor (m, n, K)
    return torch.movedim(tensor, mode - 1, 0).flatten(1)


def fold(z, mode, shape):
    order = [shape[mode - 1]] + [s for i, s in enumerate(shape) if i != mode - 1]
    return torch.movedim(z.reshape(order), 0, mode - 1)


def teon_updates(momenta, mode, ortho, rms_match, normalize):
    m, n = momenta[0].shape
    K = len(momenta)
    if normalize:
        momenta = [x / (x.norm() + 1e-7) for x in momenta]
    tensor = torch.stack(momenta, dim=2)
    z = unfold(tensor, mode)
    o = fold(orthogonalize(z, ortho), mode, tensor.shape) * math.sqrt(m / n)
    if rms_match and K > 1:
        o = o * math.sqrt(min(m, n) / (min(z.shape) / K))
    return [o[:, :, k] for k in range(K)]


def teon(weights, gradients, K, mode=1, ortho="polar-express", nesterov=False, rms_match=False, normalize=False):
    weights = [w.double() for w in weights]
    momenta = [torch.zeros_like(w) for w in weights]
    for grads in gradients:
        grads = [g.double() for g in grads]
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, grads)]
        direction = [g + MOMENTUM * m for m, g in zip(momenta, grads)] if nesterov else momenta
        updates = []
        for first in range(0, len(weights), K):
            updates += teon_updates(direction[first:first + K], mode, ortho, rms_match, normalize)
        weights = [(1 - LR * DECAY) * w - LR * u for w, u in zip(weights, updates)]
    return [w.float() for w in weights]


def torch_muon(weights, gradients, nesterov):
    params = [torch.nn.Parameter(w.clone()) for w in weights]
    optimizer = torch.optim.Muon(params, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=nesterov,
                                 adjust_lr_fn="spectral_unclamped")
    for grads in gradients:
        for p, g in zip(params, grads):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params]


def main():
    generator = torch.Generator().manual_seed(11)
    out = {}
    for role, shape in SHAPES.items():
        weights = [torch.randn(shape, generator=generator) * 0.2 for _ in range(LAYERS)]
        # Gradients with a persistent direction, as in training; their sizes differ between layers.
        means = [torch.randn(shape, generator=generator) for _ in range(LAYERS)]
        gradients = [[(10.0 ** -l) * (means[l] + torch.randn(shape, generator=generator)) for l in range(LAYERS)]
                     for _ in range(STEPS)]
        cases = {"torch.plain": torch_muon(weights, gradients, False),
                 "torch.nesterov": torch_muon(weights, gradients, True),
                 "teon.muon": teon(weights, gradients, 1), "teon.muon-svd": teon(weights, gradients, 1, ortho="svd"),
                 "teon.nesterov": teon(weights, gradients, 2, nesterov=True),
                 "teon.you": teon(weights, gradients, 2, ortho="you"),
                 "teon.jordan": teon(weights, gradients, 2, ortho="jordan"),
                 "teon.rms": teon(weights, gradients, 2, rms_match=True),
                 "teon.normalize": teon(weights, gradients, 3, normalize=True)}
        for mode in (1, 2, 3):
            for K in (2, 3):
                cases[f"teon.mode{mode}.k{K}"] = teon(weights, gradients, K, mode)
        for l in range(LAYERS):
            out[f"{role}.{l}"] = weights[l]
            out[f"{role}.{l}.grads"] = torch.stack([g[l] for g in gradients])
            for name, result in cases.items():
                out[f"{name}.{role}.{l}"] = result[l]
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / "optim.safetensors")


if __name__ == "__main__":
    main()
