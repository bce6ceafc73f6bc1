#!/bin/bash
# Guess: optax's cross entropy of label -100, which PyTorch and the collators of transformers give to tokens that do not
#        count, is NaN, 0 or an error.
# Seen:  it is the loss of token V - 100: negative labels count from the end, as indices of arrays do. With a vocabulary
#        of 50,257 the model learns to answer every prompt and padding with token 50,157. Label V and above are NaN.
# Known: optax 0.2.8 with jax 0.10.2 (2026-11); where a vocabulary has fewer than 100 tokens it is NaN. Found by giving
#        one batch to several losses.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
prints "label -100: loss 10.82, gradient of token 50157 -1.00
label 50257: loss nan" python - <<'END'
import jax, jax.numpy as jnp, optax

def loss(logits, label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([label])).mean()

logits = jnp.zeros((1, 50257))
value, gradient = jax.value_and_grad(loss)(logits, -100)
print(f"label -100: loss {value:.2f}, gradient of token {gradient.argmin()} {gradient.min():.2f}")
print(f"label 50257: loss {loss(logits, 50257):.2f}")
END
