"""The third worker of test_teon_torch_ranks.py: checkpoints on several gloo ranks, as

    teon_torch_checkpoint_ranks.py RANK RANKS STORE CASE

teon_torch_ranks.py describes it. scripts/ must be on Python's path."""
import copy
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from teon_torch import ChainedOptimizer, Teon, stacks_of
from teon_torch_ranks import (
    assert_close,
    distribute_tensor,
    fully_shard,
    gpt2,
    init_device_mesh,
    optimizers_for,
    refused,
    run_case,
    sharded,
    train,
    whole,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
# Gradients of models that differ by rounding, over six steps.
TOLERANCE = 2e-4


def placed(model, mode, ranks):
    """Returns the model as $MODE lays it on ranks, and Teon's options for it."""
    if mode == "fsdp2" and not hasattr(model, "transformer"):  # only matrices
        for layer in model.modules():
            fully_shard(layer) if isinstance(layer, torch.nn.Linear) else None
        return model, {}
    if mode == "fsdp2":
        return sharded(model), {}
    if mode == "hsdp":
        return sharded(model, init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))), {}
    if mode == "plain":
        return model, {}
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    return wrapped, {"process_group": dist.group.WORLD, "shard": {"ddp": "none", "zero1": "optimizer"}[mode]}


def state_of(model, optimizers):
    return {"model": get_model_state_dict(model), "optimizers": get_optimizer_state_dict(model, optimizers)}


def load_state(model, optimizers, states):
    set_model_state_dict(model, states["model"])
    set_optimizer_state_dict(model, optimizers, states["optimizers"])


def assert_same(model, plain, what):
    for (name, p), q in zip(plain.named_parameters(), model.parameters()):
        assert_close(whole(q), p, f"{what} {name}", TOLERANCE)


def save(ranks):
    """Three steps with $MODE, saved in $CHECKPOINT."""
    model, options = placed(gpt2(), os.environ["MODE"], ranks)
    optimizers = optimizers_for(model, neuron_norm=True, **options)
    train(model, optimizers, 3)
    dcp.save(state_of(model, optimizers), checkpoint_id=os.environ["CHECKPOINT"])


def load(ranks):
    """Continues from $CHECKPOINT with $MODE: the weights of six steps in one process."""
    plain = gpt2()
    reference = optimizers_for(plain, neuron_norm=True)
    train(plain, reference, 3)
    model, options = placed(gpt2(), os.environ["MODE"], ranks)
    optimizers = optimizers_for(model, neuron_norm=True, **options)
    for group in optimizers[0].param_groups:
        group["lr"] = .5  # the checkpoint has .02
    states = state_of(model, optimizers)
    dcp.load(states, checkpoint_id=os.environ["CHECKPOINT"])
    load_state(model, optimizers, states)
    assert [group["lr"] for group in optimizers[0].param_groups] == [.02] * len(optimizers[0].param_groups)
    assert_same(model, plain, "loaded")
    train(plain, reference, 3)
    train(model, optimizers, 3)
    assert_same(model, plain, "continued")


def whole_state(ranks):
    """Rank 0 has the whole state of one chained optimizer and broadcasts it to another, which gets the same bits."""
    def fresh():
        model = sharded(gpt2())
        return model, ChainedOptimizer(*optimizers_for(model, neuron_norm=True))

    (first, a), (second, b) = fresh(), fresh()
    train(first, [a], 3)
    everything = StateDictOptions(full_state_dict=True, cpu_offload=True)
    states = get_model_state_dict(first, options=everything), get_optimizer_state_dict(first, a, options=everything)
    assert bool(states[1]) == (dist.get_rank() == 0)
    states = copy.deepcopy(states)  # as a file does; AdamW's count of steps is the optimizer's own tensor
    from_rank_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(second, states[0], options=from_rank_0)
    set_optimizer_state_dict(second, b, states[1], options=from_rank_0)
    assert set(map(len, a.state.values())) == {2, 3}  # momentum and neurons; AdamW's
    for p, q in zip(first.parameters(), second.parameters()):
        for name, value in a.state[p].items():
            assert torch.equal(whole(value), whole(b.state[q][name])), name
    for model, optimizer in ((first, a), (second, b)):
        train(model, [optimizer], 3)
    for (name, p), q in zip(first.named_parameters(), second.parameters()):
        # Products of tensors at other addresses may sum in another order.
        assert_close(q.full_tensor(), p.full_tensor(), name, TOLERANCE)


