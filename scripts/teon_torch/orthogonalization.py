"""Orthogonalization of batches of matrices: Newton-Schulz in two forms, exact polar factor.

Method, forms and restarts are the engine's (optim/orthogonalize.cpp, docs/optimizers.md).
"""
import math

import torch

# Coefficients (a, b, c) of the steps X <- a X + (b R + c R^2) X with R = X X^T; the last triple is repeated.
# optim/ns_coefficients.h has the source of each set.
POLAR_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248)]
POLAR_EXPRESS_2E2 = [  # with a safety of 2e-2 and a cushion of 2, for five steps
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]


def divided(triples, safety):
    return [(a / safety, b / safety**3, c / safety**5) for a, b, c in triples]


NEWTON_SCHULZ = {
    "jordan": [(3.4445, -4.7750, 2.0315)],
    "you": [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012)],
    "polar-express": divided(POLAR_EXPRESS, 1.01) + [(1.875, -1.25, 0.375)],
    "polar-express-dion": POLAR_EXPRESS_2E2,
    "polar-express-nanochat": POLAR_EXPRESS_2E2,
    "polar-express-dao": divided(POLAR_EXPRESS[:5], 1.05),
    "polar-express-timm": [
        (8.237312490495555, -23.157747414558198, 16.680568411445915),
        (4.082441999064835, -2.893047735332586, 0.5252849256975648),
        (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
        (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
        (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
        (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
        (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
        (1.8749994008682747, -1.2499988017229169, 0.3749994008546422)],
}
# The set expects a norm of at most 1 / margin.
MARGIN = {"polar-express": 1.01, "polar-express-dion": 1.02, "polar-express-nanochat": 1.01}
FORMS = ("auto", "standard", "gram")
EPSILON = 1e-7  # avoids 0 / 0
STEPS = 5  # default
STEEP = [name for name in NEWTON_SCHULZ if name.startswith("polar-express")]  # about 8 at zero
SHORT_SIDE = 128  # below, these in bfloat16 need a restart after each step, which is the standard form


def restarts_after(step, side, method, dtype):
    """Returns whether the Gram form multiplies X by Q after `step` steps, as the engine does. Rounding gives the Gram
    matrix negative eigenvalues, which further steps would amplify."""
    if dtype == torch.bfloat16:
        return step % 2 == 1 or method in STEEP and side < SHORT_SIDE
    return step % 3 == (2 if dtype == torch.float16 else 0)


def flops(m, n, method="polar-express", steps=5, dtype=torch.float32, form="auto"):
    """Returns the floating-point operations for an m x n matrix. Torch computes symmetric products in full."""
    short, long = (n, m) if m > n else (m, n)  # torch.compile cannot sort sizes that are not known yet
    if method == "svd":
        return 8 * long * short**2 + 20 * short**3
    if resolve_form(m, n, method, steps, dtype, form) == "standard":
        return steps * (4 * long * short**2 + 2 * short**3)
    total, length = 0, 0
    for step in range(1, steps + 1):
        length += 1  # of the segment since the last restart
        ends = step == steps or restarts_after(step, short, method, dtype)
        total += (4 if length > 1 else 2) * short**3
        total += 4 * long * short**2 if ends else 4 * short**3
        length = 0 if ends else length
    return total


def resolve_form(m, n, method, steps, dtype, form):
    """Returns "standard" or "gram". "auto" is the Gram form if that saves at least a tenth of the operations."""
    if form != "auto" or method == "svd":
        return form if method != "svd" else "standard"
    cost = {name: flops(m, n, method, steps, dtype, name) for name in ("standard", "gram")}
    return "gram" if cost["gram"] <= 0.9 * cost["standard"] else "standard"


def orthogonalize(z, method="polar-express", steps=STEPS, dtype=None, form="auto"):
    """Returns U V^T of a matrix (or of the last two dimensions of a batch): exactly ("svd"), or approximately by
    Newton-Schulz in dtype (default: bfloat16 on a GPU, otherwise z's own).

    steps: Newton-Schulz steps.
    form: iterate on the matrix ("standard") or on its Gram matrix ("gram"); "auto": by the number of operations.
    torch.compile(orthogonalize, fullgraph=True) compiles it whole."""
    if method == "svd":
        return polar_factor(z)
    dtype = dtype or (torch.bfloat16 if z.is_cuda else z.dtype)
    m, n = z.shape[-2:]
    x = z / (z.norm(dim=(-2, -1), keepdim=True) * MARGIN.get(method, 1.0) + EPSILON)
    x = x.to(dtype).reshape(-1, m, n)
    x = x.mT if m > n else x
    iterate = gram_form if resolve_form(m, n, method, steps, dtype, form) == "gram" else standard_form
    x = iterate(x, method, steps)
    return (x.mT if m > n else x).to(z.dtype).reshape(z.shape)


def polar_factor(z):
    u, s, vt = torch.linalg.svd(z, full_matrices=False)
    cutoff = torch.finfo(z.dtype).eps * math.sqrt(s.shape[-1]) * s[..., :1]
    return (u * (s > cutoff).unsqueeze(-2).to(z.dtype)) @ vt


def coefficients(method, step):
    """Returns (a, b, c) of a step, counted from 1."""
    return NEWTON_SCHULZ[method][min(step, len(NEWTON_SCHULZ[method])) - 1]


def standard_form(x, method, steps):
    """x: (count, m, n) with m <= n. Each step is X <- a X + (b R + c R^2) X with R = X X^T."""
    for step in range(1, steps + 1):
        a, b, c = coefficients(method, step)
        r = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(r, r, r, beta=b, alpha=c), x, beta=a)
    return x


def gram_form(x, method, steps):
    """As standard_form(), with products of m x m matrices: Z = b R + c R^2, Q <- (a I + Z) Q and R <- (a I + Z)^2 R,
    and X <- Q X at the end and at each restart. a I stays a number, so that half precision need not represent it."""
    r = q = None  # q: the product of the steps since X was last multiplied; all are polynomials of r, so they commute
    for step in range(1, steps + 1):
        a, b, c = coefficients(method, step)
        ends = step == steps or restarts_after(step, x.shape[-2], method, x.dtype)
        if r is None:
            r = x @ x.mT
        z = torch.baddbmm(r, r, r, beta=b, alpha=c)
        if ends and q is None:
            x, r = torch.baddbmm(x, z, x, beta=a), None
            continue
        q = z + a * torch.eye(z.shape[-1], dtype=z.dtype, device=z.device) if q is None else torch.baddbmm(
            q, q, z, beta=a)
        if ends:
            x, r, q = q @ x, None, None
        else:
            half = torch.baddbmm(r, r, z, beta=a)
            r = torch.baddbmm(half, half, z, beta=a)
    return x
