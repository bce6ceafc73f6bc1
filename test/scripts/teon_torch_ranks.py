"""The worker of test_teon_torch_ranks.py: runs one case on several gloo ranks, as

    teon_torch_ranks.py RANK RANKS STORE CASE

and prints nothing unless it fails. Every case compares with one process, which each rank computes for itself."""
import contextlib
import copy
import os
import random
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
except ImportError:  # torch before 2.6, which runs no case of fully_shard
    from torch.distributed._tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    fully_shard = None

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from teon_torch import Teon, buckets, distribution, stacks_of

# Ranks compute the same products in batches of other sizes, so that float sums have another order (2^-24 each).
# Newton-Schulz multiplies small singular values, and their rounding, by up to 8.3 * 4.1 * 3.9 * 3.3 = 440.
TOLERANCE = 2e-5


def whole(p):
    return p.full_tensor() if isinstance(p, DTensor) else p


def assert_close(actual, expected, what, tolerance=TOLERANCE):
    difference = (actual.detach() - expected.detach()).norm() / expected.detach().norm()
    assert bool(torch.isfinite(difference)) and difference <= tolerance, f"{what}: relative difference {difference:.2e}"


@contextlib.contextmanager
def refused(*words):
    """Expects an error with one of these words."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        assert any(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


class SentBytes:
    """Counts the bytes that all_to_all_single sends to other ranks."""

    def __enter__(self):
        self.total, self.original = 0, dist.all_to_all_single

        def counted(received, sent, sizes_in, sizes_out, group, async_op):
            others = sum(size for rank, size in enumerate(sizes_out) if rank != dist.get_rank(group))
            self.total += others * sent.element_size()
            return self.original(received, sent, sizes_in, sizes_out, group, async_op=async_op)
        dist.all_to_all_single = counted
        return self

    def __exit__(self, *_):
        dist.all_to_all_single = self.original


def layers_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def sharded(model, mesh=None, by_layer=True):
    """Returns the model under fully_shard, layer by layer and as a whole."""
    for layer in layers_of(model) if by_layer else ():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def random_options(rng):
    ortho = rng.choice(["polar-express", "you", "jordan", "svd"])
    k = rng.choice([1, 2, 3])
    return dict(lr=.05, weight_decay=.1, momentum=.9, nesterov=rng.random() < .5, ortho=ortho, k=k,
                mode=rng.choice([1, 2, 3]) if k > 1 else 1, ns_form=rng.choice(["standard", "gram"]),
                rms_match=rng.random() < .3, normalize_slices=rng.random() < .3, neuron_norm=rng.random() < .4,
                cautious_weight_decay=rng.random() < .4, transposed=rng.random() < .3)


def random_groups(rng, options):
    """Returns groups of plain matrices in random shapes: a role, a joined role of unequal parts, experts."""
    groups = []
    for role in range(3):
        m, n = rng.choice([(24, 24), (13, 29), (30, 17), (7, 5), (5, 3)])
        layers = rng.choice([1, 3, 4, 5])
        shape, extra = (m, n), {}
        if role == 1 and m > 7:
            extra = {"parts": (m - 8, 4, 4)}
        if role == 2:
            shape = (rng.choice([3, 4, 6]), m, n)
            extra = {"experts": rng.choice(["each", "stack"])}
            if extra["experts"] == "each":
                extra["k"] = 1
        if options["neuron_norm"] and "parts" not in extra:
            extra["neuron_axis"] = rng.choice(["rows", "long"])
        if options["transposed"]:
            shape = (*shape[:-2], shape[-1], shape[-2])
        groups.append({"params": [torch.randn(shape) for _ in range(layers)], "role": f"role{role}", **extra})
    return groups


def random_placements(rng, ndim, mesh):
    return [rng.choice([Replicate(), Shard(0), Shard(1), Shard(ndim - 1)]) for _ in range(mesh.ndim)]


def meshes(ranks):
    shapes = {1: [(1,)], 2: [(2,), (2, 1)], 3: [(3,)], 4: [(4,), (2, 2)]}[ranks]
    return [init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[:len(shape)]) for shape in shapes]


def steps_equal_one_process(ranks, seeds=4, kind="dtensor"):
    """Random settings, shapes and placements: three steps equal one process's; same bits when repeated."""
    all_meshes = meshes(ranks)
    for seed in range(seeds):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        options = random_options(rng)
        groups = random_groups(rng, options)
        reference = Teon([{**g, "params": [torch.nn.Parameter(p.clone()) for p in g["params"]]} for g in groups],
                         **options)
        mesh = rng.choice(all_meshes)
        where = {}
        if kind == "dtensor":
            def place(p, rng=rng, mesh=mesh):
                return distribute_tensor(p.clone(), mesh, where.setdefault(tuple(p.shape), random_placements(
                    rng, p.ndim, mesh)))
            more = {}
        else:
            def place(p):
                return p.clone()
            more = {"process_group": dist.group.WORLD, "shard": kind}
        subject = Teon([{**g, "params": [torch.nn.Parameter(place(p)) for p in g["params"]]} for g in groups],
                       **options, **more)
        if kind != "dtensor":
            where = kind
        for step in range(3):
            for group, mine in zip(reference.param_groups, subject.param_groups):
                for i, (p, q) in enumerate(zip(group["params"], mine["params"])):
                    if step == 1 and i == 1:  # a matrix without a gradient
                        p.grad = q.grad = None
                        continue
                    p.grad = torch.randn_like(p)
                    q.grad = place(p.grad) if kind == "dtensor" else p.grad.clone()
            reference.step()
            subject.step()
        for group, mine in zip(reference.param_groups, subject.param_groups):
            for i, (p, q) in enumerate(zip(group["params"], mine["params"])):
                assert_close(whole(q), p, f"seed {seed} {options} {where} {mesh.mesh.shape} {group['role']} {i}")
                for name, state in reference.state[p].items():
                    if name in subject.state[q]:
                        assert_close(whole(subject.state[q][name]), state, f"seed {seed} {options} {where} {name}")


