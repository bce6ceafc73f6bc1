"""Compares measurements with the predictions of gpu_rules.py, and fits the rates to them.

measured_gpu.toml has the points: steps of training programs, attention kernels, and the points of `make bench-gpu`.
Five figures are fitted, by least squares of log(predicted / measured): the rate of a library's products on each of two
architectures, the K at which a product has half of this rate, and the share of overlapped work that adds to a kernel's
time, one for kernels that multiply by wgmma and one for all others. A range is a prediction divided and multiplied by
exp(2 s), where s is the standard deviation of the logs of its kind of point.
"""
import collections
import functools
import json
import math
import pathlib
import sys

import gpu_rules

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))
import toml

POINTS = pathlib.Path(__file__).resolve().parent / "measured_gpu.toml"
OURS = "teon.cu"
FIGURES = {"step": "tokens_per_s", "attention": "tflops", "kernel": "us"}  # the measured quantity by kind of point
# kind: step, attention or kernel. measured and predicted are in `unit`. fits: whether the rates are fitted to it.
Checked = collections.namedtuple("Checked", "kind program gpu what unit measured predicted fits source")
Fit = collections.namedtuple("Fit", "rates half_k overlap wgmma_overlap spread checked")


def load(path=POINTS):
    """Returns the points. Of our own it keeps only the newest of each GPU and kernel, because older ones measured other
    code. Exits if a figure is not a finite number above 0."""
    points = toml.loads(path.read_text(encoding="utf-8"))
    for kind, figure in FIGURES.items():
        newest = {}
        for i, point in enumerate(points.setdefault(kind, [])):
            values = point[figure] if isinstance(point[figure], list) else [point[figure]]
            if not all(0 < value < math.inf for value in values):
                sys.exit(f"{path}: error: {figure} of {kind} {i + 1} is {point[figure]}; it must be above 0")
            own = point["program"] == OURS
            newest[(point["gpu"], point.get("name"), point.get("T")) if own else i] = point
        points[kind] = list(newest.values())
    return points


def append(points, path=POINTS):
    """Appends [(kind, {key: string or number})] to the file."""
    text = "".join(f"\n[[{kind}]]\n" + "".join(
        f"{key} = " + (json.dumps(value) if isinstance(value, str) else f"{value:.6g}") + "\n"
        for key, value in point.items()) for kind, point in points)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


# ---- attention ------------------------------------------------------------------------------------------------------

def published(points, program, gpu, which, T, HS, causal=True):
    """The published TFLOP/s of an attention kernel; None if there is no such point."""
    wanted = {"program": program, "gpu": gpu, "pass": which, "HS": HS, "causal": causal}
    for point in points["attention"]:
        if all(point.get(key) == value for key, value in wanted.items()) and T in point["T"]:
            return float(point["tflops"][point["T"].index(T)])
    return None


def backward_of(forward, both):
    """TFLOP/s of the 5 backward products, if the 2 forward ones run at `forward` and all 7 together at `both`."""
    return 2.5 / (3.5 / both - 1 / forward)


def attention_rates(points, program, gpu, T, HS):
    """(forward, backward) TFLOP/s of causal attention. If only the rate of both passes together is published, it
    applies to each of them. A backward rate that is published only without a mask is reduced by the share that
    FlashAttention-2 loses to the mask."""
    if both := published(points, program, gpu, "both", T, HS):
        return both, both
    reference = functools.partial(published, points, "FlashAttention-2", gpu, T=T, HS=HS)
    loss = (backward_of(reference(which="forward"), reference(which="both"))
            / reference(which="backward", causal=False))
    return (published(points, program, gpu, "forward", T, HS),
            loss * published(points, program, gpu, "backward", T, HS, causal=False))


def with_mma_sync(table):
    """The table without the kernels of single architectures."""
    return {**table, "kernel": [{key: value for key, value in kernel.items() if not isinstance(value, dict)}
                                for kernel in table["kernel"]]}


