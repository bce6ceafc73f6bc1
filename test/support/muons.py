"""The Muons of other packages, each as a function that makes an optimizer of matrices with its defaults but the rates.
scripts/teon_torch/elsewhere.py has the versions."""
import contextlib
import os
import pathlib
import sys

import torch
from torch.overrides import TorchFunctionMode

os.environ["TORCHDYNAMO_DISABLE"] = "1"         # of dion, heavyball, nanochat: their steps are compiled only for speed
os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("NANOCHAT_DTYPE", "bfloat16")
HALVES = (torch.bfloat16, torch.float16)
SOURCES = pathlib.Path(os.environ.get("TEON_MUON_SOURCES", "none"))  # of what no package index has


class Iterating(TorchFunctionMode):
    """Inside, what a package converts to 16 bits becomes `dtype`, so that it iterates in that type. None: as it is."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.dtype is None:
            return func(*args, **kwargs)
        if func in (torch.Tensor.bfloat16, torch.Tensor.half):
            return args[0].to(self.dtype, copy=True)
        if func is torch.Tensor.to and any(x in HALVES for x in (*args[1:], *kwargs.values())
                                           if isinstance(x, torch.dtype)):
            return args[0].to(self.dtype, copy=True)
        return func(*args, **kwargs)


class Functional:
    """An optimizer of a package whose arrays are not torch's. step(weights, gradients) returns the new weights."""

    def __init__(self, params, step):
        self.params, self.of_package = params, step

    def step(self):
        new = self.of_package([p.detach().numpy() for p in self.params], [p.grad.numpy() for p in self.params])
        with torch.no_grad():
            for p, w in zip(self.params, new):
                p.copy_(torch.from_numpy(w.copy()))


def from_torch(params, lr, weight_decay, **options):
    return torch.optim.Muon(params, lr=lr, weight_decay=weight_decay, **options)


def keller(params, lr, weight_decay):
    import muon
    return muon.SingleDeviceMuon(params, lr=lr, weight_decay=weight_decay)


def moonlight(params, lr, weight_decay):
    from llamafactory.third_party.muon import Muon
    return Muon(muon_params=params, lr=lr, wd=weight_decay)


def pytorch_optimizer(params, lr, weight_decay):
    from pytorch_optimizer import Muon
    return Muon([{"params": params, "use_muon": True}], lr=lr, weight_decay=weight_decay)


def timm(params, lr, weight_decay):
    from timm.optim.muon import Muon
    return Muon(params, lr=lr, weight_decay=weight_decay)


def dion(params, lr, weight_decay, **options):
    sys.path.insert(0, str(SOURCES / "dion"))
    from dion.muon import Muon
    return Muon(params, lr=lr, weight_decay=weight_decay, **options)


def nvidia(params, lr, weight_decay):
    import typing

    import typing_extensions
    typing.override = typing_extensions.override  # of Python 3.12
    from emerging_optimizers.orthogonalized_optimizers.muon import Muon
    return Muon(params, lr=lr, weight_decay=weight_decay)


def deepspeed(params, lr, weight_decay):
    from deepspeed.runtime.zero.muon.original_muon import SingleDeviceMuon
    return SingleDeviceMuon(params, lr=lr, weight_decay=weight_decay)


def heavyball(params, lr, weight_decay):
    """Rounds to nearest here, where it would round at random."""
    import heavyball
    heavyball.utils.stochastic_round_ = lambda x: x.bfloat16()
    return heavyball.Muon(params, lr=lr, weight_decay=weight_decay)


def gram_newton_schulz(params, lr, weight_decay):
    from gram_newton_schulz.muon import Muon
    with contextlib.redirect_stdout(None):
        return Muon(params, lr=lr, weight_decay=weight_decay, ns_use_kernels=False)


def optimuon(params, lr, weight_decay, **options):
    from optimuon import Muon
    return Muon(params, lr=lr, weight_decay=weight_decay, **options)


def optax(params, lr, weight_decay):
    """Its arrays are inputs x outputs."""
    import optax
    rule = optax.contrib.muon(lr, weight_decay=weight_decay)
    state = None

    def step(weights, grads):
        nonlocal state
        weights, grads = [[x.T for x in xs] for xs in (weights, grads)]
        state = state or rule.init(weights)
        updates, state = rule.update(grads, state, weights)
        return [torch.tensor(x.__array__()).numpy().T for x in optax.apply_updates(weights, updates)]

    return Functional(params, step)


def keras(params, lr, weight_decay):
    import keras
    rule = keras.optimizers.Muon(lr, weight_decay=weight_decay)
    variables = [keras.Variable(p.detach().T.numpy()) for p in params]  # inputs x outputs

    def step(_, grads):
        rule.apply([keras.ops.convert_to_tensor(g.T) for g in grads], variables)
        return [v.numpy().T for v in variables]

    return Functional(params, step)


def nanochat(params, lr, weight_decay):
    sys.path.insert(0, str(SOURCES / "nanochat"))
    from nanochat.optim import MuonAdamW
    groups = {}
    for p in params:  # a group has one shape; its rate is lr max(1, m / n)^.5 inside
        groups.setdefault(p.shape, []).append(p)
    return MuonAdamW([{"params": ps, "kind": "muon", "lr": lr, "momentum": .95, "ns_steps": 5, "beta2": .9,
                       "weight_decay": weight_decay} for ps in groups.values()])

