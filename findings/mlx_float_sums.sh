#!/bin/bash
# Guess: MLX's sum of float32 numbers is right to five digits, as NumPy's, PyTorch's and JAX's are.
# Seen:  on a CPU it adds them into a few floats, one after the other: the mean of 50 million ones is 0.336, the
#        gradient norm of a model of 16 million weights is 1.4% too low, the variance 2.8%. A million is right to 0.02%.
# Known: mlx 0.32.4 on Linux's CPU (2026-11); Metal not run. Found by comparing norms that trainers clip by.
. "$(dirname "$0")/lib.sh"
packages "mlx[cpu]==0.32.4" numpy==2.4.6
prints "mean of 50 million ones: mlx 0.336, numpy 1.000
norm of 16 million normal numbers over that in float64: mlx 0.986, numpy 1.000" python - <<'END'
import mlx.core as mx, numpy as np
from mlx.optimizers import clip_grad_norm

print(f"mean of 50 million ones: mlx {mx.ones(50_000_000).mean().item():.3f}, "
      f"numpy {np.ones(50_000_000, np.float32).mean():.3f}")
gradient = np.random.default_rng(0).standard_normal(16_000_000).astype(np.float32)
norms = clip_grad_norm({"weights": mx.array(gradient)}, 1.0)[1].item(), np.sqrt(np.square(gradient).sum())
true = np.sqrt(np.square(gradient.astype(np.float64)).sum())
print("norm of 16 million normal numbers over that in float64: mlx {:.3f}, numpy {:.3f}".format(*norms / true))
END
