#!/bin/bash
# Guess: with gradient_accumulation_steps=4 a learning rate schedule advances once per update of the weights.
# Seen:  it advances once per batch: a schedule of 10 steps is at its end after 2.5 updates, and the first update
#        already has the fourth rate. A warm-up is skipped in the same way.
# Known: keras 3.15.1 (2026-11), backend JAX; earlier ones not run. Found by comparing schedules of other trainers.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 keras==3.15.1
prints "without accumulation, 10 batches: 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1
4 batches an update, 40 batches: 0.7, 0.3 and 8 updates of 0" env KERAS_BACKEND=jax python - <<'END'
import keras, numpy as np

for batches, options in ((10, {}), (40, {"gradient_accumulation_steps": 4})):
    rate = keras.optimizers.schedules.PolynomialDecay(1.0, decay_steps=10, end_learning_rate=0.0)
    sgd, weight = keras.optimizers.SGD(rate, **options), keras.Variable(np.zeros(1, np.float32))
    sgd.build([weight])
    values = [0.0]
    for _ in range(batches):
        sgd.apply([keras.ops.ones(1)], [weight])
        values.append(float(weight[0]))
    moved = [f"{a - b:.2g}" for a, b in zip(values, values[1:]) if a != b]
    print(f"4 batches an update, {batches} batches:" if options else f"without accumulation, {batches} batches:",
          ", ".join(moved) + (f" and {batches // 4 - len(moved)} updates of 0" if options else ""))
END
