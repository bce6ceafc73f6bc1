"""The second worker of test_teon_torch_ranks.py: models, training loops and failures on several gloo ranks, as

    teon_torch_models_ranks.py RANK RANKS STORE CASE

teon_torch_ranks.py describes it. scripts/ must be on Python's path."""
import copy
import datetime
import os
import random
import signal
import sys

import torch
import torch.distributed as dist
from teon_torch import Teon, distribution, stacks_of
from teon_torch_ranks import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    assert_close,
    distribute_tensor,
    fully_shard,
    gpt2,
    init_device_mesh,
    optimizers_for,
    refused,
    run_case,
    sharded,
)

# Of the distance that the weights moved in 20 steps. Most configurations give the same bits; in the others, batches of
# another size sum in another order. Measured: 5e-7.
TOLERANCE = 1e-6


def random_model(rng, layers=(1, 2, 3, 5), head=(6, 10), hidden=(13, 27, 41), experts=(3, 4)):
    """Returns a small model of transformers with odd sizes, chosen from those given."""
    import transformers
    transformers.logging.set_verbosity_error()
    heads = rng.choice([2, 3])
    size = dict(vocab_size=29, bos_token_id=0, eos_token_id=0)
    layers, width = rng.choice(layers), heads * rng.choice(head)
    if rng.random() < .25:
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, n_positions=16, **size))
    size |= dict(hidden_size=width, intermediate_size=rng.choice(hidden), num_hidden_layers=layers,
                 num_attention_heads=heads, num_key_value_heads=rng.choice([1, heads]), max_position_embeddings=16,
                 pad_token_id=None)
    kind = rng.choice(["llama", "qwen3", "experts"])
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**size))
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**size, head_dim=head[0]))
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **size, head_dim=head[0], num_experts=rng.choice(experts), num_experts_per_tok=2, moe_intermediate_size=7))


def random_models(ranks):
    """Random models, options and meshes under fully_shard: 20 steps with one process's gradients give its weights."""
    shapes = [(ranks,), (2, 2)] if ranks == 4 else [(ranks,)]
    for index, shape in enumerate(shapes):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape):])
        for seed in range(6):
            seed += 100 * ranks + 10 * index
            compare_model(random.Random(seed), seed, mesh)


def compare_model(rng, seed, mesh):
    torch.manual_seed(seed)
    plain = random_model(rng)
    half = rng.random() < .2
    plain = plain.to(torch.bfloat16) if half else plain
    model = sharded(copy.deepcopy(plain), mesh, by_layer=rng.random() < .7)
    division = dict(k=rng.choice([1, 2, 3]), ortho_per_head=rng.random() < .3,
                    experts=rng.choice(["each", "stack"]))
    options = dict(lr=.02, nesterov=rng.random() < .5, mode=rng.choice([1, 2, 3]), neuron_norm=rng.random() < .3,
                   ns_form=rng.choice(["auto", "gram"]), cautious_weight_decay=rng.random() < .3)
    a, b = (Teon(stacks_of(x, **division)[0], **options) for x in (plain, model))
    start = [p.detach().clone() for p in plain.parameters()]
    what = f"{type(plain).__name__}, seed {seed} {division} {options} {mesh.mesh.tolist()}"
    for step in range(20):
        generator = torch.Generator().manual_seed(100 * seed + step)
        for p, q in zip(plain.parameters(), model.parameters()):
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
            q.grad = distribute_tensor(p.grad, q.device_mesh, q.placements, src_data_rank=None)
        a.step()
        b.step()
    for (name, p), q, first in zip(plain.named_parameters(), model.parameters(), start):
        if p not in a.state:
            continue
        momentum, local = b.state[q]["momentum"], q.to_local()
        assert momentum.to_local().shape == local.shape, f"{what}: the momentum of {name} is not sharded as it is"
        difference = (q.full_tensor().float() - p.float()).norm() / (p.float() - first.float()).norm()
        # In bfloat16 a difference in the last digit of float can round to the next weight, 2^-8 of it.
        assert difference <= (2 ** -8 if half else TOLERANCE), f"{what}: {name}: {difference:.2e}"


def state_bytes(ranks):
    """A rank's share of the state, of random models with fully_shard and with shard="optimizer"."""
    mesh = init_device_mesh("cpu", (ranks,))
    for seed in range(6):
        for way in ("fsdp2", "optimizer"):
            rng = random.Random(1000 * ranks + seed)
            # torch.chunk gives a rank up to ceil(rows / ranks) rows: 5% more than a share of 61 rows on 4 ranks. It
            # divides tensors of experts by experts.
            model = random_model(rng, layers=(6, 9, 12), head=(34, 40), hidden=(100, 150, 203), experts=(4, 8))
            options = {"process_group": dist.group.WORLD, "shard": "optimizer"}
            if way == "fsdp2":
                fully_shard(model, mesh=mesh)
                options = {}
            hidden, _ = stacks_of(model, k=rng.choice([1, 2]))
            optimizer = Teon(hidden, ns_steps=1, neuron_norm=rng.random() < .5, **options)
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            here = sum(distribution.as_local(x).nbytes for state in optimizer.state.values() for x in state.values())
            share = 4 * sum(p.numel() for group in hidden for p in group["params"]) / ranks
            assert here <= 1.05 * share, f"{type(model).__name__}, seed {seed}, {way}: {here} bytes, share {share:.0f}"


