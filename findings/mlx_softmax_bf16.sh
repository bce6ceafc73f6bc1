#!/bin/bash
# Guess: a softmax over a vocabulary sums to 1, in bfloat16 within a percent.
# Seen:  MLX's on a CPU adds the exponentials in bfloat16, 256 + 1 being 256: that of 50,257 equal logits sums to 196.
#        24.5 in float16, where it stops at 2048. precise=True gives 1.0; logsumexp is right without it. The mean of
#        70,000 ones in float16 is infinite.
# Known: mlx 0.32.4 on Linux's CPU (2026-11); Metal not run. Found by adding ones in every operation of sampling.
. "$(dirname "$0")/lib.sh"
packages "mlx[cpu]==0.32.4" numpy==2.4.6
prints "float32: softmax sums to 1.0, precise 1.0, logsumexp 10.8, mean of ones 1.0
bfloat16: softmax sums to 196.3, precise 1.0, logsumexp 10.8, mean of ones 1.0
float16: softmax sums to 24.5, precise 1.0, logsumexp 10.8, mean of ones inf" python - <<'END'
import mlx.core as mx

for dtype in (mx.float32, mx.bfloat16, mx.float16):
    logits = mx.zeros(50257, dtype)
    sums = [mx.softmax(logits, precise=precise).astype(mx.float32).sum().item() for precise in (False, True)]
    print(f"{str(dtype).split('.')[-1]}: softmax sums to {sums[0]:.1f}, precise {sums[1]:.1f}, "
          f"logsumexp {mx.logsumexp(logits).item():.1f}, mean of ones {mx.ones(70000, dtype).mean().item():.1f}")
END
