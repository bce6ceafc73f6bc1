"""Teon in torchtitan's own trainer, on its debug model (pip install torchtitan; its trainer expects GPUs):

    PYTHONPATH=scripts/teon_torch_examples torchrun --nproc-per-node 2 -m torchtitan.train \\
        --module torchtitan_llama --config teon_debugmodel

--module names this file, whose functions are configurations. The lr_scheduler and checkpoints are torchtitan's.
"""
import dataclasses

import torch
from teon_torch import Teon, stacks_of
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.models.llama3 import config_registry


class TeonContainer(OptimizersContainer):
    """Teon for the hidden matrices of each part of the model, AdamW for the rest."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        lr: float = 5e-3
        adamw_lr: float = 6e-4

    def __init__(self, config, *, model_parts):
        self.model_parts, self.optimizers, params = model_parts, [], []
        for model in model_parts:
            names = {p: name for name, p in model.named_parameters()}
            hidden, others = stacks_of(model, stacked=["wqkv"])  # interleaved by head, so it is stacked whole
            for group in hidden + others:  # checkpoints are by name
                group["param_names"] = [names[p] for p in group["params"]]
                params += group["params"]
            self.optimizers += [Teon(hidden, lr=config.lr), torch.optim.AdamW(others, lr=config.adamw_lr)]
        self._post_init(params)


def teon_debugmodel():
    config = config_registry.llama3_debugmodel()
    config.optimizer = TeonContainer.Config()
    return config
