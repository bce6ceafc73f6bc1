#!/bin/bash
# Guess: conversion of float32 to bfloat16 rounds to the nearest value, ties to even, as everywhere.
# Seen:  OpenVINO rounds up only if the upper half of the word is odd: of a value that is more than half way to its
#        neighbour, one whose upper half is even is cut off. A quarter of random numbers come out one unit nearer to
#        zero, none farther, so converted weights are smaller on average.
# Known: openvino 2026.4.1, CPU plugin, evaluation and constants alike (2026-11); earlier ones not run. Found by
#        comparing 456,724 values in eleven libraries, of which the other ten agree.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 ml_dtypes==0.6.0 openvino==2026.4.1
prints "1.00585938 becomes 1 (nearest: 1.0078125)
1.01367188 becomes 1.015625 (nearest: 1.015625)
of 100,000 normal numbers: 25% one unit nearer to zero than the nearest, 0% farther" python - <<'END'
import ml_dtypes, numpy as np, openvino
from openvino import opset13

x = opset13.parameter([-1], np.float32)
model = openvino.compile_model(openvino.Model([opset13.convert(x, "bf16")], [x]), "CPU")


def bits(values):
    return np.ascontiguousarray(model([values])[0]).view(np.uint16)


two = np.array([1 + 1.5 / 256, 1 + 3.5 / 256], np.float32)
for value, found, nearest in zip(two, bits(two).view(ml_dtypes.bfloat16), two.astype(ml_dtypes.bfloat16)):
    print(f"{value:.9g} becomes {float(found):.9g} (nearest: {float(nearest):.9g})")
many = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
off = bits(many).astype(int) - many.astype(ml_dtypes.bfloat16).view(np.uint16)
print(f"of 100,000 normal numbers: {np.mean(off == -1):.0%} one unit nearer to zero than the nearest, "
      f"{np.mean(off > 0):.0%} farther")
END
