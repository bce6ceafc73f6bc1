"""Stages a to c of the first hour: what works, whether it is right, and whether it learns as PyTorch does. Each stage
is a function of the call that adds rows; a row that exists already is not repeated."""

import collections
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

import run_tests
from common.run_folder import Metrics

from first_hour.rows import BAD, output_of
from first_hour.running import run, run_named, timed_outcome

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEV = ROOT / "dev"

# What a machine must do before anything else is worth its time, and the test that shows it.
CAPABILITIES = (
    ("a launch", "runtime/simt: 1, 2 and 3-dimensional grids and blocks"),
    ("a kernel that starts early", "runtime/cuda/early_launch: "),
    ("a graph", "runtime/cuda/device: a graph does again"),
    ("mma of a warp", "runtime/tensor_cores/tensor_core: mma multiplies fragments"),
    ("a copied tile (TMA), a product of a warpgroup (wgmma)", "runtime/tensor_cores/warpgroup: "),
    ("a product of float", "runtime/linalg/linalg: one product - float"),
    ("a product of bf16", "runtime/linalg/linalg: one product - bf16"),
    ("a product of f16", "runtime/linalg/linalg: one product - f16"),
    ("a product of FP8, e4m3 and e4m3", "runtime/linalg/linalg: one product of e4m3 and - e4m3"),
    ("a product of FP8, e4m3 and e5m2", "runtime/linalg/linalg: one product of e4m3 and - e5m2"),
    ("epilogue: bias", "runtime/linalg/linalg: the bias epilogue"),
    ("epilogue: gradient of a bias", "runtime/linalg/linalg: the bias gradient epilogue"),
    ("a symmetric product", "runtime/linalg/symmetric_product: equals the full product"),
    ("a singular value decomposition", "runtime/linalg/decompositions: svd reconstructs"),
    ("collectives of one rank", "runtime/cuda/comm: a single process"),
)
# Tests of kernels that only sm_90 has. They run last; if one fails, later stages run with --kernels portable.
HOPPER = ("kernels/attention/flash", "runtime/linalg/symmetric_product", "runtime/tensor_cores/warpgroup")
PLANTED = ["support/planted: a kernel that never ends", "support/planted: a kernel that writes to an invalid address"]
RUN_LIMIT = 120

# Shapes of runs: of GPT-2 124M on a GPU, or so small that the modelled GPU and CPUs run them in seconds. slow: the
# factor of all limits but that of the tests of stage b.
SIZES = {
    "full": {"slow": 1, "steps": 12, "parity": "small", "tests": ("",),
             "bits": ["--model", "small", "--vocab-size", 50257, "--batch-tokens", 65536, "--micro-batch", 16]},
    "toy": {"slow": 10, "steps": 3, "parity": "tiny",
            "tests": ("kernels/fill", "kernels/step_control", "kernels/norm", "runtime/tensor_cores/warpgroup"),
            "bits": ["--model", "tiny", "--layers", 3, "--channels", 64, "--heads", 1, "--vocab-size", 512, "--seq-len",
                     32, "--batch-tokens", 128, "--micro-batch", 2]},
}
# Runs of which each must have the bits of the run named last, or, with None, only end: name, flags, the other run.
SAME_BITS = (
    ("default", [], None),
    ("a second start", [], "default"),
    ("graphs off", ["--graphs", "off"], "default"),
    ("kernels in turn", ["--kernels", "in-turn"], "default"),
    ("offload", ["--offload", "all"], "default"),
    ("blocks recomputed", ["--recompute", "block"], "default"),
    ("FP8", ["--matmul-dtype", "fp8"], None),
    ("FP8, graphs off", ["--matmul-dtype", "fp8", "--graphs", "off"], "FP8"),
    ("FP8, kernels in turn", ["--matmul-dtype", "fp8", "--kernels", "in-turn"], "FP8"),
    ("FP8, offload", ["--matmul-dtype", "fp8", "--offload", "all"], "FP8"),
    ("portable kernels", ["--kernels", "portable"], None),
)


def capabilities(call):
    """Stage a: a table of yes and no."""
    program = call.program("tests")
    titles = {}
    listed = run_tests.list_tests(program)
    for title, prefix in CAPABILITIES:
        name = next((name for name in listed if name.startswith(prefix)), None)
        if name is None:
            call.rows.add("a", title, "failed", detail=f"{program} has no test {prefix!r}")
        else:
            titles[name] = title

    def add(result):
        call.rows.add("a", titles[result.name], *timed_outcome(result))

    groups = [[name] for name, title in titles.items() if not call.rows.has("a", title)]
    run_named(call, "a", program, groups, 1, limited(call, run_tests.GPU_LIMIT), add)


def limited(call, seconds):
    """The limit for something that takes at most so long on a GPU, in seconds."""
    return max(1, min(seconds * SIZES[call.options.size]["slow"], call.left()))


def open_groups(call, stage, names, title=str):
    """The names without a row, those of one file together."""
    groups = collections.defaultdict(list)
    for name in names:
        if not call.rows.has(stage, title(name)):
            groups[name.split(":")[0]].append(name)
    return list(groups.values())


def tests(call):
    """Every test, eight processes at a time, those of Hopper's kernels last."""
    program, prefixes = call.program("tests"), call.options.only or SIZES[call.options.size]["tests"]
    names = [name for name in run_tests.list_tests(program) if name.startswith(tuple(prefixes))]
    names.sort(key=lambda name: not name.startswith(("kernels/", "runtime/")))  # what this project wrote comes first
    first = open_groups(call, "b", [name for name in names if not name.startswith(HOPPER)])
    if call.options.plant and first:
        first[0][1:1] = [name for name in PLANTED if not call.rows.has("b", name)]
    for groups in first, open_groups(call, "b", [name for name in names if name.startswith(HOPPER)]):
        run_named(call, "b", program, groups, call.options.jobs, call.options.limit)


