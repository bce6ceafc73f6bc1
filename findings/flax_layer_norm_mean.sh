#!/bin/bash
# Guess: LayerNorm in float32 is right to four digits for rows with a mean of 300 and a deviation of 1.
# Seen:  Flax's (linen and nnx) computes the variance as E[x^2] - E[x]^2, in which float32 loses the deviation beside a
#        large mean: an error of 0.02 at a mean of 300, and of 1000 at 3000, where the variance is zero or less. With
#        use_fast_variance=False, and in Keras on the same JAX, it is 0.001.
# Known: flax 0.12.8, jax 0.10.2 and keras 3.15.1 (2026-11). Found by feeding six libraries' norms rows with a mean.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 keras==3.15.1
export KERAS_BACKEND=jax
prints "mean 0: every error below 0.001
mean 300: Flax off by more than 0.01, the others by less than 0.001
mean 3000: Flax off by more than 100, the others by less than 0.001" python - <<'END'
import flax.nnx as nnx, keras, numpy as np

for mean in (0, 300, 3000):
    rows = (np.random.default_rng(0).standard_normal((4, 768)) + mean).astype(np.float32)
    exact = rows.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    error = lambda norm: np.abs(np.asarray(norm(rows), np.float64) - exact).max()
    fast = error(nnx.LayerNorm(768, epsilon=1e-5, rngs=nnx.Rngs(0)))
    others = max(error(nnx.LayerNorm(768, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0))),
                 error(keras.layers.LayerNormalization(epsilon=1e-5)))
    below = lambda x: next(limit for limit in (0.001, 0.01, 0.1) if x < limit)
    above = lambda x: next(limit for limit in (100, 0.01) if x > limit)
    print(f"mean {mean}: " + (f"every error below {below(max(fast, others))}" if mean == 0 else
                             f"Flax off by more than {above(fast)}, the others by less than {below(others)}"))
END