def ours_at(table, counts, gpu, which, T, HS):
    """(predicted TFLOP/s of our kernels at the papers' shape, 16384 tokens of 2048 channels; whether they compute as
    many products as FlashAttention-2, whose backward pass has 5 where our two passes have 7)."""
    shape = {**table["shape"], "B": 16384 // T, "T": T, "C": 2048, "NH": 2048 // HS, "HS": HS}
    rows = [row for row in gpu_rules.predict({**table, "linear": []}, counts, gpu, shape=shape)
            if row.name.startswith("attention") and row.times]
    forward, backward = ([row for row in rows if which in row.name] for which in ("forward", "backward"))
    found = {"forward": forward, "backward": backward, "both": rows}[which]
    share = {"forward": 2, "backward": 5, "both": 7}[which]
    flops = share * 2.0 * 16384 * 2048 * T / 2
    return flops / sum(row.seconds for row in found) / 1e12, which == "forward"


# ---- the rules applied ----------------------------------------------------------------------------------------------

def program_of(table, points, name):
    """The table of a program, ours or another, for gpu_rules.predict()."""
    return table if name == OURS else {**table, **points["program"][name]}


def step_shape(table, points, point):
    """The shape of a step point, with the rates of its attention as FORWARD and BACKWARD."""
    shape = {**table["shape"], **points["model"][point["model"]], **{k: point[k] for k in ("B", "T", "S", "W")}}
    shape.update(points["program"].get(point["program"], {}).get("shape", {}))
    if "attention" in point:
        shape["FORWARD"], shape["BACKWARD"] = attention_rates(points, point["attention"], point["gpu"], point["T"],
                                                             shape["HS"])
    return {**shape, "R": shape["B"] * shape["T"] if point["program"] != OURS else shape["R"]}


def check(table, counts, points):
    """Returns every point with its prediction. Exits if the table lacks a point's GPU."""
    for kind in FIGURES:
        for i, point in enumerate(points[kind]):
            if point["gpu"] not in table["machine"]:
                sys.exit(f"calibration: error: {kind} {i + 1} is of {point['gpu']}, which model_gpu.toml lacks; it has "
                         f"{', '.join(table['machine'])}")
    found = []
    for point in points["step"]:
        shape = step_shape(table, points, point)
        rows = gpu_rules.predict(program_of(table, points, point["program"]), counts, point["gpu"], shape=shape)
        W = point["W"]
        found.append(Checked("step", point["program"], point["gpu"],
                             point["model"] + (f", T = {point['T']}" if point["T"] != 1024 else "")
                             + (f", {W} GPUs" if W > 1 else ""), "tokens/s", point["tokens_per_s"],
                             gpu_rules.tokens_per_second(shape, gpu_rules.total(rows)), True, point["source"]))
    # Our kernels with mma.sync are compared with FlashAttention-2, those with wgmma with FlashAttention-3.
    tables = {"FlashAttention-2": with_mma_sync(table), "FlashAttention-3": table}
    for point in points["attention"]:
        if point["program"] not in tables or not point["causal"] or point["HS"] != 64:
            continue
        for T, tflops in zip(point["T"], point["tflops"]):
            predicted, same = ours_at(tables[point["program"]], counts, point["gpu"], point["pass"], T, point["HS"])
            found.append(Checked("attention", point["program"], point["gpu"], f"{point['pass']}, T = {T}", "TFLOP/s",
                                 tflops, predicted, same, point["source"]))
    rows = {gpu: gpu_rules.predict(table, counts, gpu) for gpu in {point["gpu"] for point in points["kernel"]}}
    for point in points["kernel"]:
        seconds = gpu_rules.seconds_of(rows[point["gpu"]], point["name"])
        if seconds:
            found.append(Checked("kernel", point["program"], point["gpu"], point["name"], "launches/s",
                                 1e6 / point["us"], 1 / seconds, True, point["source"]))
    return found


def error(point):
    return math.log(point.predicted / point.measured)


# ---- the fit --------------------------------------------------------------------------------------------------------

def with_rates(table, rates, half_k, overlap, wgmma_overlap=None):
    """The table with these rates. wgmma_overlap: default overlap."""
    overlaps = {"overlap": overlap, "wgmma_overlap": overlap if wgmma_overlap is None else wgmma_overlap}
    machines = {name: {**m, "flops": rates[m["architecture"]], "half_k": half_k, **overlaps}
                for name, m in table["machine"].items()}
    return {**table, "machine": machines}


def solve(matrix, right):
    """Solves matrix x = right for x by Gaussian elimination. matrix is positive definite."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for i, pivot in enumerate(rows):
        for row in rows[i + 1:]:
            share = row[i] / pivot[i]
            row[:] = [a - share * b for a, b in zip(row, pivot)]
    found = []
    for i, row in reversed(list(enumerate(rows))):
        found.insert(0, (row[-1] - sum(a * b for a, b in zip(row[i + 1:-1], found))) / row[i])
    return found


def least_squares(errors, values, limits, steps=20):
    """Minimizes the sum of squares of errors(values) within limits by Gauss-Newton. A step excludes a value
    that is at a limit and would move beyond it. A step without a gain is halved, up to three times. Values must be of
    the order of 1."""
    at = errors(values)
    for _ in range(steps):
        shifted = [errors([*values[:i], value + 1e-4, *values[i + 1:]]) for i, value in enumerate(values)]
        slopes = [[(b - a) / 1e-4 for a, b in zip(at, other)] for other in shifted]
        downhill = [-sum(a * b for a, b in zip(slope, at)) for slope in slopes]
        free = [i for i, (value, (low, high)) in enumerate(zip(values, limits))
                if any(slopes[i]) and not (value <= low if downhill[i] < 0 else value >= high)]
        step = solve([[sum(a * b for a, b in zip(slopes[i], slopes[j])) for j in free] for i in free],
                     [downhill[i] for i in free])
        for size in (1, 0.5, 0.25, 0.125):
            moved = list(values)
            for i, by in zip(free, step):
                moved[i] = min(max(values[i] + size * by, limits[i][0]), limits[i][1])
            after = errors(moved)
            gain = sum(e * e for e in at) - sum(e * e for e in after)
            if gain > 0:
                break
        if gain <= 0:
            break
        values, at = moved, after
        if gain < 1e-12:
            break
    return values


def spread(checked, kind, parameters):
    """The standard deviation of the errors of a kind of points to which `parameters` figures were fitted."""
    errors = [error(point) for point in checked if point.kind == kind and point.fits]
    return math.sqrt(sum(e * e for e in errors) / max(1, len(errors) - parameters)) if errors else math.inf


def fit(table, counts, points):
    """Returns the Fit: the rates (of products at most the data sheets'), the points checked with them, and the spread
    of steps and of attention."""
    architectures = sorted({m["architecture"] for m in table["machine"].values()})
    peaks = [max(m["peak"] for m in table["machine"].values() if m["architecture"] == name) for name in architectures]

    def at(values):
        *shares, half_k, overlap, wgmma_overlap = values
        found = {name: share * peak for name, share, peak in zip(architectures, shares, peaks)}, 1000 * half_k, overlap
        return Fit(*found, wgmma_overlap, {}, check(with_rates(table, *found, wgmma_overlap), counts, points))

    fitted = at(least_squares(lambda values: [error(point) for point in at(values).checked if point.fits],
                              [*(0.6 for _ in architectures), 0.2, 0.5, 0.5],
                              [*((0.05, 1.0) for _ in architectures), (0.0, 2.0), (0.0, 1.0), (0.0, 1.0)]))
    fitted.spread.update(step=spread(fitted.checked, "step", len(architectures) + 1),
                         attention=spread(fitted.checked, "attention", 2))
    return fitted


def interval(fitted, predicted, kind="step"):
    """The range (low, high) of a prediction of this kind."""
    factor = math.exp(2 * fitted.spread[kind])
    return predicted / factor, predicted * factor
