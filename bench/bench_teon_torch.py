#!/usr/bin/env python3
"""Measures scripts/teon_torch on a CPU beside other optimizers:  python3 bench/bench_teon_torch.py --layers 2

    --dion PATH     a checkout of https://github.com/microsoft/dion, whose Muon is measured too
    --layers N      layers of GPT-2 124M; all costs are proportional to it (12)
    --ranks N,N     ranks of the second table (2,4)

The first table has the processor seconds of a step (all threads), the smallest of --repeats after a first step; the
optimizers take turns. "modded-nanogpt's form" is NorMuon with cautious decay in bfloat16, computed by teon_torch. The
second table has, for each rank, the bytes sent in a step, counted at all_to_all_single, the growth of the process's
peak memory in a step (Linux), and the processor time of the comparison of hashes.
"""
if __name__ == "__main__":
    import os
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts"))
    import startup

    startup.begin()

import argparse
import os
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    from teon_torch import Teon
    from teon_torch.distribution import Agreement, as_local
except ImportError as missing:
    sys.exit(f"bench_teon_torch: error: {missing}; install scripts/requirements-dev.txt into .venv")

WIDTH = 768
SHAPES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH),
          "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH)}
BF16 = {"ns_dtype": torch.bfloat16}
MODDED = BF16 | {"neuron_norm": True, "cautious_weight_decay": True}


def groups_of(layers, k, place=lambda x: x):
    """Returns Teon's groups of GPT-2's matrices, with gradients."""
    groups = []
    for role, shape in SHAPES.items():
        params = [torch.nn.Parameter(place(torch.randn(shape) / WIDTH ** .5)) for _ in range(layers)]
        for p in params:
            p.grad = place(torch.randn(shape))
        groups.append({"params": params, "role": role, "k": k if role in ("q", "k", "v") else 1})
    return groups


def subjects(layers, dion):
    def matrices():
        return [p for group in groups_of(layers, 1) for p in group["params"]]

    made = {"Teon, K = 2, float": Teon(groups_of(layers, 2)),
            "Teon, K = 2, bfloat16": Teon(groups_of(layers, 2), **BF16),
            "Muon of teon_torch, bfloat16": Teon(groups_of(layers, 1), **BF16),
            "modded-nanogpt's form, bfloat16": Teon(groups_of(layers, 1), **MODDED),
            "torch.optim.Muon, bfloat16": torch.optim.Muon(matrices())}
    if dion:
        sys.path.insert(0, dion)
        from dion import Muon
        made["dion's Muon, bfloat16"] = Muon(matrices())
    return made


def compare_optimizers(arguments):
    made = subjects(arguments.layers, arguments.dion)
    seconds = {name: [] for name in made}
    for repeat in range(arguments.repeats + 1):  # the first makes the state
        for name, optimizer in made.items():
            begin = time.process_time()
            optimizer.step()
            seconds[name].append(time.process_time() - begin)
    print(f"{'processor seconds of a step':<34} {arguments.layers} layers, {torch.get_num_threads()} threads")
    for name, values in seconds.items():
        print(f"{name:<34} {min(values[1:]):8.2f}")


def resident_bytes(name):
    """Returns this process's memory: VmRSS now, VmHWM at most since clear_peak()."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))


def clear_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def measure_rank(rank, ranks, store, layers):
    """Prints a row for each way of distribution, on rank 0 the largest of all ranks."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    sent, hashing = [0], [0.0]
    exchange, check = dist.all_to_all_single, Agreement.check

    def counted(received, x, sizes_in, sizes_out, group, async_op):
        sent[0] += x.element_size() * sum(size for to, size in enumerate(sizes_out) if to != rank)
        return exchange(received, x, sizes_in, sizes_out, group, async_op=async_op)

    def timed(self, rows):
        begin = time.process_time()
        check(self, rows)
        hashing[0] += time.process_time() - begin
    dist.all_to_all_single, Agreement.check = counted, timed

    ways = {"FSDP2": ({}, lambda x: distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)),
            "DDP": ({"process_group": dist.group.WORLD}, lambda x: x),
            "DDP, ZeRO-1": ({"process_group": dist.group.WORLD, "shard": "optimizer"}, lambda x: x)}
    for name, (options, place) in ways.items():
        # One Newton-Schulz step: what is sent and kept does not depend on their number.
        optimizer = Teon(groups_of(layers, 2, place), ns_steps=1, **options)
        optimizer.step()
        state = sum(as_local(x["momentum"]).nbytes for x in optimizer.state.values() if x)
        clear_peak()
        sent[0], hashing[0], before = 0, 0.0, resident_bytes("VmRSS")
        optimizer.step()
        row = torch.tensor([sent[0], state, resident_bytes("VmHWM") - before, hashing[0]], dtype=torch.float64)
        dist.all_reduce(row, dist.ReduceOp.MAX)
        if rank == 0:
            print(f"{ranks} ranks, {name:<12} {row[0] / 1e6:9.1f} {row[1] / 1e6:9.1f} {row[2] / 1e6:9.1f} "
                  f"{1e3 * row[3]:9.2f}")
    dist.barrier()
    dist.destroy_process_group()


def compare_distributions(arguments):
    columns = " ".join(f"{word:>9}" for word in ("MB sent", "MB state", "MB peak", "ms hash"))
    print(f"{'largest of the ranks':<21} {columns}", flush=True)
    for ranks in map(int, arguments.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--layers", str(arguments.layers), "--rank"]
            workers = [subprocess.Popen([*command, f"{rank},{ranks},{folder}/store"]) for rank in range(ranks)]
            statuses = [worker.wait() for worker in workers]
            if any(statuses):
                sys.exit("bench_teon_torch: error: a rank failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dion")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank, ranks, store = arguments.rank.split(",")
        measure_rank(int(rank), int(ranks), store, arguments.layers)
        return
    compare_optimizers(arguments)
    compare_distributions(arguments)


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
