#!/bin/bash
# Guess: a block of tiny numbers, quantized to MX formats and back, is zeros or nearly the same tiny numbers.
# Seen:  MLX writes the block's scale (E8M0, an exponent in one byte) without a lower limit: from 2^-120 downwards in
#        mxfp8 and from 2^-126 in mxfp4 the byte wraps around, and the block comes back as infinity or 1e37. A block of
#        zeros does not.
# Known: mlx 0.32.4, CPU (2026-11); earlier ones not run. Found by comparing block scales of four libraries.
. "$(dirname "$0")/lib.sh"
packages "mlx[cpu]==0.32.4" numpy==2.4.6
prints "mxfp8 (the scale's byte): 0 -> 0 (127), 1e-30 -> 9.86e-31 (19), 7.52e-37 -> inf (255), 1e-40 -> 1.2e+37 (242)
mxfp4 (the scale's byte): 0 -> 0 (127), 1e-30 -> 1.18e-30 (25), 1.18e-38 -> inf (255), 1e-40 -> 1.06e+37 (248)" \
    python - <<'END'
import mlx.core as mx, numpy as np

for mode, bound in (("mxfp8", 2**-120), ("mxfp4", 2**-126)):
    found = []
    for value in (0, 1e-30, bound, 1e-40):
        packed, scales = mx.quantize(mx.full((1, 32), value, dtype=mx.float32), group_size=32, mode=mode)
        back = mx.dequantize(packed, scales, group_size=32, mode=mode, dtype=mx.float32)
        found.append(f"{value:.3g} -> {np.array(back)[0, 0]:.3g} ({np.array(scales)[0, 0]})")
    print(f"{mode} (the scale's byte):", ", ".join(found))
END
