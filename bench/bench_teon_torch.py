#!/usr/bin/env python3
"""Measures scripts/teon_torch on CPUs beside other optimizers:  python3 bench/bench_teon_torch.py --dion D --modded M

    --dion PATH     a checkout of https://github.com/microsoft/dion, whose Muon is measured too
    --modded PATH   a checkout of https://github.com/KellerJordan/modded-nanogpt, whose NorMuonAndAdam is measured too
    --layers N      layers of GPT-2 124M (12)
    --ranks N,N     ranks, processes with one thread each (threads that wait use processor time), joined by gloo (1,2,4)
    --only TEXT     optimizers whose names contain this text
    --repeats N     steps that are measured, after one that is not (3)

Prints, for each optimizer and number of ranks,
    cpu s       processor seconds of a step, all ranks together, the smallest of the repeats
    MB sent     what the rank that sends most sends to others in a step: in all-to-alls as counted; in all-gathers and
                reduce-scatters as a ring sends them
    MB state    the state of the rank that has most
    MB peak     that state and the growth of the process's memory in a step (Linux)
    ms hash     processor time of teon_torch's comparison of the ranks before a step

A peer without a PATH is skipped by name. dion's lists of all-to-alls, which gloo lacks, are sent as one tensor each.
modded-nanogpt's optimizer needs Triton on a GPU; here three of its products are torch's, its matrices are in banks of
one shape, and its averages of gradients, which other optimizers leave to DistributedDataParallel, are sums.
"""
if __name__ == "__main__":
    from begin import startup

import argparse
import ast
import ctypes
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
import types

from common.arguments import Parser

try:
    import torch
    import torch.distributed as dist
    from teon_torch import Teon
    from teon_torch.distribution import Agreement, as_local
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
except ImportError as missing:
    sys.exit(f"bench_teon_torch: error: {missing}; install dev/requirements-dev.txt into .venv")

WIDTH = 768
SHAPES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH),
          "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH)}
BF16 = {"ns_dtype": torch.bfloat16}
# Names, K, options of Teon. "standard" does the same products as torch.optim.Muon and dion's Muon.
ONE_RANK = ("Teon K = 2, float", "Muon of teon_torch, standard")
OURS = {"Teon K = 2, float": (2, {}), "Teon K = 2": (2, BF16), "Muon of teon_torch": (1, BF16),
        "Muon of teon_torch, standard": (1, BF16 | {"ns_form": "standard"}),
        "NorMuon of teon_torch": (1, BF16 | {"nesterov": True, "neuron_norm": True, "cautious_weight_decay": True})}


@dataclasses.dataclass
class Job:
    """What a rank measures: an optimizer, and how its matrices lie on ranks (plain, FSDP2, DDP, ZeRO-1)."""
    name: str
    way: str
    layers: int
    repeats: int
    path: str  # of a peer's checkout


def groups_of(job, mesh, k=1):
    """Returns Teon's groups of GPT-2's matrices, with gradients."""
    def place(x):
        return distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None) if job.way == "FSDP2" else x
    groups = []
    for role, shape in SHAPES.items():
        params = [torch.nn.Parameter(place(torch.randn(shape) / WIDTH ** .5)) for _ in range(job.layers)]
        for p in params:
            p.grad = place(torch.randn(shape))
        groups.append({"params": params, "role": role, "k": k if role in ("q", "k", "v") else 1})
    return groups


def teon(job, mesh):
    k, options = OURS[job.name]
    if job.way in ("DDP", "ZeRO-1"):
        options = options | {"process_group": dist.group.WORLD, "shard": "optimizer" if job.way == "ZeRO-1" else "none"}
    return Teon(groups_of(job, mesh, k), **options)


def torch_muon(job, mesh):
    return torch.optim.Muon([p for group in groups_of(job, mesh) for p in group["params"]])


def dion_muon(job, mesh):
    sys.path.insert(0, job.path)
    from dion import Muon
    params = [p for group in groups_of(job, mesh) for p in group["params"]]
    return Muon(params, distributed_mesh={"plain": None, "FSDP2": mesh, "DDP": dist.group.WORLD}[job.way])


