#!/bin/bash
# Guess: NumPy's mean of 1000 ones in bfloat16 is 1, as it is in float16.
# Seen:  it is 0.256. NumPy computes float16's mean in float32 by a rule of its own, which the types of ml_dtypes, of
#        which bfloat16 arrays of safetensors, JAX and TensorFlow are, do not have: sum stops at 256, mean divides that
#        by 1000, var and std of equal numbers are not 0. A product of matrices and norm are right.
# Known: numpy 2.4.6 with ml_dtypes 0.6.0 (2026-11). Found when a checkpoint's weights seemed to have shrunk.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 ml_dtypes==0.6.0
prints "float16: mean 1.000, std 0.000, norm 31.6
bfloat16: mean 0.256, std 0.504, norm 31.6
float8_e4m3fn: mean 0.016, std 0.125, norm 31.6" python - <<'END'
import ml_dtypes, numpy as np

for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
    ones = np.ones(1000, dtype)
    print(f"{dtype.__name__}: mean {float(ones.mean()):.3f}, std {float(ones.std()):.3f}, "
          f"norm {float(np.linalg.norm(ones.astype(np.float32) if ones.itemsize == 1 else ones)):.1f}")
END
