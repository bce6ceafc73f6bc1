#!/bin/bash
# Guess: a million normal numbers that JAX draws in bfloat16 are those of float32 with fewer digits: mean 0, the
#        largest about 4.9.
# Seen:  they are made from uniform numbers of 7 bits. There are 128 different ones, the largest is 2.5, the smallest
#        -2.9, and their mean is -0.012, twelve standard errors below 0: so begins a model with a bfloat16 param_dtype.
#        bernoulli with a probability of 0.001 in bfloat16 gives eight times as many.
# Known: jax 0.10.2 (2026-11); earlier ones not run. Found by looking at the initial weights of other trainers.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2
prints "float32: mean +0.000, from -5.1 to 4.8, more than 1000 values
bfloat16: mean -0.012, from -2.9 to 2.5, 128 values" python - <<'END'
import jax, jax.numpy as jnp, numpy as np

for dtype in (jnp.float32, jnp.bfloat16):
    drawn = np.asarray(jax.nn.initializers.normal(1.0)(jax.random.key(2), (1_000_000,), dtype), np.float64)
    values = len(np.unique(drawn))
    print(f"{dtype.__name__}: mean {drawn.mean():+.3f}, from {drawn.min():.1f} to {drawn.max():.1f}, "
          f"{values if values < 1000 else 'more than 1000'} values")
END
