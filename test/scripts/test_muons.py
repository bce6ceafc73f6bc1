"""Teon.like() makes the steps of the packages whose names it takes: five steps from the same gradients beside each.
A package that is not installed is skipped by name:  test/torch_tests.sh muons

A version that differs from scripts/teon_torch/elsewhere.py fails here: then the table is to change.
"""
import functools
import math
import unittest

from testing import needs

try:
    import muons
    import teon_torch
    import torch
    from teon_torch.elsewhere import LIKE
except ImportError:
    torch = None

STEPS, LR, DECAY = 5, 0.05, 0.1
# Roles of a model with grouped-query attention, and three matrices of one shape.
SHAPES = {"square": [(24, 24)], "tall": [(40, 16)], "wide": [(16, 40)], "batch": [(12, 20)] * 3,
          "grouped-query": [(32, 32), (8, 32), (8, 32), (32, 32)]}


def movements(make, dtype=None, steps=STEPS, rows=1.0):
    """Returns the concatenated movement of each role's matrices. dtype: what 16 bits become. rows: the size of the last
    row's gradients against the first one's."""
    moved = {}
    for role, sizes in SHAPES.items():
        random = torch.Generator().manual_seed(7)
        start = [.2 * torch.randn(size, generator=random) for size in sizes]
        means = [torch.randn(size, generator=random) for size in sizes]
        params = [torch.nn.Parameter(w.clone()) for w in start]
        optimizer = make(params, LR, DECAY)
        for _ in range(steps):
            for p, mean in zip(params, means):
                p.grad = mean + torch.randn(p.shape, generator=random)
                p.grad *= torch.logspace(0, math.log10(rows), len(p)).unsqueeze(1)
            with muons.Iterating(dtype):
                optimizer.step()
        moved[role] = torch.cat([(p.detach() - w).flatten() for p, w in zip(params, start)]).double()
    return moved


def teon(name, **options):
    def make(params, lr, weight_decay):
        return teon_torch.Teon.like(name, params, lr=lr, weight_decay=weight_decay, **options)
    return make


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


@needs("torch")
class MuonsTest(unittest.TestCase):
    def compare(self, name, make, half=None, **options):
        """half: the package's 16-bit type; None: it iterates in float. options: Teon's, beside those of the name."""
        found, wanted = movements(teon(name, **options)), movements(make, torch.float32)
        for role in SHAPES:
            error = distance(found[role], wanted[role])
            # Float sums in other orders, 2^-24 each, which Newton-Schulz multiplies by up to 440 (docs/optimizers.md).
            self.assertLess(error, 1e-5, f"{name}, {LIKE[name].version}, {role}, in float")
        if half is None:
            return
        found, rounded = movements(teon(name, ns_dtype=half, **options)), movements(make)
        exact = movements(make, torch.float64)
        for role in SHAPES:
            own = distance(rounded[role], exact[role])
            self.assertLess(distance(found[role], rounded[role]), 2 * own, f"{name}, {role}, {half}; its own {own:.2g}")

    def test_torch(self):
        self.compare("torch", muons.from_torch, torch.bfloat16)
        self.compare("torch-rms", functools.partial(muons.from_torch, adjust_lr_fn="match_rms_adamw"), torch.bfloat16)

    @needs("muon")
    def test_keller(self):
        self.compare("keller", muons.keller, torch.bfloat16)

    @needs("llamafactory")
    def test_moonlight(self):
        self.compare("moonlight", muons.moonlight, torch.bfloat16)

    @needs("pytorch_optimizer")
    def test_pytorch_optimizer(self):
        self.compare("pytorch-optimizer", muons.pytorch_optimizer, torch.bfloat16)

    @needs("timm")
    def test_timm(self):
        self.compare("timm", muons.timm, torch.bfloat16)

    def needs_source(self, name):
        if not (muons.SOURCES / name).exists():
            self.skipTest(f"needs {name} in the folder TEON_MUON_SOURCES")

    def test_dion(self):
        self.needs_source("dion")
        self.compare("dion", muons.dion, torch.bfloat16)
        self.compare("dion-you", functools.partial(muons.dion, use_polar_express=False), torch.bfloat16)

    @needs("emerging_optimizers")
    def test_nvidia(self):
        self.compare("nvidia", muons.nvidia, torch.bfloat16)

    @needs("deepspeed")
    def test_deepspeed(self):
        self.compare("deepspeed", muons.deepspeed)

    @needs("optax")
    def test_optax(self):
        self.compare("optax", muons.optax)

    @needs("keras")
    def test_keras(self):
        self.compare("keras", muons.keras)

    @needs("heavyball")
    def test_heavyball(self):
        self.compare("heavyball", muons.heavyball, torch.bfloat16)

    @needs("gram_newton_schulz")
    def test_gram_newton_schulz(self):
        self.compare("gram-newton-schulz", muons.gram_newton_schulz, torch.float16)

    @needs("optimuon")
    def test_optimuon(self):
        self.compare("optimuon", muons.optimuon, torch.float16)

    def test_nanochat(self):
        self.needs_source("nanochat")
        self.compare("nanochat", muons.nanochat, momentum=.95, momentum_warmup=0)
        wanted, found = [movements(make, torch.float32, 10, .1) for make in (
            muons.nanochat, teon("nanochat", momentum=.95, momentum_warmup=0))]
        for role in SHAPES:  # rows of gradients of one size and a tenth
            self.assertLess(distance(found[role], wanted[role]), 1e-5, role)