def replicated(ranks):
    steps_equal_one_process(ranks, kind="none")


def owner_only(ranks):
    steps_equal_one_process(ranks, kind="optimizer")


def gpt2(layers=3, width=24):
    import transformers
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=4, n_positions=16, vocab_size=50, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))


def train(model, optimizers, steps, clip=False):
    """Every rank trains on the same sequences, so that averaged gradients equal one process's. Returns the norms that
    were clipped."""
    generator, norms = torch.Generator().manual_seed(7), []
    for _ in range(steps):
        batch = torch.randint(50, (12, 16), generator=generator)
        model(batch, labels=batch).loss.backward()
        if clip:
            norms.append(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), .5)))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return norms


def optimizers_for(model, **options):
    hidden, others = stacks_of(model)
    return [Teon(hidden, lr=.02, **options), torch.optim.AdamW(others, lr=.01)]


def fsdp2(ranks):
    """fully_shard: ten steps of GPT-2 equal one process's, momentum is sharded, bytes sent are the formula's."""
    plain, model = gpt2(), sharded(gpt2())
    a, b = optimizers_for(plain), optimizers_for(model)
    wanted = train(plain, a, 10, clip=True)
    with SentBytes() as bytes_sent:
        norms = train(model, b, 10, clip=True)
    assert_close(torch.stack(norms), torch.stack(wanted), "norms of gradients", 2e-4)
    # Momenta of ten steps, and gradients of models that differ by rounding.
    for (name, p), q in zip(plain.named_parameters(), model.parameters()):
        assert_close(q.full_tensor(), p, name, 2e-4)
    momenta = [state["momentum"] for state in b[0].state.values()]
    assert all(isinstance(m, DTensor) for m in momenta)
    here, total = sum(m.to_local().numel() for m in momenta), sum(m.numel() for m in momenta)
    assert here <= total / ranks * 1.05, f"{here} of {total} elements of momentum on this rank"
    sent = torch.tensor([bytes_sent.total])
    dist.all_reduce(sent)
    expected = 10 * 2 * 4 * total * (ranks - 1) / ranks
    assert abs(sent.item() - expected) <= 1e-3 * expected, f"{sent.item()} bytes sent, expected {expected}"


def hybrid(ranks):
    """HSDP, and FSDP2 after tensor parallelism, on a mesh of 2 x 2."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    plain, model = gpt2(), fully_shard(gpt2(), mesh=mesh)
    a, b = optimizers_for(plain), optimizers_for(model)
    train(plain, a, 5)
    train(model, b, 5)
    for (name, p), q in zip(plain.named_parameters(), model.parameters()):
        assert_close(q.full_tensor(), p, name, 2e-4)

    def mlp():
        torch.manual_seed(1)
        return torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.GELU(),
                                                        torch.nn.Linear(20, 12)) for _ in range(4)])
    plain, divided = mlp(), mlp()
    for layer in divided:
        parallelize_module(layer, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["data"])
    a, b = ([Teon(stacks_of(model, stacked=["0"], k=2)[0], lr=.02, neuron_norm=True)] for model in (plain, divided))
    for step in range(3):
        for model, (optimizer,) in ((plain, a), (divided, b)):
            x = torch.randn(5, 12, generator=torch.Generator().manual_seed(step))
            for layer in model:
                x = x + layer(x)
            x.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for (name, p), q in zip(plain.named_parameters(), divided.parameters()):
        if p.ndim == 2:
            assert_close(q.full_tensor(), p, name, 2e-4)


class Joined(torch.nn.Module):
    """A layer with a joined QKV of heads of two rows, and what gives its rows different gradients."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(12, 24), torch.nn.Linear(24, 12)

    def forward(self, x):
        return self.out(torch.tanh(self.qkv(x)))


