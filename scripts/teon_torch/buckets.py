"""The plan of a step: which matrices are updated together, in which stacks, by which rank."""
import dataclasses

import torch

from teon_torch import distribution
from teon_torch.distribution import DTensor, LocalRoute, NoRoute, Route, as_local, experts_first
from teon_torch.orthogonalization import STEPS, flops

# Limits for a rank's momentum in one batch; a single larger stack is a batch of its own. On a CPU the C library returns
# blocks of more than 32 MiB to the system, which then clears each page again.
BATCH_BYTES = 256 << 20
CPU_BATCH_BYTES = 32 << 20


def momentum_type(p):
    return torch.promote_types(p.dtype, torch.float32)


def rows_of_parts(outputs, parts):
    """Returns the rows of each part of a matrix. Their sum differs from outputs if it cannot be cut so."""
    return [outputs // parts] * parts if isinstance(parts, int) else list(parts)


def mean_dim(group, shape):
    """Returns the dimension of a tensor over which NorMuon's second moments are means: that of inputs, or with
    neuron_axis="long" that of outputs if they are fewer."""
    of_inputs, of_outputs = (-2, -1) if group["transposed"] else (-1, -2)
    return of_outputs if group["neuron_axis"] == "long" and shape[of_inputs] > shape[of_outputs] else of_inputs


def stacked(tensors):
    """Returns this rank's parts of tensors of one shape as slices (tensors * experts, rows, columns)."""
    return torch.stack([as_local(t) for t in tensors]).flatten(0, -3)


def store(tensors, slices):
    """Copies slices, as stacked() makes them, into this rank's parts of the tensors."""
    parts = [as_local(t) for t in tensors]
    torch._foreach_copy_(parts, slices.view(len(parts), *parts[0].shape).unbind())


@dataclasses.dataclass(frozen=True)
class Item:
    """What cannot be divided over buckets: the matrices of a stack, or a tensor of experts.

    stacks: lists of (position in params, expert). params are those that have a gradient.
    owners: of each stack, a rank of the sharding's group, or of the whole item if its state is there only."""
    group: dict
    params: tuple
    sharding: object
    stacks: tuple
    owners: tuple

    @property
    def kind(self):
        p = self.params[0]
        sizes = len(self.params) if p.ndim == 2 else 0
        return sizes, tuple(p.shape), p.dtype, p.device, self.sharding


@dataclasses.dataclass
class Run:
    """A bucket's stacks of K slices: the ways of their momenta to the rank that orthogonalizes them, of the updates
    back, and of NorMuon's second moments in both directions."""
    K: int
    momenta: object
    updates: object
    neurons: object


class Bucket:
    """Items of one group and kind, which are updated together.

    params: their tensors. kept: those whose state this rank has. on_owner: only owners have state."""

    def __init__(self, group, items, on_owner):
        self.group, self.params = group, [p for item in items for p in item.params]
        self.sharding, self.device = items[0].sharding, self.params[0].device
        self.on_owner = on_owner
        self.kept = self.params
        if self.on_owner:
            me = self.sharding.me
            self.kept = [p for item in items for p in item.params if item.owners[0] == me]
        first, by_size = 0, {}
        for item in items:
            for stack, owner in zip(item.stacks, item.owners):
                by_size.setdefault(len(stack), []).append(([(first + at, expert) for at, expert in stack], owner))
            first += len(item.params)
        self.runs = [self._run(K, *zip(*stacks)) for K, stacks in by_size.items()]

    def _run(self, K, stacks, owners):
        slices = [place for stack in stacks for place in stack]
        shape = tuple(self.params[0].shape)
        experts = experts_first(shape)[0]
        if self.sharding is None:
            route = LocalRoute([at * experts + e for at, e in slices], len(self.params) * experts, self.device)
            return Run(K, route, route, route if self.group["neuron_norm"] else NoRoute())
        updates = Route(self.sharding, shape, slices, owners, self.device)
        if self.on_owner:
            at_kept = {id(p): i for i, p in enumerate(self.kept)}
            order = [at_kept[id(self.params[at])] * experts + e for at, e in (slices[i] for i in updates.owned)]
            state = LocalRoute(order, len(self.kept) * experts, self.device)
            return Run(K, state, updates, state if self.group["neuron_norm"] else NoRoute())
        neurons = NoRoute()
        if self.group["neuron_norm"]:
            dim = mean_dim(self.group, shape)
            shape = (*shape[:dim], 1, *shape[len(shape) + dim + 1:])
            neurons = Route(distribution.reduced(self.sharding, dim), shape, slices, owners, self.device)
        return Run(K, updates, updates, neurons)

    def no_slices(self):
        """Returns the slices of a state of which this rank has nothing."""
        p = self.params[0]
        return torch.empty(0, *p.shape[-2:], dtype=momentum_type(p), device=self.device)


class Plan:
    """The buckets of a step, for the matrices that have a gradient.

    rows: for each process group, {a tensor, in words: its state}, which must be equal on all of its ranks.
    elsewhere: the tensors whose state other ranks have.
    refusal: why the step cannot be taken, or None."""

    def __init__(self, key, groups, process_group, on_owner):
        self.key, self.rows, self.buckets, self.refusal = key, {}, [], None
        self._process_group, self._on_owner, self._shardings = process_group, on_owner, {}
        stacks = [(group, params) for group in groups for params in self._undivided(group)]
        owners = self._owners(stacks)
        kinds, self.elsewhere = {}, []
        for (group, params), owner in zip(stacks, owners):
            if on_owner and owner[0] != self._sharding(group, params[0]).me:
                self.elsewhere += params
            moving = tuple(p for p in params if p.grad is not None)
            if moving:
                item = Item(group, moving, self._sharding(group, params[0]), stacks_of_item(group, moving), owner)
                kinds.setdefault((id(group), item.kind), []).append(item)
        for items in kinds.values():
            self._add_buckets(items)
        for i, group in enumerate(groups):
            self._describe(i, group)

    @property
    def exchanges(self):
        return bool(self.rows)

    @staticmethod
    def _undivided(group):
        """Yields the tensors of each item, with or without gradients, so that owners do not depend on them."""
        matrices = [p for p in group["params"] if p.ndim == 2]
        yield from (matrices[i:i + group["k"]] for i in range(0, len(matrices), group["k"]))
        yield from ([p] for p in group["params"] if p.ndim == 3)

    def _sharding(self, group, p):
        if not isinstance(p, DTensor) and self._process_group is None:
            return None
        key = (p.shape, p.device_mesh, p.placements) if isinstance(p, DTensor) else p.shape
        if key not in self._shardings:
            where = group.get("role", "a group of matrices")
            self._shardings[key] = distribution.sharding_of(p, where) if isinstance(p, DTensor) else (
                distribution.replicated_on(self._process_group, p.shape))
        return self._shardings[key]

    def _owners(self, stacks):
        """Returns the owners of each item's stacks, assigned over all items of a process group together."""
        owners = [()] * len(stacks)
        by_group = {}
        for i, (group, params) in enumerate(stacks):
            sharding = self._sharding(group, params[0])
            if sharding is None:
                owners[i] = (0,) * len(stacks_of_item(group, params))
            else:
                by_group.setdefault(sharding.group, []).append(i)
        for indices in by_group.values():
            jobs = [job for i in indices for job in self._jobs(i, *stacks[i])]
            totals = [sum(loads) for loads in zip(*(loads for _, loads, _, _ in jobs))]
            chosen = distribution.assign_owners([([load / total for load, total in zip(loads, totals)], ranks)
                                                 for _, loads, ranks, _ in jobs])
            for (i, _, _, count), owner in zip(jobs, chosen):
                owners[i] += (owner,) * count
        return owners

    def _jobs(self, i, group, params):
        """Yields (item, loads, possible owners, number of stacks) of what has one owner: a stack, or an item with its
        state. Loads are operations and, if the owner keeps the state, its elements."""
        stacks = stacks_of_item(group, params)
        sharding, shape = self._sharding(group, params[0]), tuple(params[0].shape)
        costs = [cost_of(group, len(stack), shape) for stack in stacks]
        if self._on_owner:
            elements = len(params) * params[0].numel()
            yield i, (sum(costs), elements), range(len(sharding.ranks)), len(stacks)
            return
        for stack, cost in zip(stacks, costs):
            experts = tuple(expert for _, expert in stack)
            yield i, (cost,), distribution.possible_owners(sharding, experts, shape), 1

    def _add_buckets(self, items):
        """Divides items of one kind into buckets, so that every owner has about as much of each."""
        sharding = items[0].sharding
        ranks = len(sharding.ranks) if sharding else 1
        turns, taken = [], {}
        for item in items:
            owner = item.owners[0]
            turns.append(taken.get(owner, 0))
            taken[owner] = turns[-1] + 1
        order = sorted(range(len(items)), key=lambda i: (turns[i], i)) if sharding else range(len(items))
        bytes_of_item = 4 * len(items[0].params) * items[0].params[0].numel()
        limit = CPU_BATCH_BYTES if items[0].params[0].is_cpu else BATCH_BYTES
        count = max(1, ranks * limit // bytes_of_item)
        items = [items[i] for i in order]
        for first in range(0, len(items), count):
            self.buckets.append(Bucket(items[0].group, items[first:first + count], self._on_owner))

    def _describe(self, i, group):
        role = group.get("role", f"group {i}")
        names = group.get("param_names") or [f"{role}, matrix {at}" for at in range(len(group["params"]))]
        for name, p in zip(names, group["params"]):
            why = distribution.why_refused(p, p.grad)
            self.refusal = self.refusal or why and f"{name}: {why}"
            sharding = self._sharding(group, p)
            if sharding is None:
                continue
            rows = self.rows.setdefault(sharding.group, {})
            placement = f" {p.placements} on ranks {list(sharding.ranks)}" if isinstance(p, DTensor) else ""
            gradient = "no gradient" if p.grad is None else "a gradient"
            if isinstance(p.grad, DTensor) and p.grad.placements != p.placements:
                gradient += f" placed as {p.grad.placements}"
            rows[name] = f"{gradient}, {tuple(p.shape)} {p.dtype}{placement}"


def stacks_of_item(group, params):
    """Returns the stacks of an item as lists of (position, expert)."""
    if params[0].ndim == 2:
        return ([(at, 0) for at in range(len(params))],)
    size = group["k"] if group["experts"] == "stack" else 1
    experts = params[0].shape[0]
    return tuple([(0, e) for e in range(first, min(first + size, experts))] for first in range(0, experts, size))


def cost_of(group, K, shape):
    """Returns the operations of orthogonalizing a stack of K matrices of a tensor's shape."""
    m, n = reversed(shape[-2:]) if group["transposed"] else shape[-2:]
    total = 0
    for rows in rows_of_parts(m, group["parts"]):
        heads = rows // group["head_size"] if group["head_size"] else 1
        rows //= heads
        unfolded = {1: (rows, n * K), 2: (n, rows * K), 3: (K, rows * n)}[group["mode"] if group["k"] > 1 else 1]
        steps = group["ns_steps"] or STEPS
        total += heads * flops(*unfolded, group["ortho"], steps, group["ns_dtype"] or torch.float32, group["ns_form"])
    return total
