#!/usr/bin/env python3
"""Draws what packages' Muons do with the same gradients, and measures the iterations that are called Polar Express.

    .venv/bin/python dev/draw_muons.py docs/muons.png

Needs torch and matplotlib. docs/optimizers.md, "Muon elsewhere", has the figure and the table that this prints.
"""
if __name__ == "__main__":
    from begin import startup

import sys

try:
    import torch
except ImportError:
    sys.exit("draw_muons.py: error: needs PyTorch: pip install torch")
from common.arguments import Parser
from experiments.figures import colors_of, draw_panels, prepare_axis, styles
from teon_torch import LIKE, Teon
from teon_torch.orthogonalization import MARGIN, NEWTON_SCHULZ, POLAR_EXPRESS, divided

LONG, STEPS = 128, 3
RATIOS = [2.0**i for i in range(-4, 5)]  # outputs / inputs
# Iterations that teon_torch has no name for: (triples, margin of the norm).
OTHERS = {"NVIDIA": ([[round(x, 4) for x in t] for t in divided(POLAR_EXPRESS, 1.01)], 1.0),
          "bantamtrain": (divided(POLAR_EXPRESS[:4], 1.01) + POLAR_EXPRESS[4:5], 1.01)}
NAMED = ["polar-express", "polar-express-nanochat", "polar-express-timm", "polar-express-dion", "polar-express-dao"]


def update(name, m, n):
    """Returns the last of STEPS updates of an m x n matrix, at rate 1, without decay, weights at 0."""
    random = torch.Generator().manual_seed(1)
    p = torch.nn.Parameter(torch.zeros(m, n, dtype=torch.double))
    optimizer = Teon([p], lr=1, weight_decay=0) if name == "teon.cu" else Teon.like(name, [p], lr=1, weight_decay=0)
    mean = torch.randn(m, n, generator=random, dtype=torch.double)
    for _ in range(STEPS):
        before = p.detach().clone()
        p.grad = mean + torch.randn(m, n, generator=random, dtype=torch.double)
        optimizer.step()
    return before - p.detach()


def shape(ratio):
    return (LONG, round(LONG / ratio)) if ratio > 1 else (round(LONG * ratio), LONG)


def draw_size(axis):
    """Names whose sizes are equal within 5% in every shape are one curve."""
    curves = {}
    for name in ["teon.cu", *LIKE]:
        sizes = [update(name, *shape(r)).square().mean().sqrt().item() for r in RATIOS]
        same = next((other for other, theirs in curves.items()
                     if all(abs(a / b - 1) < .05 for a, b in zip(sizes, theirs))), None)
        curves[f"{same}, {name}" if same else name] = curves.pop(same) if same else sizes
    how = styles(colors_of(curves, {"teon.cu": "#d62728"}))
    for name, sizes in curves.items():
        axis.loglog(RATIOS, sizes, label=name, **how[name])
    prepare_axis(axis, f"root mean square of an update at rate 1, longer side {LONG}", "outputs / inputs", "")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if x >= 1 else f"1/{1 / x:g}")
    axis.legend(fontsize=6)


def draw_direction(axis):
    names = ["teon.cu", *LIKE]
    for ratio, marker in ((1, "s"), (4, "^"), (.25, "v")):
        updates = {name: update(name, *shape(ratio)) for name in names}
        units = {name: u / u.norm() for name, u in updates.items()}
        axis.plot([(units[name] - units["torch"]).norm().item() for name in names], range(len(names)), marker, ms=5,
                  label={1: "square", 4: "4 : 1", .25: "1 : 4"}[ratio], alpha=.7)
    prepare_axis(axis, "direction: distance to torch's, of norm 1 each", "", "")
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter("{x:g}")
    axis.legend(fontsize=7)


def values_after(sigma, triples, margin, steps=5):
    """Returns singular values after an iteration, which changes nothing else."""
    sigma = sigma / (sigma.norm() * margin)
    for a, b, c in triples[:steps]:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return sigma


def print_distances():
    random = torch.Generator().manual_seed(3)
    n = 768
    inputs = [torch.linalg.svdvals(torch.randn(n, columns, generator=random, dtype=torch.double))
              for columns in (n, 2 * n)] + [1 / torch.arange(1, n + 1, dtype=torch.double)]
    sets = {name: (NEWTON_SCHULZ[name], MARGIN.get(name, 1.0)) for name in NAMED} | OTHERS
    wanted = [values_after(sigma, *sets["polar-express"]) for sigma in inputs]
    print(f"Distance from polar-express, distance from U V^T, mean singular value;\n"
          f"each for Gaussian {n} x {n}, {n} x {2 * n}, spectrum 1/i:")
    for name, of in sets.items():
        found = [values_after(sigma, *of) for sigma in inputs]
        columns = ([((a - b).norm() / b.norm()).item() for a, b in zip(found, wanted)],
                   [(a - 1).square().mean().sqrt().item() for a in found], [a.mean().item() for a in found])
        print(f"{name:24}" + "   ".join(" ".join(f"{x:.3f}" for x in three) for three in columns))


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("out", metavar="FILE", help="the figure, a PNG")
    out = parser.parse_args().out
    print_distances()
    draw_panels(lambda axis, draw: draw(axis), [draw_size, draw_direction],
                f"The same gradients, update {STEPS}: each package's defaults", out, size=(5.6, 4.6))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