def training_loop(ranks):
    """fully_shard with gradient accumulation, clipping, a scheduler, a closure and frozen parameters; DDP likewise."""
    plain, divided, replicated = gpt2(), sharded(gpt2()), gpt2()
    models = {"plain": plain, "fsdp2": divided, "ddp": replicated}
    for model in models.values():
        model.transformer.h[1].mlp.c_fc.weight.requires_grad_(False)
    wrapped = dict(models, ddp=torch.nn.parallel.DistributedDataParallel(replicated))
    for name, model in models.items():
        options = {"process_group": dist.group.WORLD, "shard": "optimizer"} if name == "ddp" else {}
        train_accumulated(wrapped[name], optimizers_for(model, **options), name)
    frozen = plain.transformer.h[1].mlp.c_fc.weight
    fresh = gpt2().transformer.h[1].mlp.c_fc.weight
    assert torch.equal(frozen, fresh)
    for (name, p), q, r in zip(plain.named_parameters(), divided.parameters(), replicated.parameters()):
        assert_close(q.full_tensor(), p, f"fsdp2: {name}", 2e-4)
        assert_close(r, p, f"ddp: {name}", 2e-4)


def train_accumulated(model, optimizers, name):
    schedules = [torch.optim.lr_scheduler.LambdaLR(x, lambda step: 1 / (step + 1)) for x in optimizers]
    generator = torch.Generator().manual_seed(7)
    for step in range(6):
        batches = [torch.randint(50, (6, 16), generator=generator) for _ in range(3)]

        def closure(batches=batches):
            losses = []
            for i, batch in enumerate(batches):
                if name == "fsdp2":
                    model.set_requires_gradient_sync(i == 2)
                losses.append(model(batch, labels=batch).loss / 3)
                losses[-1].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), .5)
            return sum(losses)
        loss = optimizers[0].step(closure)
        assert bool(torch.isfinite(loss)), f"{name}: loss {loss} in step {step}"
        optimizers[1].step()
        for x in [*schedules, *optimizers]:
            x.zero_grad() if x in optimizers else x.step()


def gradients(ranks):
    """Gradients sharded in another way than their parameters are redistributed; of another kind or mesh, refused."""
    mesh = init_device_mesh("cpu", (ranks,))
    for placement in (Replicate(), Shard(0), Shard(1), Partial()):
        torch.manual_seed(0)
        weight, grad = torch.randn(10, 6), torch.randn(10, 6)
        p, q = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))
        p.grad = grad
        q.grad = (DTensor.from_local(grad / ranks, mesh, [placement]) if placement == Partial() else
                  distribute_tensor(grad, mesh, [placement]))
        for x in (p, q):
            Teon([x], lr=.1).step()
        assert_close(q.full_tensor(), p, str(placement))
    torch.manual_seed(0)
    p = torch.nn.Parameter(distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]))
    other = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("a", "b"))
    elsewhere = distribute_tensor(torch.ones(8, 6), other, [Replicate(), Shard(0)])
    for grad, words in ((elsewhere, "both must be on one mesh"), (torch.ones(8, 6), "its gradient a plain tensor")):
        before = p.full_tensor().clone()
        with refused("up, matrix 0: the parameter is on ranks", words, "assigned grad"):
            p.grad = grad
            Teon([{"params": [p], "role": "up"}]).step()
        p.grad = None
        assert torch.equal(p.full_tensor(), before)
    # One rank freezes a matrix: every rank refuses the step, also with replicated matrices.
    torch.manual_seed(0)
    q = torch.nn.Parameter(torch.randn(8, 6))
    q.requires_grad_(dist.get_rank() != 1)
    if q.requires_grad:
        q.square().sum().backward()
    with refused("no gradient"):
        Teon([{"params": [q], "role": "up"}], process_group=dist.group.WORLD).step()


def killed(ranks):
    """The last rank ends, or stops without an end, in its third step, at $WHERE. The others end with an error, and only
    whole steps are saved in $SAVED."""
    where, folder, rank = os.environ["WHERE"], os.environ["SAVED"], dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (ranks,))
    weights = [torch.randn(12, 8) for _ in range(4)]
    params = [torch.nn.Parameter(distribute_tensor(w, mesh, [Shard(0)])) for w in weights]
    optimizer = Teon(params, lr=.1, k=2)
    reference = [torch.nn.Parameter(w.clone()) for w in weights]
    plain = Teon(reference, lr=.1, k=2)
    last = rank == ranks - 1
    end = signal.SIGSTOP if where == "stopped" else signal.SIGKILL
    for step in range(1, 5):
        for p, q in zip(params, reference):
            q.grad = torch.randn(12, 8)
            p.grad = DTensor.from_local(q.grad.chunk(ranks)[rank], mesh, [Shard(0)])
        if last and step == 3:
            if where in ("before", "stopped"):
                os.kill(os.getpid(), end)
            method = {"gather": "gather", "scatter": "scatter"}[where]
            setattr(distribution.Route, method, lambda *_: os.kill(os.getpid(), end))
        try:
            optimizer.step()
        except (RuntimeError, ValueError) as error:
            print("the step failed:", type(error).__name__, error)
            sys.stdout.flush()
            os._exit(3)
        plain.step()
        local = [p.to_local().clone() for p in params]
        for p, q in zip(local, reference):
            begin, end_row = distribution.sharding_of(params[0], "w").boxes[rank][1]
            assert_close(p, q[begin:end_row], f"step {step}")
        torch.save(local, f"{folder}/step-{step}-rank-{rank}")


if __name__ == "__main__":
    run_case(globals(), timeout=datetime.timedelta(seconds=60 if sys.argv[4] == "killed" else 600))
