"""Stacks whose matrices are distributed over ranks: who orthogonalizes which, and what is sent.

A tensor is distributed as DTensor says (FSDP2, HSDP, tensor parallelism), or replicated on a process group (DDP). Each
stack has an owner among the ranks. Per step and bucket of stacks of one shape and type:

    gather    each rank sends its shards of the owner's stacks to the owner         all-to-all of momenta
    the owner orthogonalizes its stacks as one batch
    scatter   the owner sends each rank that rank's shards of the updates           all-to-all of updates

Replicas hold equal momenta, so the owner gathers from its own replica only: nothing, if tensors are replicated whole.
With P elements in R shards and D replicas, all ranks together send 4 P (R - 1) / R bytes of momenta and
4 P (R D - 1) / R of updates per step if shards and owners are even.
"""
import dataclasses
import functools
import hashlib
import itertools
import math

import torch
import torch.distributed as dist

try:
    from torch.distributed.tensor import DTensor, Replicate
except ImportError:  # torch before 2.5
    from torch.distributed._tensor import DTensor, Replicate


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How tensors of one shape lie on ranks. A matrix counts as a tensor of one expert.

    ranks: the global ranks of the group, in the order of its exchange.
    boxes: of each rank, the ranges of its elements by dimension: ((e0, e1), (r0, r1), (c0, c1)).
    replicas: of each rank, the replica to which it belongs; the boxes of a replica are the whole tensor."""
    group: object
    ranks: tuple
    boxes: tuple
    replicas: tuple

    @property
    def me(self):
        return dist.get_rank(self.group)

    def size(self, rank):
        """Returns the rows and columns of this rank's part of a matrix."""
        _, rows, columns = self.boxes[rank]
        return rows[1] - rows[0], columns[1] - columns[0]

    def holds(self, rank, expert):
        begin, end = self.boxes[rank][0]
        return begin <= expert < end and math.prod(self.size(rank)) > 0

    def has_whole(self, rank, expert, shape):
        return self.holds(rank, expert) and self.size(rank) == tuple(shape[-2:])


def experts_first(shape):
    return (1, *shape) if len(shape) == 2 else tuple(shape)


def as_local(tensor):
    """Returns this rank's shard of a DTensor, or the tensor itself, in either case without history."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def place_of(tensor):
    """Returns where a DTensor lies; None for another tensor or none."""
    return (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None


def why_refused(p, grad):
    """Returns why a gradient cannot be laid on ranks as its parameter is, or None."""
    if grad is None or isinstance(p, DTensor) and isinstance(grad, DTensor) and p.device_mesh == grad.device_mesh:
        return None
    if isinstance(p, DTensor) != isinstance(grad, DTensor):
        kinds = ["a DTensor" if isinstance(x, DTensor) else "a plain tensor" for x in (p, grad)]
        return f"the parameter is {kinds[0]} and its gradient {kinds[1]}; give it a gradient of its own kind"
    if not isinstance(p, DTensor):
        return None
    return (f"the parameter is on ranks {p.device_mesh.mesh.tolist()} and its gradient on "
            f"{grad.device_mesh.mesh.tolist()}; both must be on one mesh")


def placed_as(grad, p):
    """Returns a gradient that lies on ranks as its parameter does, redistributed if it is sharded in another way."""
    if not isinstance(p, DTensor) or grad.placements == p.placements:
        return grad
    return grad.redistribute(p.device_mesh, p.placements)


def placements_without(p, dim):
    """Returns a DTensor's placements, replicated where `dim` is sharded."""
    if dim is None:
        return p.placements
    return tuple(Replicate() if not at.is_replicate() and at.dim % p.ndim == dim % p.ndim else at
                 for at in p.placements)


def zeros_for(p, dtype, summed=None):
    """Returns zeros that lie on ranks as p does; of length 1 in the dimension `summed`."""
    shape, local = list(p.shape), list(as_local(p).shape)
    if summed is not None:
        shape[summed] = local[summed] = 1
    zeros = torch.zeros(local, dtype=dtype, device=p.device)
    return from_local(zeros, p, shape, summed) if isinstance(p, DTensor) else zeros


def from_local(local, p, shape, summed):
    strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    return DTensor.from_local(local, p.device_mesh, placements_without(p, summed), run_check=False,
                              shape=torch.Size(shape), stride=tuple(strides))