class Banks:
    """modded-nanogpt's NorMuonAndAdam for banks of the same matrices."""

    def __init__(self, job):
        with open(os.path.join(job.path, "train_gpt.py")) as file:
            parts = ast.parse(file.read()).body
        wanted = {"polar_express_coeffs", "polar_express", "ParamConfig", "NorMuonAndAdam"}
        parts = [part for part in parts if wanted & {getattr(part, "name", ""), *(
            getattr(target, "id", "") for target in getattr(part, "targets", []))}]
        sums = types.SimpleNamespace(**{name: getattr(dist, name) for name in dir(dist) if not name.startswith("__")})
        sums.ReduceOp = types.SimpleNamespace(AVG=dist.ReduceOp.SUM)
        names = {"torch": torch, "Tensor": torch.Tensor, "nn": torch.nn, "dist": sums,
                 "dataclass": dataclasses.dataclass, "ba_plus_cAA": self.polynomial,
                 "XXT": lambda x, out: torch.matmul(x, x.mT, out=out),
                 "XTX": lambda x, out: torch.matmul(x.mT, x, out=out)}
        exec(compile(ast.Module(parts, []), "train_gpt.py", "exec"), names)
        self.params = []
        for label, role, count in (("attention", "q", 4), ("up", "up", 1), ("down", "down", 1)):
            size = (count * job.layers, *SHAPES[role])
            p = torch.nn.Parameter((torch.randn(size) / WIDTH ** .5).bfloat16())
            p.label, p.reshape, p.gradient = label, size, torch.randn(size).bfloat16()
            self.params.append(p)
        labels = [p.label for p in self.params]
        table = {label: {"optim": "normuon", "comms": "sharded"} for label in labels}
        rates = {"lr": .02, "weight_decay": .1, "momentum": .95, "beta2": .95}
        self.optimizer = names["NorMuonAndAdam"](zip(labels, self.params), table, labels, labels, {"lr": 0}, rates)
        self.state = self.optimizer.param_states

    @staticmethod
    def polynomial(a, alpha, beta, out):
        torch.baddbmm(a, a, a, alpha=alpha, beta=beta, out=out)

    def step(self):
        for p in self.params:
            p.grad = p.gradient
        self.optimizer.step()


# Of each peer: the ways, the option with its checkout, and what makes it.
PEERS = {"torch.optim.Muon": (["plain", "DDP"], None, torch_muon),
         "dion's Muon": (["plain", "FSDP2", "DDP"], "dion", dion_muon),
         "modded-nanogpt's NorMuon": (["plain", "ZeRO-1"], "modded", lambda job, mesh: Banks(job))}


class Traffic:
    """Counts the bytes that this process sends to other ranks."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.sent, self.hashing = rank, ranks, 0, 0.0
        originals = {name: getattr(dist, name) for name in ("all_to_all_single", "all_gather", "all_gather_into_tensor",
                                                            "reduce_scatter_tensor")}

        def all_to_all_single(received, x, sizes_in=None, sizes_out=None, group=None, async_op=False):
            sizes = sizes_out or [len(x) // ranks] * ranks
            row = x.nbytes // max(1, len(x))
            self.sent += row * sum(size for to, size in enumerate(sizes) if to != rank)
            return originals["all_to_all_single"](received, x, sizes_in, sizes_out, group, async_op=async_op)

        def all_to_all(outputs, inputs, group=None, async_op=False):
            received = torch.cat([x.flatten() for x in outputs])
            all_to_all_single(received, torch.cat([x.flatten() for x in inputs]), [x.numel() for x in outputs],
                              [x.numel() for x in inputs], group)
            for x, part in zip(outputs, received.split([x.numel() for x in outputs])):
                x.copy_(part.view_as(x))
            return types.SimpleNamespace(wait=lambda: None)

        def ring(name, bytes_of):
            def counted(*arguments, **options):
                # The hashes of Agreement have 8 bytes.
                self.sent += bytes_of(*arguments[:2]) if arguments[1].nbytes > 8 else 0
                work = originals[name](*arguments, **options)
                # gloo's has no future; modded-nanogpt waits for one.
                return types.SimpleNamespace(wait=work.wait, get_future=lambda: work) if work else None
            return counted
        dist.all_to_all_single, dist.all_to_all = all_to_all_single, all_to_all
        dist.all_gather = ring("all_gather", lambda _, x: x.nbytes * (ranks - 1))
        dist.all_gather_into_tensor = ring("all_gather_into_tensor", lambda _, x: x.nbytes * (ranks - 1))
        dist.reduce_scatter_tensor = ring("reduce_scatter_tensor", lambda received, _: received.nbytes * (ranks - 1))
        check = Agreement.check

        def timed(agreement, rows):
            begin = time.process_time()
            check(agreement, rows)
            self.hashing += time.process_time() - begin
        Agreement.check = timed


def resident_bytes(name):
    """Returns this process's memory: VmRSS now, VmHWM at most since clear_peak()."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))