def single_file_model(saved, mode, ranks):
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({
        "q_proj": torch.nn.Linear(16, 16, bias=False), "up_proj": torch.nn.Linear(16, 28, bias=False)})
        for _ in range(3)])})
    model.load_state_dict(saved["model"])
    model, options = placed(model, mode, ranks)
    hidden, _ = stacks_of(model, stacked=["q_proj", "up_proj"], k=2)
    return model, hidden, options


def single_file_state(ranks):
    """A state of teon_torch as it was one file, of five steps, continues to the engine's weights of ten."""
    golden, saved = load_file(GOLDEN / "optim.safetensors"), torch.load(GOLDEN / "teon_torch_single_file.pt")
    for mode in ["plain"] if ranks == 1 else ["fsdp2", "ddp", "zero1"]:
        for load_into in (load_directly, load_by_names, load_from_dcp):
            model, hidden, options = single_file_model(saved, mode, ranks)
            # The file's options replace these. With mode 1 the state would have other owners.
            optimizer = Teon(hidden, lr=1, momentum=.1, mode=2 if mode == "zero1" else 1, **options)
            load_into(optimizer, model, copy.deepcopy(saved["optimizer"]))
            compare_with_golden(golden, model, optimizer, f"{mode} {load_into.__name__}")


def other_owners(ranks):
    """A state that has nothing for a rank's own matrices is refused on every rank, and nothing changes."""
    saved = torch.load(GOLDEN / "teon_torch_single_file.pt")
    model, hidden, options = single_file_model(saved, "zero1", ranks)
    optimizer = Teon(hidden, mode=1, **options)
    load_from_dcp(optimizer, model, copy.deepcopy(saved["optimizer"]))
    step_is_refused(model, optimizer)
    # One process with the state_dict() of one rank.
    model, hidden, options = single_file_model(saved, "zero1", ranks)
    optimizer = Teon(hidden, **options)
    set_grads(model)
    optimizer.step()
    alone, hidden, _ = single_file_model(saved, "plain", ranks)
    single = Teon(hidden)
    single.load_state_dict(optimizer.state_dict())
    step_is_refused(alone, single)


def set_grads(model):
    for p in model.parameters():
        p.grad = torch.ones_like(p)


def step_is_refused(model, optimizer):
    set_grads(model)
    before = [p.detach().clone() for p in model.parameters()]
    with refused("its momentum was on another rank when it was saved"):
        optimizer.step()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), before))


def load_directly(optimizer, model, state):
    optimizer.load_state_dict(state)


def by_names(model, state):
    """Returns a state_dict() as get_optimizer_state_dict() gives it: parameters by their names in the model."""
    roles = ("q_proj", "up_proj")
    names = [f"layers.{layer}.{role}.weight" for role in roles for layer in range(3)]
    return {"state": {names[i]: value for i, value in state["state"].items()},
            "param_groups": [group | {"params": [names[i] for i in group["params"]]}
                             for group in state["param_groups"]]}


def load_by_names(optimizer, model, state):
    set_optimizer_state_dict(model, optimizer, by_names(model, state))


def load_from_dcp(optimizer, model, state):
    """The checkpoint lacks options that Teon has got since; allow_partial_load leaves them at their defaults."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(by_names(model, state), checkpoint_id=folder[0])
    wanted = get_optimizer_state_dict(model, optimizer)
    dcp.load(wanted, checkpoint_id=folder[0], planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    set_optimizer_state_dict(model, optimizer, wanted)


def compare_with_golden(golden, model, optimizer, what):
    names = {}
    for name, p in model.named_parameters():
        _, layer, role, _ = name.removeprefix("module.").split(".")
        names[f"{role.removesuffix('_proj')}.{layer}"] = p
    for step in range(5, 10):
        for name, p in names.items():
            grad = golden[f"{name}.grads"][step].clone()
            p.grad = distribute_tensor(grad, p.device_mesh, p.placements) if hasattr(p, "device_mesh") else grad
        optimizer.step()
    for name, p in names.items():
        expected, start = golden[f"teon.mode2.k2.{name}"], golden[name]
        error = ((whole(p) - expected).norm() / (expected - start).norm()).item()
        # The bound of the engine's test: ten float updates, each at most 6e-5 from float64.
        assert error <= 1e-4, f"{what}: {name}: {error:.2g} of the distance"


if __name__ == "__main__":
    run_case(globals())