def placed_for(value, p, summed=None):
    """Returns a state that was saved by another number of ranks, whole or as a DTensor, as p's lies on ranks."""
    if isinstance(value, DTensor) and not isinstance(p, DTensor):
        return value.full_tensor()
    if isinstance(value, DTensor) or not isinstance(p, DTensor):
        return value
    box = sharding_of(p, "a saved state").boxes[dist.get_rank(group_of(p.device_mesh))][-p.ndim:]
    whole = slice(None)
    dim = None if summed is None else summed % p.ndim
    local = value[tuple(whole if i == dim else slice(*edges) for i, edges in enumerate(box))]
    return from_local(local.clone(), p, list(value.shape), summed)


def replicated_on(group, shape):
    """Returns the Sharding of tensors that every rank of a process group has whole."""
    ranks = tuple(dist.get_process_group_ranks(group))
    box = tuple((0, size) for size in experts_first(shape))
    return Sharding(group, ranks, (box,) * len(ranks), tuple(range(len(ranks))))


def sharding_of(tensor, where):
    """Returns a DTensor's Sharding. Raises ValueError for placements that Teon does not support."""
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    for placement in tensor.placements:
        if not (placement.is_replicate() or type(placement).__name__ in ("Shard", "_StridedShard")):
            raise ValueError(f"{where}: the placement {placement} is not supported; use Shard and Replicate")
    ranks = mesh.mesh.flatten().tolist()
    coordinates = list(itertools.product(*(range(size) for size in mesh.mesh.shape)))
    boxes = tuple(box_of(shape, mesh.mesh.shape, tensor.placements, at) for at in coordinates)
    replicas = tuple(replica_of(mesh.mesh.shape, tensor.placements, at) for at in coordinates)
    mine = boxes[ranks.index(dist.get_rank())]
    lengths = tuple(end - begin for begin, end in mine)[-len(shape):]
    local = tuple(tensor.to_local().shape)
    if lengths != local and math.prod(local) > 0:
        raise ValueError(f"{where}: its placements {tensor.placements} on a mesh of {tuple(mesh.mesh.shape)} give this "
                         f"rank {local} instead of {lengths}; this torch divides tensors in another way")
    return Sharding(group_of(mesh), tuple(ranks), boxes, replicas)


def reduced(sharding, dim):
    """Returns the Sharding of sums over a dimension (-2: rows, -1: columns), which then has length 1. Ranks that had
    other parts of this dimension have replicas."""
    dim += 3
    boxes = tuple((*box[:dim], (0, 1), *box[dim + 1:]) for box in sharding.boxes)
    parts = [(replica, box[dim]) for replica, box in zip(sharding.replicas, sharding.boxes)]
    numbers = {part: i for i, part in enumerate(dict.fromkeys(parts))}
    return Sharding(sharding.group, sharding.ranks, boxes, tuple(numbers[part] for part in parts))


