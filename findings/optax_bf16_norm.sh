#!/bin/bash
# Guess: the norm that optax clips by is right within a percent for bfloat16 gradients: each has three digits.
# Seen:  optax adds the squares of all tensors in the gradients' type. From 256 on, adding 1 changes nothing in
#        bfloat16: the norm of 1000 tensors of norm 1 is 16 instead of 31.6, and clipping at 20 does nothing. The more
#        tensors a model has, the less it is clipped.
# Known: optax 0.2.8 with jax 0.10.2 (2026-11); earlier ones not run. Found by comparing how trainers clip.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
prints "float32: norm 31.62, after clipping at 20 20.00
bfloat16: norm 16.00, after clipping at 20 31.62" python - <<'END'
import jax.numpy as jnp, numpy as np, optax

for dtype in (jnp.float32, jnp.bfloat16):
    gradients = [jnp.full(64, 0.125, dtype)] * 1000
    clipped, _ = optax.clip_by_global_norm(20.0).update(gradients, optax.EmptyState())
    true = np.sqrt(sum(np.square(np.asarray(g, np.float64)).sum() for g in clipped))
    print(f"{dtype.__name__}: norm {float(optax.global_norm(gradients)):.2f}, after clipping at 20 {true:.2f}")
END