def clear_peak():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def state_bytes(optimizer):
    return sum(as_local(x).nbytes for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x))


def measure_rank(job, rank, ranks, store):
    """Measures a job; rank 0 prints its row."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mesh = None
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,))
    traffic = Traffic(rank, ranks)
    make = teon if job.name in OURS else PEERS[job.name][2]
    optimizer = make(job, mesh)
    optimizer.step()
    clear_peak()
    traffic.sent, traffic.hashing, before = 0, 0.0, resident_bytes("VmRSS")
    seconds = []
    for repeat in range(job.repeats):
        begin = time.process_time()
        optimizer.step()
        seconds.append(time.process_time() - begin)
        if repeat == 0:
            peak = resident_bytes("VmHWM") - before
            sent, hashing = traffic.sent, traffic.hashing
    state = state_bytes(optimizer)
    cpu = torch.tensor(seconds, dtype=torch.float64)
    largest = torch.tensor([sent / 1e6, state / 1e6, (state + peak) / 1e6, 1e3 * hashing], dtype=torch.float64)
    if ranks > 1:
        dist.all_reduce(cpu)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    if rank == 0:
        columns = " | ".join(f"{x:.1f}" for x in largest)
        print(f"| {job.name} | {ranks} | {job.way} | {cpu.min():.2f} | {columns} |", flush=True)
    if ranks > 1:
        dist.barrier()
    os._exit(0)  # gloo's threads may outlive the interpreter


def jobs_of(arguments):
    """Yields (job, ranks); names the peers that are skipped."""
    for ranks in map(int, arguments.ranks.split(",")):
        for name in [*OURS, *PEERS]:
            if arguments.only not in name or name in ONE_RANK and ranks > 1:
                continue
            ways, option, _ = PEERS.get(name, (["plain", "FSDP2", "DDP", "ZeRO-1"], None, None))
            path = getattr(arguments, option) if option else ""
            if path is None:
                print(f"skipped: {name} needs --{option} PATH")
                continue
            if name.startswith("modded") and arguments.layers % ranks:
                print(f"skipped: {name} divides {arguments.layers} layers by {ranks} ranks without remainder only")
                continue
            for way in ways:
                if (way == "plain") == (ranks == 1):
                    yield Job(name, way, arguments.layers, arguments.repeats, path), ranks


def main():
    parser = Parser(__doc__)
    parser.add_argument("--dion")
    parser.add_argument("--modded")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--only", default="")
    parser.add_argument("--job", nargs=8, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        name, way, layers, repeats, path, rank, ranks, store = arguments.job
        measure_rank(Job(name, way, int(layers), int(repeats), path), int(rank), int(ranks), store)
    print("| optimizer | ranks | | cpu s | MB sent | MB state | MB peak | ms hash |\n|---|---|---|---|---|---|---|---|",
          flush=True)
    for job, ranks in jobs_of(arguments):
        with tempfile.TemporaryDirectory() as folder:
            words = [str(word) for word in dataclasses.astuple(job)]
            workers = [subprocess.Popen([sys.executable, __file__, "--job", *words, str(rank), str(ranks),
                                         f"{folder}/store"]) for rank in range(ranks)]
            statuses = [worker.wait() for worker in workers]
            if any(statuses):
                sys.exit(f"bench_teon_torch: error: {job.name}, {job.way}: a rank failed")


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
