"""Several optimizers as one, for trainers that take one: ChainedOptimizer(Teon(hidden), AdamW(others))."""
import collections

import torch


class States(collections.ChainMap):
    """The states of several optimizers. Each is a defaultdict, which would invent a state for another's parameter."""

    def __getitem__(self, p):
        for states in self.maps:
            if p in states:
                return states[p]
        return self.__missing__(p)


class ChainedOptimizer(torch.optim.Optimizer):
    """Steps optimizers one after the other. Its param_groups are theirs, so that a scheduler sets all rates; its state
    dict is that of one optimizer with all groups, as trainers and torch.distributed.checkpoint expect. Add groups to
    the optimizers before they are chained."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self._link()

    def _link(self):
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.state = States(*(optimizer.state for optimizer in self.optimizers))

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self):
        merged, first = {"state": {}, "param_groups": []}, 0
        for optimizer in self.optimizers:
            part = optimizer.state_dict()
            merged["state"] |= {first + i: value for i, value in part["state"].items()}
            merged["param_groups"] += [group | {"params": [first + i for i in group["params"]]}
                                       for group in part["param_groups"]]
            first += sum(len(group["params"]) for group in part["param_groups"])
        return merged

    def load_state_dict(self, state_dict):
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise ValueError(f"the saved state has {len(groups)} parameter groups, these optimizers "
                             f"{len(self.param_groups)}")
        for optimizer in self.optimizers:
            part = groups[:len(optimizer.param_groups)]
            del groups[:len(part)]
            names = {i for group in part for i in group["params"]}
            optimizer.load_state_dict({"state": {i: value for i, value in state_dict["state"].items() if i in names},
                                       "param_groups": part})
        self._link()
