"""Muon and Teon as one torch.optim.Optimizer: the engine's update for PyTorch.

    from teon_torch import Teon, stacks_of
    hidden, others = stacks_of(model)
    optimizers = [Teon(hidden, lr=5e-3), torch.optim.AdamW(others, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)]

Needs only torch. docs/teon_torch.md explains it; the parts are

    groups             stacks_of(): which parameters of a model Teon updates, and in which stacks
    optimizer          Teon: options, state, the order of a step
    update             unfolding, sizes, NorMuon
    elsewhere          other packages' Muons, for Teon.like()
    orthogonalization  Newton-Schulz, its Gram form, SVD
    distribution       FSDP2, DTensor and DDP: owners of stacks, and what is sent
    chained            ChainedOptimizer: Teon and AdamW as one, for trainers that take one optimizer
"""
from teon_torch.chained import ChainedOptimizer
from teon_torch.elsewhere import LIKE
from teon_torch.groups import stacks_of
from teon_torch.optimizer import Teon
from teon_torch.orthogonalization import NEWTON_SCHULZ, orthogonalize

__all__ = ["ChainedOptimizer", "LIKE", "NEWTON_SCHULZ", "Teon", "orthogonalize", "stacks_of"]
