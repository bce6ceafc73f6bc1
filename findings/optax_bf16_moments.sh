#!/bin/bash
# Guess: optax.adam on bfloat16 parameters is a noisier Adam: its second moment forgets an early, large gradient as in
#        float32, within some thousand steps.
# Seen:  the second moment has the parameters' type, in which the default b2 of 0.999 is rounded to 1: it never decays.
#        After one gradient of 100 and 5,000 gradients of 1, updates are a third of float32's, and stay so.
# Known: optax 0.2.8 with jax 0.10.2 (2026-11); mu_dtype chooses the first moment's type, nothing the second's.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
prints "float32: second moment 10.0 after 1 step, 1.1 after 5,000 more; update 0.00097
bfloat16: second moment 10.0 after 1 step, 10.0 after 5,000 more; update 0.00032" python - <<'END'
import jax, jax.numpy as jnp, optax

for dtype in (jnp.float32, jnp.bfloat16):
    adam = optax.adam(1e-3)
    step = jax.jit(adam.update)
    _, state = step(jnp.full(4, 100, dtype), adam.init(jnp.zeros(4, dtype)))
    first = float(state[0].nu[0])
    for _ in range(5000):
        update, state = step(jnp.ones(4, dtype), state)
    print(f"{dtype.__name__}: second moment {first:.1f} after 1 step, {float(state[0].nu[0]):.1f} after 5,000 more; "
          f"update {-float(update[0]):.2g}")
END
