#!/bin/bash
# Guess: the gradients of a bfloat16 LayerNorm's weight and bias are sums over all rows, right within a percent, as
#        those of a Linear's bias are.
# Seen:  on a CPU they are added in bfloat16, row by row, and stop growing: with 4,096 tokens in a batch the bias gets
#        46% of its gradient, with 65,536 4%. RMSNorm, GroupNorm and Linear are right.
# Known: torch 2.15.0 (2026-11), CPU, 2 threads (more threads have more sums, each of which stops later). Found by
#        adding 100,000 ones in every operation that training uses.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0
prints "4096 rows: LayerNorm's bias 0.46 of its gradient, Linear's 1.00
65536 rows: LayerNorm's bias 0.04 of its gradient, Linear's 1.00" python - <<'END'
import torch

torch.set_num_threads(2)
torch.manual_seed(0)
for rows in (4096, 65536):
    gradient = torch.randn(rows, 768).abs().bfloat16()
    true = gradient.double().sum(0)
    shares = []
    for module in (torch.nn.LayerNorm(768), torch.nn.Linear(768, 768)):
        module = module.bfloat16()
        module(torch.randn(rows, 768).bfloat16()).backward(gradient)
        shares.append((module.bias.grad.double() / true).mean().item())
    print("{} rows: LayerNorm's bias {:.2f} of its gradient, Linear's {:.2f}".format(rows, *shares))
END
