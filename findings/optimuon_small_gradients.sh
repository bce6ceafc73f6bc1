#!/bin/bash
# Guess: Muon orthogonalizes its momentum, so gradients of any size, 1e-2 or 1e-8, move a float matrix equally far, as
#        with torch.optim.Muon.
# Seen:  with optimuon's defaults elements of 1e-7 move it 0.39 times as far and of 1e-8 not at all: it casts to
#        float16, whose smallest number is 6e-8, before it normalizes. torch.optim.Muon moves it as far to 1e-8
#        (bfloat16).
# Known: optimuon 0.1.1, torch 2.15.0 (2026-11). Found by measuring each package's step against the size of gradients.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 optimuon==0.1.1
prints "gradients of 0.01: optimuon 8.1, torch 7.0
gradients of 1e-07: optimuon 3.2, torch 7.0
gradients of 1e-08: optimuon 0.0, torch 7.1" python - <<'END'
import optimuon
import torch

gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
for size in (1e-2, 1e-7, 1e-8):
    moved = []
    for make in (lambda p: optimuon.Muon([p], lr=1.0, normuon=False), lambda p: torch.optim.Muon([p], lr=1.0)):
        p = torch.nn.Parameter(torch.zeros(64, 64))
        p.grad = size * gradient
        make(p).step()
        moved.append(p.norm().item())
    print("gradients of {}: optimuon {:.1f}, torch {:.1f}".format(size, *moved))
END
