#!/bin/bash
# Guess: a row's gradient of a bfloat16 embedding is the sum of its tokens' gradients within a percent, as every other
#        sum of 1000 ones is in PyTorch, JAX and MLX.
# Seen:  on a CPU all three add one token after the other to the row in bfloat16, where 256 + 1 is 256: a token that
#        occurs 1000 times in a batch has the gradient of 256, a rare one its own. So does what selects rows by indices
#        and adds at them (float16 stops at 2048), but not PyTorch's gather and scatter_add.
# Known: torch 2.15.0, jax 0.10.2 and mlx 0.32.4 (2026-11), CPUs only. Found by comparing losses of weights in bfloat16.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 jax==0.10.2 jaxlib==0.10.2 "mlx[cpu]==0.32.4"
prints "torch: float32 1000, bfloat16 256, bfloat16 by gather 1000
jax: float32 1000, bfloat16 256
mlx: float32 1000, bfloat16 256" python - <<'END'
import jax, jax.numpy as jnp, mlx.core as mx, numpy as np, torch

tokens = np.zeros(1000, np.int32)
def of_torch(dtype, gather=False):
    weight = torch.zeros(2, 1, dtype=dtype, requires_grad=True)
    indices = torch.from_numpy(tokens).long()
    rows = weight.gather(0, indices[:, None]) if gather else torch.nn.functional.embedding(indices, weight)
    rows.sum().backward()
    return int(weight.grad[0, 0])

print(f"torch: float32 {of_torch(torch.float32)}, bfloat16 {of_torch(torch.bfloat16)}, "
      f"bfloat16 by gather {of_torch(torch.bfloat16, gather=True)}")
gradients = [jax.grad(lambda w: w[tokens].sum())(jnp.zeros((2, 1), d))[0, 0] for d in (jnp.float32, jnp.bfloat16)]
print("jax: float32 {:.0f}, bfloat16 {:.0f}".format(*map(float, gradients)))
gradients = [mx.grad(lambda w: w[mx.array(tokens)].sum())(mx.zeros((2, 1), d))[0, 0] for d in (mx.float32, mx.bfloat16)]
print("mlx: float32 {:.0f}, bfloat16 {:.0f}".format(*(g.item() for g in gradients)))
END