def corpus(call):
    """The flags that name a small text as tokens."""
    folder = ROOT / "build" / "corpus"
    if not (folder / "manifest.json").exists():
        run(call, "corpus", [sys.executable, DEV / "make_corpus.py", folder], 60)
    return ["--data", folder]


def kernels(call, flags=()):
    """The flags by which later stages go on after a fault of Hopper's kernels, unless a run has such a flag."""
    names = (*HOPPER, "a copied tile", "a symmetric product")
    bad = any(row["stage"] in "ab" and row["outcome"] in BAD and row["name"].startswith(names)
              for row in call.rows.mine())
    return ["--kernels", "portable"] if bad and "--kernels" not in flags else []


def digest(folder):
    """A hash of every loss, gradient norm and weight of a finished run."""
    figures = [(line["loss"], line["grad_norm"]) for line in Metrics(folder).of_kind("step")]
    value = hashlib.sha256(json.dumps(figures).encode())
    with open(max(folder.glob("step_*")) / "model.safetensors", "rb") as file:
        while block := file.read(1 << 24):
            value.update(block)
    return value.hexdigest(), figures


def same_bits(call):
    """Twelve steps with each way of running them."""
    size = SIZES[call.options.size]
    for name, flags, other in SAME_BITS:
        title = f"same bits: {name}"
        if call.rows.has("b", title) or call.left() < 20:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "run"
            command = [call.program("train_gpt2"), *size["bits"], *corpus(call), "--steps", size["steps"], "--dtype",
                       "bf16", "--attention", "flash", "--eval-tokens", 64 if call.options.size == "toy" else 65536,
                       "--out", out, *flags, *kernels(call, flags)]
            outcome, seconds, _, last = run(call, title, command, limited(call, RUN_LIMIT))
            if outcome != "passed":
                call.rows.add("b", title, outcome, seconds, last)
                continue
            value, figures = digest(out)
            detail = ""
            if other is not None:
                reference = call.rows.done.get(("b", f"same bits: {other}"), {})
                outcome = "passed" if reference.get("digest") == value else "failed"
                detail = "" if outcome == "passed" else difference(reference.get("figures", []), figures, other)
            call.rows.add("b", title, outcome, seconds, detail, digest=value, figures=figures)


def difference(expected, figures, other):
    for step, (a, b) in enumerate(zip(expected, figures), 1):
        if list(a) != list(b):
            return f"step {step}: loss and norm {b[0]}, {b[1]}, but {a[0]}, {a[1]} with {other}"
    return f"the weights after the last step differ from those with {other}" if expected else f"{other} did not end"


def correctness(call):
    """Stage b."""
    tests(call)
    same_bits(call)


def parity(call):
    """Stage c: ten steps beside PyTorch's."""
    for dtype in ("float", "bf16"):
        name = f"losses beside PyTorch's, {dtype}"
        if call.rows.has("c", name) or call.left() < 20:
            continue
        command = [call.options.python, DEV / "loss_parity.py", "--program", call.program("train_gpt2"), "--size",
                   SIZES[call.options.size]["parity"], "--dtype", dtype, f"--flags={' '.join(kernels(call))}"]
        if call.options.size == "toy":
            command += ["--device", "cpu"]
        outcome, seconds, output, last = run(call, name, command, limited(call, RUN_LIMIT))
        figures = objects(output, "parity")
        if "SKIPPED" in last:
            call.rows.add("c", name, "skipped", seconds, last)
        elif figures:
            f = figures[0]
            detail = (f"worst step {f['worst']:.1e} from PyTorch {f['torch']}, tolerance {f['tolerance']:.0e}, "
                      f"gradient norms {f['worst_norm']:.1e}; "
                      f"loss {f['first_loss']:.4f} to {f['last_loss']:.4f}")
            call.rows.add("c", name, outcome, seconds, detail, parity=f)
        else:
            call.rows.add("c", name, outcome if outcome != "passed" else "failed", seconds, last)


def objects(output, kind=None):
    """The JSON objects among a program's lines."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return [o for o in found if kind in (None, o.get("kind"))]


def cuda_tool(name):
    """The path of a tool on the PATH or beside nvcc, or None."""
    beside = os.path.join(os.path.dirname(output_of(DEV / "find_cuda.sh", "nvcc").split(" -ccbin ")[0]), name)
    return shutil.which(name) or (beside if os.access(beside, os.X_OK) else None)


def sanitizers(call):
    """Stage s: kernel tests under compute-sanitizer."""
    tool = cuda_tool("compute-sanitizer")
    if tool is None:
        call.rows.add("s", "sanitizers", "skipped", detail="compute-sanitizer was not found")
        return
    program = call.program("tests")
    names = [name for name in run_tests.list_tests(program) if name.startswith("kernels/")]
    for check in ("memcheck", "racecheck", "synccheck"):
        def add(result, check=check):
            call.rows.add("s", f"{check}: {result.name}", *timed_outcome(result))
        groups = open_groups(call, "s", names, lambda name, check=check: f"{check}: {name}")
        run_named(call, "s", program, groups, 6, 400, add, [tool, "--tool", check, "--error-exitcode", "9"])
