#!/bin/bash
# Guess: Muon's weight_decay shrinks weights by learning rate x decay a step, as in every other Muon: with a gradient of
#        zero and a rate of 0.1, decays of 0.0001 and 1 move the weights by 0.001% and 10%.
# Seen:  MLX adds decay x weight to the gradient before it orthogonalizes. That divides by the size, so with a gradient
#        of zero every decay moves the weights by the same distance, and in training the decay changes the direction of
#        the update instead of shrinking anything.
# Known: mlx 0.32.4 (2026-11); earlier ones not run. Found by comparing 20 packages' Muons, of which one does this.
. "$(dirname "$0")/lib.sh"
packages "mlx[cpu]==0.32.4" numpy==2.4.6
prints "decay 0: moved by 0.0% of the weights' norm
decay 0.0001: moved by 1.6% of the weights' norm
decay 0.01: moved by 1.6% of the weights' norm
decay 1: moved by 1.6% of the weights' norm" python - <<'END'
import mlx.core as mx, mlx.optimizers, numpy as np

w = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
for decay in (0, 1e-4, 0.01, 1):
    muon = mlx.optimizers.Muon(learning_rate=0.1, weight_decay=decay)
    after = np.array(muon.apply_gradients({"w": mx.zeros((32, 32))}, {"w": mx.array(w)})["w"])
    print(f"decay {decay:g}: moved by {np.linalg.norm(after - w) / np.linalg.norm(w):.1%} of the weights' norm")
END
