#!/usr/bin/env python3
"""Golden steps of the programs that --like names:  python3 test/golden/make_likes.py

Writes test/golden/likes.safetensors: for every name and matrix, the weights after ten steps from the weights and
gradients of optim.safetensors (layer 0), in float64, each written as that program writes it, with its defaults but the
learning rate, which is LR.
"""

import math
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent
STEPS, LR = 10, 0.05
MATRICES = ("q.0", "up.0", "down.0")  # square, tall, wide

JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
YOU = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
       (2.8366, -3.0525, 1.2012)]
PAPER = [(8.28721201814563, -23.595886519098837, 17.300387312530933),
         (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
         (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
         (3.3184196573706015, -2.488488024314874, 0.51004894012372),
         (2.300652019954817, -1.6689039845747493, 0.4188073119525673)]
DAO = [(a / 1.05, b / 1.05**3, c / 1.05**5) for a, b, c in PAPER]
SAFER = [(8.156554524902461, -22.48329292557795, 15.878769915207462),
         (4.042929935166739, -2.808917465908714, 0.5000178451051316),
         (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
         (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
         (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]


def orthogonalize(g, coefficients, margin=1.0):
    x = g.T if len(g) > len(g[0]) else g
    x = x / (np.linalg.norm(x) * margin + 1e-7)
    for a, b, c in coefficients:
        r = x @ x.T
        x = a * x + (b * r + c * r @ r) @ x
    return x.T if len(g) > len(g[0]) else x


# What is orthogonalized in step t, counted from 1, and the state after it. `m` is a sum or an average.

def plain_sum(m, g, mu, t):
    m = mu * m + g
    return m, m


def nesterov_of_average(m, g, mu, t):  # torch, KellerJordan, DeepSpeed: two lerps
    m = m + (1 - mu) * (g - m)
    return g + mu * (m - g), m


def nesterov_of_sum(m, g, mu, t):  # Moonlight, Keras, gram-newton-schulz
    m = mu * m + g
    return g + mu * m, m


def nesterov_without_bias(m, g, mu, t):  # optax
    m = mu * m + (1 - mu) * g
    return mu * m / (1 - mu**(t + 1)) + (1 - mu) * g / (1 - mu**t), m


def gradient_and_average(m, g, mu, t):  # heavyball
    m = mu * m + (1 - mu) * g
    return g + m, m


def original(m, n):
    return math.sqrt(max(1, m / n))


def spectral(m, n):
    return math.sqrt(m / n)


def rms(size):
    return lambda m, n: size * math.sqrt(max(m, n))


def normuon_of(o, v, beta2):
    """NorMuon as nanochat, modded-nanogpt and optimuon write it: means along the shorter axis; returns o, v."""
    axis = 1 if o.shape[0] >= o.shape[1] else 0
    mean = (o**2).mean(axis, keepdims=True)
    v = v + (1 - beta2) * (mean - v)
    step = 1 / np.sqrt(np.maximum(v, 1e-10))
    norm = math.sqrt(mean.sum() * o.shape[axis])
    after = math.sqrt((mean * o.shape[axis] * step**2).sum())
    return o * step * (norm / after), v


# direction, coefficients, margin, scale, weight decay, momentum
MUONS = {
    "torch": (nesterov_of_average, JORDAN, 1, original, 0.1, 0.95),
    "torch-rms": (nesterov_of_average, JORDAN, 1, rms(0.2), 0.1, 0.95),
    "keller": (nesterov_of_average, JORDAN, 1, original, 0, 0.95),
    "moonlight": (nesterov_of_sum, JORDAN, 1, rms(0.2), 0.1, 0.95),
    "pytorch-optimizer": (nesterov_of_average, JORDAN, 1, original, 0, 0.95),
    "timm": (plain_sum, YOU, 1, rms(0.2), 0, 0.95),
    "dion": (plain_sum, SAFER, 1.02, spectral, 0.01, 0.95),
    "dion-you": (plain_sum, YOU, 1, spectral, 0.01, 0.95),
    "nvidia": (plain_sum, YOU, 1, rms(1), 0.01, 0.95),
    "deepspeed": (nesterov_of_average, JORDAN, 1, original, 0, 0.95),
    "optax": (nesterov_without_bias, JORDAN, 1, original, 0, 0.95),
    "keras": (nesterov_of_sum, JORDAN, 1, rms(0.2), 0.004, 0.95),
    "heavyball": (gradient_and_average, YOU, 1, original, 0, 0.9),
    "gram-newton-schulz": (nesterov_of_sum, DAO, 1, rms(0.2), 0.1, 0.95),
}


# coefficients' margin, weight decay, its factor besides the rate (of the shape), momentum in step t (from 0), beta2,
# nanochat's equal rows and renormalization
NORMUONS = {
    "optimuon": (1.02, 0, False, lambda t: 0.95, 0.95, False),
    "nanochat": (1.01, 0.28, True, lambda t: 0.85 + 0.12 * min(1, t / 400), 0.9, True),
    "modded-nanogpt": (1.02, 0.0276, True, lambda t: 0.85 + 0.10 * min(1, t / 300), 0.9, False),
}


def normuon(weights, gradients, margin, decay, adjusted, momentum, beta2, nanochat):
    m, v = np.zeros_like(weights), 0.0
    rows, columns = weights.shape
    for t, g in enumerate(gradients):
        mu, lr = momentum(t), LR * original(rows, columns)
        m = m + (1 - mu) * (g - m)
        d = g + mu * (m - g)
        if nanochat:
            d = d * (np.linalg.norm(d) / math.sqrt(rows) / np.linalg.norm(d, axis=1, keepdims=True))
        o = orthogonalize(d, SAFER, margin)
        if nanochat:
            o = o * (math.sqrt(min(rows, columns)) / np.linalg.norm(o))
        o, v = normuon_of(o, v, beta2)
        weights = weights - lr * o - (lr if adjusted else LR) * decay * weights * (o * weights >= 0)
    return weights


def muon(weights, gradients, direction, coefficients, margin, scale, decay, mu):
    m = np.zeros_like(weights)
    for t, g in enumerate(gradients, 1):
        d, m = direction(m, g, mu, t)
        weights = weights * (1 - LR * decay) - LR * scale(*g.shape) * orthogonalize(d, coefficients, margin)
    return weights


def main():
    inputs = load_file(HERE / "optim.safetensors")
    out = {}
    for matrix in MATRICES:
        weights, gradients = inputs[matrix].astype(float), inputs[matrix + ".grads"].astype(float)
        for name, rule in MUONS.items():
            out[f"{name}.{matrix}"] = muon(weights, gradients, *rule).astype(np.float32)
        for name, rule in NORMUONS.items():
            out[f"{name}.{matrix}"] = normuon(weights, gradients, *rule).astype(np.float32)
    save_file({name: np.ascontiguousarray(value) for name, value in out.items()}, HERE / "likes.safetensors")


if __name__ == "__main__":
    main()
