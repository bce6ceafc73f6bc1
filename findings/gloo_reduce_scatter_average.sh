#!/bin/bash
# Guess: reduce_scatter_tensor with ReduceOp.AVG gives the mean over ranks on every backend that accepts it.
# Seen:  gloo's gives the sum in torch 2.8.0, where all_reduce with AVG is the mean. FSDP2 on CPUs, new in that time,
#        reduces so: on R ranks its gradients are R times too large, and clip_grad_norm_ clips R times too early. AdamW
#        does not show it.
# Known: torch 2.7.1 and 2.8.0; 2.10.0 gives the mean (2026-11). Found by comparing logged norms of 1, 2 and 4 ranks.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.8.0
cat >ranks.py <<'END'
import os, torch, torch.distributed as dist, torch.multiprocessing as processes

def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2)
    scattered, reduced = torch.zeros(1), torch.ones(1)
    dist.reduce_scatter_tensor(scattered, torch.ones(2), op=dist.ReduceOp.AVG)
    dist.all_reduce(reduced, op=dist.ReduceOp.AVG)
    if number == 0:
        with open("seen", "w") as file:
            print(f"mean of 1 and 1: reduce_scatter_tensor {scattered.item()}, all_reduce {reduced.item()}", file=file)
    dist.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(rank, (os.getcwd(),), nprocs=2)
END
ranks() {
    python ranks.py >/dev/null && cat seen
}
prints "mean of 1 and 1: reduce_scatter_tensor 2.0, all_reduce 1.0" ranks
