#!/usr/bin/env python3
"""A checkpoint of teon_torch as it was, one file, until 2026-11-25:

    git show 8b5fbf8^:scripts/teon_torch.py >/tmp/teon_torch.py
    python3 test/golden/make_teon_torch_state.py /tmp/teon_torch.py

Writes test/golden/teon_torch_single_file.pt: the model and the optimizer's state_dict() after the first five of the ten
steps of optim.safetensors' case teon.mode2.k2. Tests load it and take the other five. The fixture is committed, so
running the tests does not need this file.
"""
import importlib.util
import pathlib
import sys

import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
STEPS, LAYERS = 5, 3


def main():
    specification = importlib.util.spec_from_file_location("teon_torch_single_file", sys.argv[1])
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    golden = load_file(HERE / "optim.safetensors")
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({
        "q_proj": torch.nn.Linear(16, 16, bias=False), "up_proj": torch.nn.Linear(16, 28, bias=False)})
        for _ in range(LAYERS)])})
    matrices = {name: (f"{name.split('.')[2].split('_')[0]}.{name.split('.')[1]}", p)
                for name, p in model.named_parameters()}
    with torch.no_grad():
        for golden_name, p in matrices.values():
            p.copy_(golden[golden_name])
    hidden, _ = module.stacks_of(model, stacked=["q_proj", "up_proj"], k=2)
    optimizer = module.Teon(hidden, lr=0.05, weight_decay=0.1, mode=2)
    for step in range(STEPS):
        for golden_name, p in matrices.values():
            p.grad = golden[f"{golden_name}.grads"][step].clone()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, HERE / "teon_torch_single_file.pt")


if __name__ == "__main__":
    main()
