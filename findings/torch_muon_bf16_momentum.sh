#!/bin/bash
# Guess: the momentum of torch.optim.Muon is the usual sum, whatever type the parameters have.
# Seen:  with bfloat16 parameters and nesterov=False the orthogonalization divides the momentum buffer itself by its
#        norm: bfloat16() of a bfloat16 tensor is no copy. After a large gradient and 200 that are 1000 times smaller it
#        still points where the first did; in float32 it has forgotten that.
# Known: torch 2.10.0 and 2.12.0; 2.15.0 copies (2026-11). Found by training 72 tensors in three versions.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.10.0
prints "float32, nesterov True: norm 28.28
float32, nesterov False: norm 28.28
bfloat16, nesterov True: norm 28.25
bfloat16, nesterov False: norm 1.00" python - <<'END'
import torch

for dtype in (torch.float32, torch.bfloat16):
    for nesterov in (True, False):
        weight = torch.nn.Parameter(torch.zeros(4, 8, dtype=dtype))
        muon = torch.optim.Muon([weight], nesterov=nesterov, weight_decay=0)
        weight.grad = torch.full_like(weight, 100)
        muon.step()
        norm = muon.state[weight]["momentum_buffer"].norm()
        print(f"{str(dtype)[6:]}, nesterov {nesterov}: norm {norm:.2f}")
END