def box_of(shape, mesh_shape, placements, at):
    """Returns the element ranges of the rank at these mesh coordinates. Shards are torch.chunk's. A _StridedShard
    (FSDP2 after tensor parallelism on the same dimension) divides what the mesh dimensions to its right have left."""
    ranges = [(0, size) for size in shape]
    order = sorted(range(len(placements)), key=lambda i: type(placements[i]).__name__ == "_StridedShard")
    for i in order:
        if placements[i].is_replicate():
            continue
        dim = placements[i].dim % len(shape)
        begin, end = ranges[dim]
        length = -(-(end - begin) // mesh_shape[i])
        first = min(begin + at[i] * length, end)
        ranges[dim] = (first, min(first + length, end))
    return tuple([(0, 1)] * (3 - len(shape)) + ranges)


def replica_of(mesh_shape, placements, at):
    index = 0
    for size, placement, coordinate in zip(mesh_shape, placements, at):
        if placement.is_replicate():
            index = index * size + coordinate
    return index


@functools.cache
def group_of(mesh):
    """Returns the process group of all ranks of a mesh, in the order of mesh.mesh."""
    if mesh.ndim == 1:
        return mesh.get_group()
    ranks = mesh.mesh.flatten().tolist()
    if ranks == list(range(dist.get_world_size())):
        return dist.group.WORLD
    return dist.new_group(ranks, use_local_synchronization=True)


def assign_owners(stacks):
    """Assigns each stack to a rank: the longest first, to the rank that then has the least among those that may have it
    (Graham's longest processing time). stacks: [(loads, ranks that may own it)], where loads are shares of all work
    and, if owners keep the state, of all state; a rank has as much as the larger of its sums. Returns the owners."""
    sums, owners = {}, [0] * len(stacks)
    for i in sorted(range(len(stacks)), key=lambda i: (-max(stacks[i][0]), i)):
        loads, ranks = stacks[i]
        after = {rank: [a + b for a, b in zip(sums.get(rank, [0] * len(loads)), loads)] for rank in ranks}
        owners[i] = min(ranks, key=lambda rank: (max(after[rank]), sum(after[rank]), rank))
        sums[owners[i]] = after[owners[i]]
    return owners


def possible_owners(sharding, experts, shape):
    """Returns the ranks that may own a stack of these experts of tensors of a shape: those that hold it whole, so that
    no momentum is sent, if there are any; otherwise all."""
    everyone = range(len(sharding.ranks))
    whole = [rank for rank in everyone if all(sharding.has_whole(rank, expert, shape) for expert in experts)]
    return whole or list(everyone)


class Done:
    """An exchange that is complete, or was none."""

    def __init__(self, result):
        self.result = result

    def wait(self):
        return self.result


class Arriving:
    """An exchange under way. wait() returns what `finish` makes of the received buffer."""

    def __init__(self, work, sent, received, finish):
        self.work, self.sent, self.received, self.finish = work, sent, received, finish

    def wait(self):
        self.work.wait()
        return self.finish(self.received)


class NoRoute:
    """The route of what does not exist."""

    def gather(self, slices):
        return Done(None)

    scatter = gather


class LocalRoute:
    """The route of stacks that this process has whole: nothing is sent.

    order: the positions of the stacks' slices among `count` local slices."""

    def __init__(self, order, count, device):
        self.count = count
        self.order = None if order == list(range(count)) else torch.tensor(order, dtype=torch.long, device=device)

    def gather(self, slices):
        return Done(slices if self.order is None else slices.index_select(0, self.order))

    def scatter(self, updates):
        """Returns the updates at the positions of their slices; other slices get zeros."""
        if self.order is None:
            return Done(updates)
        return Done(updates.new_zeros(self.count, *updates.shape[1:]).index_copy_(0, self.order, updates))


class Route:
    """The route of a bucket's stacks to their owners and back.

    sharding: of the bucket's tensors, which have one shape (matrices m x n).
    slices: [(tensor's position in the bucket, expert)], stack by stack, K for each stack.
    owners: of each stack, a rank of the group."""

    def __init__(self, sharding, shape, slices, owners, device):
        self.sharding, self.shape, self.device = sharding, tuple(shape[-2:]), device
        self.me = me = sharding.me
        per_stack = len(slices) // len(owners)
        owner_of = [owner for owner in owners for _ in range(per_stack)]
        self.owned = [i for i, owner in enumerate(owner_of) if owner == me]
        everyone = range(len(sharding.ranks))
        held = {rank: [i for i, (_, expert) in enumerate(slices) if sharding.holds(rank, expert)] for rank in everyone}
        begin, end = sharding.boxes[me][0]
        # This rank's slices as positions in its local tensors (count, experts, rows, columns), flattened.
        self.count = (max(at for at, _ in slices) + 1) * (end - begin)
        self.local = {i: slices[i][0] * (end - begin) + slices[i][1] - begin for i in held[me]}
        place = {i: at for at, i in enumerate(self.owned)}

        def listed(positions):
            return torch.tensor(positions, dtype=torch.long, device=device)

        # Between me and each rank: the slices that I hold and it owns, and those that it holds and I own.
        theirs = [[i for i in held[me] if owner_of[i] == rank] for rank in everyone]
        mine = [[i for i in held[rank] if owner_of[i] == me] for rank in everyone]
        same_replica = [sharding.replicas[rank] == sharding.replicas[me] for rank in everyone]
        self.to_owner = [theirs[rank] if same_replica[rank] else [] for rank in everyone]
        self.of_mine = [mine[rank] if same_replica[rank] else [] for rank in everyone]
        self.send_order = listed([self.local[i] for part in self.to_owner for i in part])
        self.gathered_places = [listed([place[i] for i in part]) for part in self.of_mine]
        self.update_places = [listed([place[i] for i in part]) for part in mine]
        self.return_order = listed([self.local[i] for part in theirs for i in part])
        self.counts = {"momenta sent": list(map(len, self.to_owner)), "momenta received": list(map(len, self.of_mine)),
                       "updates sent": list(map(len, mine)), "updates received": list(map(len, theirs))}
        # Whether any rank sends anything to another; all ranks must agree on it.
        self.gathers = any(rank != owner_of[i] and sharding.replicas[rank] == sharding.replicas[owner_of[i]]
                           for rank in everyone for i in held[rank])
        self.scatters = any(rank != owner_of[i] for rank in everyone for i in held[rank])

    def elements(self, rank):
        return math.prod(self.sharding.size(rank))

    def gather(self, slices):
        """Begins to collect the owned slices. slices: this rank's parts (count, rows, columns). wait() returns
        (slices owned, m, n)."""
        sent = slices.index_select(0, self.send_order)
        own = self.elements(self.me)
        sizes_in = [n * self.elements(rank) for rank, n in enumerate(self.counts["momenta received"])]

        def finish(received):
            whole = received.new_empty(len(self.owned), *self.shape)
            for rank, part in enumerate(received.split(sizes_in)):
                self._region(whole, rank, self.gathered_places[rank], part)
            return whole

        return self._exchange(sent, [n * own for n in self.counts["momenta sent"]], sizes_in, self.gathers, finish)

    def scatter(self, updates):
        """Begins to return the updates (slices owned, m, n). wait() returns this rank's parts (count, rows, columns);
        slices that belong to no stack get zeros."""
        parts, sizes_out = [], []
        for rank, places in enumerate(self.update_places):
            _, (r0, r1), (c0, c1) = self.sharding.boxes[rank]
            part = updates[:, r0:r1, c0:c1].index_select(0, places).flatten()
            parts.append(part)
            sizes_out.append(part.numel())
        own = self.elements(self.me)
        sizes_in = [n * own for n in self.counts["updates received"]]

        def finish(received):
            rows, columns = self.sharding.size(self.me)
            result = received.new_zeros(self.count, rows, columns)
            return result.index_copy_(0, self.return_order, received.view(len(self.return_order), rows, columns))

        return self._exchange(torch.cat(parts), sizes_out, sizes_in, self.scatters, finish)

    def _region(self, whole, rank, places, part):
        if part.numel():
            _, (r0, r1), (c0, c1) = self.sharding.boxes[rank]
            whole[:, r0:r1, c0:c1].index_copy_(0, places, part.view(len(places), r1 - r0, c1 - c0))

    def _exchange(self, sent, sizes_out, sizes_in, needed, finish):
        if not needed:
            return Done(finish(sent.flatten()))
        received = sent.new_empty(sum(sizes_in))
        work = dist.all_to_all_single(received, sent.flatten(), sizes_in, sizes_out, self.sharding.group, async_op=True)
        return Arriving(work, sent, received, finish)


class Agreement:
    """Checks, before the first exchange of a step, that the ranks of a group are about to do the same."""

    def __init__(self, group):
        self.group = group
        # NCCL's tensors are on the GPU, and reading them would wait for the GPU.
        on_host = dist.get_backend(group) != "nccl"
        self.host = group if on_host else dist.new_group(dist.get_process_group_ranks(group), backend="gloo",
                                                         use_local_synchronization=True)

    def check(self, rows):
        """rows: {what (a tensor, in words): its state on this rank (text)}. Raises ValueError on every rank, naming the
        first difference and the ranks, if ranks differ. Costs an all-gather of 8 bytes per rank."""
        digest = hashlib.sha256(repr(rows).encode()).digest()[:8]
        mine = torch.frombuffer(bytearray(digest), dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.host))]
        dist.all_gather(everyone, mine, group=self.host)
        if all(torch.equal(mine, other) for other in everyone):
            return
        states = [None] * len(everyone)
        dist.all_gather_object(states, rows, group=self.host)
        raise ValueError(describe_difference(states, dist.get_process_group_ranks(self.host)))


def describe_difference(states, ranks):
    for name in dict.fromkeys(name for rows in states for name in rows):
        said = {}
        for rank, rows in zip(ranks, states):
            said.setdefault(rows.get(name, "not in this optimizer"), []).append(rank)
        if len(said) > 1:
            parts = [f"{state} on rank{'s' * (len(who) > 1)} {', '.join(map(str, who))}" for state, who in said.items()]
            return f"{name}: {'; '.join(parts)}; every rank of a process group must update the same matrices"
    return "ranks have their matrices in different orders; build the groups of Teon in the same order on every rank"