def strided_shards(ranks):
    """FSDP2 after tensor parallelism on one dimension: each rank's part of the tensor is the one that it holds, and a
    joined QKV, whose rows are not alike, is updated as by one process."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for options in ({"parts": 3, "k": 2}, {"parts": 3, "head_size": 2}, {"parts": (12, 8, 4)}, {"k": 2, "mode": 2}):
        torch.manual_seed(1)
        plain = torch.nn.ModuleList([Joined() for _ in range(4)])
        divided = copy.deepcopy(plain)
        for layer in divided:
            parallelize_module(layer, mesh["model"], {"qkv": ColwiseParallel(), "out": RowwiseParallel()})
            fully_shard(layer, mesh=mesh["data"])
        weights = [[layer.qkv.weight for layer in model] for model in (plain, divided)]
        for p, q in zip(*weights):
            assert type(q.placements[0]).__name__ == "_StridedShard", q.placements
            box = distribution.sharding_of(q, "a test").boxes[dist.get_rank()]
            assert torch.equal(p[tuple(slice(*edges) for edges in box[1:])], q.to_local()), (box, q.placements)
        optimizers = [Teon([{"params": params, "role": "layers.*.qkv", **options}], lr=.02) for params in weights]
        for step in range(3):
            for model, optimizer in zip((plain, divided), optimizers):
                x = torch.randn(5, 12, generator=torch.Generator().manual_seed(step))
                for layer in model:
                    x = x + layer(x)
                x.square().sum().backward()
                optimizer.step()
                model.zero_grad()
        for p, q in zip(*weights):
            assert_close(q.full_tensor(), p, options, 2e-4)


def disagreements(ranks):
    """What ranks do differently is one ValueError on every rank, before anything changes."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (ranks,))

    def fresh(**options):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)])) for _ in range(2)]
        for p in params:
            p.grad = distribute_tensor(torch.ones(8, 6), mesh, [Shard(0)])
        return params, Teon([{"params": params, "role": "layers.*.up"}], k=2, **options)

    def no_gradient(params, optimizer):
        params[1].grad = None

    def rate(params, optimizer):
        optimizer.param_groups[0]["lr"] = .5

    def mode(params, optimizer):
        optimizer.param_groups[0]["mode"] = 2

    for fault, words, steps in ((no_gradient, "layers.*.up, matrix 1: a gradient", 0),
                                (rate, "the rate of layers.*.up", 0), (mode, "the options of layers.*.up", 0),
                                (mode, "the options of layers.*.up", 1), (no_gradient, "matrix 1: a gradient", 1)):
        params, optimizer = fresh()
        for _ in range(steps):
            optimizer.step()
        before = [p.full_tensor().clone() for p in params]
        if rank == ranks - 1:
            fault(params, optimizer)
        try:
            optimizer.step()
        except ValueError as error:
            assert words in str(error) and f"rank {ranks - 1}" in str(error), str(error)
        else:
            raise AssertionError(f"{fault.__name__}: no error")
        assert all(torch.equal(p.full_tensor(), b) for p, b in zip(params, before))
    # Before a second step: all ranks, then one rank, have a matrix on another mesh.
    other = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("a", "b"))
    for moved in (range(ranks), [ranks - 1]):
        params, optimizer = fresh()
        optimizer.step()
        locals_before, second = [p.to_local().clone() for p in params], params[1].full_tensor().detach()
        if rank in moved:
            at = torch.nn.Parameter(DTensor.from_local(second.chunk(ranks, 1)[rank], other, [Replicate(), Shard(1)]))
            at.grad = torch.ones_like(at)
            params[1].grad = None
            torch.utils.swap_tensors(params[1], at)
        with refused("layers.*.up, matrix 1: the parameter moved to another mesh", f"rank {ranks - 1}"):
            optimizer.step()
        if rank not in moved:
            assert all(torch.equal(p.to_local(), local) for p, local in zip(params, locals_before))
    # One rank lacks a matrix.
    params, _ = fresh()
    optimizer = Teon([{"params": params[:1 if rank == ranks - 1 else 2], "role": "layers.*.up"}], k=2)
    with refused("not in this optimizer"):
        optimizer.step()
    p = torch.nn.Parameter(DTensor.from_local(torch.randn(4, 4), mesh, [Partial()]))
    with refused("is not supported; use Shard and Replicate"):
        Teon([p])


def same_bits(ranks):
    """Two runs on one mesh give the same bits, whatever the order in which exchanges end."""
    mesh = init_device_mesh("cpu", (ranks,))
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(distribute_tensor(torch.randn(20, 12), mesh, [Shard(i % 2)])) for i in range(12)]
        buckets.CPU_BATCH_BYTES = 1
        optimizer = Teon([{"params": params[::2]}, {"params": params[1::2]}], k=2)
        for _ in range(3):
            for p in params:
                p.grad = distribute_tensor(torch.randn(20, 12), mesh, p.placements)
            optimizer.step()
        assert len(optimizer._plan.buckets) > 2
        results.append([p.full_tensor() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def run_case(cases, **options):
    rank, ranks, store, case = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, **options)
    cases[case](ranks)
    dist.barrier()
    dist.destroy_process_group()
    # torch's caches of meshes keep gloo's threads alive, and a thread that frees its last tensor while the interpreter
    # ends aborts the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    run_case(globals())
