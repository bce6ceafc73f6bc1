#!/bin/bash
# Guess: sampling from bfloat16 logits is off by their rounding: of 1000 equal tokens each is drawn equally often.
# Seen:  jax.random.categorical draws its noise in the logits' type. bfloat16 has so few values that the largest noise
#        is often tied, and the first of the tied tokens wins: the first tenth of the tokens gets half of the draws, the
#        last tenth almost none. float16 has the fault to a lesser degree. Convert logits to float32.
# Known: jax 0.10.2, CPU, default mode (2026-11); earlier ones not run. Found by comparing six samplers.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
prints "float32: first tenth of the tokens 0.09 of the draws, last tenth 0.10, tokens drawn 1000
float16: first tenth of the tokens 0.15 of the draws, last tenth 0.07, tokens drawn 1000
bfloat16: first tenth of the tokens 0.54 of the draws, last tenth 0.00, tokens drawn 722" python - <<'END'
import jax, jax.numpy as jnp, numpy as np

for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
    drawn = np.asarray(jax.random.categorical(jax.random.key(0), jnp.zeros(1000, dtype), shape=(20_000,)))
    print(f"{dtype.__name__}: first tenth of the tokens {np.mean(drawn < 100):.2f} of the draws, "
          f"last tenth {np.mean(drawn >= 900):.2f}, tokens drawn {len(np.unique(drawn))}")
END
