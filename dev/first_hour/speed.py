"""Stage d of the first hour: the time of whole steps, of attention and of each kernel, beside PyTorch's. The programs
take turns, so that a drift of the machine meets all of them; each is started in two rounds."""

import csv
import json
import os
import pathlib
import re
import statistics
import tempfile
import time

import run_tests
from common.run_folder import Metrics

from first_hour.running import is_number, outcome_of, run, run_named
from first_hour.stages import DEV, corpus, cuda_tool, kernels, limited, objects

ROUNDS = 2
STEPS, WARM = 12, 4  # steps of a run, and those that its medians exclude
RUN_LIMIT, TORCH_LIMIT = 100, 150

GPT2 = ["--model", "small", "--vocab-size", 50257, "--batch-tokens", 524288]
LLAMA = ["--model", "130m", "--vocab-size", 32000, "--batch-tokens", 524288]
# Models: program, flags, and the flags of PyTorch's peer (dev/bench_torch.py), or None.
MODELS = {
    "GPT-2 124M": ("train_gpt2", GPT2, ["--batch", 16, "--micro-steps", 32, "--steps", 8]),
    "LLaMA 130M": ("train_llama", LLAMA, ["--family", "llama", "--ffn", 2048, "--vocab-size", 32000, "--batch", 16,
                                          "--micro-steps", 32, "--steps", 8]),
    "LLaMA 1B": ("train_llama", ["--model", "1b", "--batch-tokens", 131072],
                 ["--family", "llama", "--layers", 24, "--channels", 2048, "--heads", 32, "--ffn", 5461, "--vocab-size",
                  32000, "--batch", 8, "--micro-steps", 16, "--steps", 6]),
    "GPT-2 124M, T 8192": ("train_gpt2", [*GPT2[:-1], 65536, "--seq-len", 8192],
                           ["--seq-len", 8192, "--batch", 2, "--micro-steps", 4, "--steps", 8]),
}
TINY = ["--layers", 2, "--channels", 64, "--heads", 1, "--vocab-size", 512, "--seq-len", 32]
TORCHS_TINY = [*TINY, "--batch", 2, "--steps", 3, "--device", "cpu"]
TOY = {
    "GPT-2 124M": ("train_gpt2", ["--model", "tiny", *TINY, "--batch-tokens", 64], TORCHS_TINY),
    "LLaMA 130M": ("train_llama", ["--model", "tiny", *TINY, "--kv-heads", 1, "--batch-tokens", 64],
                   ["--family", "llama", "--ffn", 128, *TORCHS_TINY]),
}
# Each switch alone, on GPT-2 124M.
SWITCHES = (["--matmul-dtype", "fp8"], ["--matmul-dtype", "fp8", "--fast-accumulation"], ["--kernels", "in-turn"],
            ["--kernels", "portable"], ["--graphs", "off"])
# Kernels for ncu, by the names of their operations in bench_gpu: what ncu finds in the names of functions.
PROFILED = {"attention forward": "flash_attention.*(hopper|forward)_kernel",
            "attention backward": "flash_attention.*key_gradient", "norm forward": "norm_forward",
            "norm backward": "norm_backward", "classifier": "classifier", "AdamW": "element_update"}
COUNTERS = {"us": "gpu__time_duration.sum", "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed"}
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def train(call, title, model, flags, turn):
    """One run with the program's defaults and these flags: medians of the steps after the first."""
    name = f"{title}, round {turn}"
    if call.rows.has("d", name) or call.left() < 30:
        return
    program, shape, _ = model
    toy = call.options.size == "toy"
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [call.program(program), *shape, *corpus(call), "--dtype", "bf16", "--steps", 3 if toy else STEPS,
                   "--eval-tokens", 64 if toy else 65536, "--checkpoint-end", "off", "--out", out,
                   *flags, *kernels(call, flags)]
        outcome, seconds, output, last = run(call, name, command, limited(call, RUN_LIMIT))
        if outcome != "passed":
            refused = "error: --" in last
            call.rows.add("d", name, "skipped" if refused else outcome, seconds, last, of=title)
            return
        steps = Metrics(out).of_kind("step")[1 if toy else WARM:]
    utilization = [float(x) for x in re.findall(r"MFU ([0-9.]+)%", output)[WARM:]]
    planned = re.search(r"^ +total +(.*)$", output, re.MULTILINE)
    median = lambda key: statistics.median(step[key] for step in steps)
    call.rows.add("d", name, "passed", seconds, f"{median('tokens_per_s'):.0f} tokens/s", of=title, train={
        "tokens_per_s": median("tokens_per_s"), "ms": median("ms"), "optimizer_ms": median("optimizer_ms"),
        "loss": steps[-1]["loss"], "mfu": statistics.median(utilization) if utilization else None,
        "planned": planned[1] if planned else "", "measured_mib": call.rows.clocks.used_since(begin),
        "plan": [program, *map(str, shape), *map(str, flags)]})


def train_torch(call, title, model, turn):
    name = f"{title} in PyTorch, round {turn}"
    if model[2] is None or call.rows.has("d", name) or call.left() < 60:
        return
    command = [call.options.python, DEV / "bench_torch.py", *model[2]]
    outcome, seconds, output, last = run(call, name, command, limited(call, TORCH_LIMIT))
    figures = objects(output)
    if not figures or "ms" not in figures[-1]:
        call.rows.add("d", name, "skipped" if "needs PyTorch" in last else outcome, seconds, last, of=title)
        return
    f = figures[-1]
    call.rows.add("d", name, "passed", seconds, f"{f['tokens_per_s']:.0f} tokens/s, attention {f.get('attention')}",
                  of=title, torch=f)


def operations(call):
    """Attention and each kernel of a step, each with a limit of its own."""
    program = call.program("bench/bench_gpu")
    name = "operations"
    if not os.path.exists(program):
        call.rows.add("d", name, "skipped", detail=f"{program} was not built")
        return
    outcome, seconds, output, last = run(call, name, [program, "--list"], 60)
    listed = [o["name"] for o in objects(output) if "name" in o and o["kind"] != "device"]
    device = objects(output, "device")
    if outcome != "passed" or not device:
        call.rows.add("d", name, outcome if outcome != "passed" else "failed", seconds, last)
        return
    if not call.rows.has("d", name):
        call.rows.add("d", name, "passed", seconds, f"{len(listed)} listed", device=device[0])

    def add(result):
        figures = json.loads(result.detail) if result.detail.startswith("{") else {}
        ms = figures.get("ms")
        outcome, detail = outcome_of(result)
        if figures:
            outcome, detail = ("passed", f"{1000 * ms:.0f} us") if ms else ("skipped", "no GPU")
        call.rows.add("d", result.name, outcome, (ms or 0) / 1000, detail, operation=figures)

    left = [name for name in listed if not call.rows.has("d", name)]
    if left and call.left() > 20:
        if call.options.size == "toy":
            left = [name for name in left if ", gemm," not in name]  # thousands of products to prepare
            os.environ["CUDA_DRY"] = "1"  # the modelled GPU then checks launches of full size and computes nothing
        run_named(call, "d", program, [left], 1, limited(call, run_tests.GPU_LIMIT), add)
        os.environ.pop("CUDA_DRY", None)


def torch_operations(call):
    """Attention and norms in PyTorch."""
    for what in ("attention", "norms"):
        name = f"{what} in PyTorch"
        if call.rows.has("d", name) or call.left() < 30:
            continue
        command = [call.options.python, DEV / "bench_torch.py", f"--{what}"]
        if call.options.size == "toy":
            command += ["--device", "cpu", "--rows", 256]
        outcome, seconds, output, last = run(call, name, command, limited(call, RUN_LIMIT))
        if "needs PyTorch" in last:
            outcome = "skipped"
        call.rows.add("d", name, outcome, seconds, "" if outcome == "passed" else last, operations=objects(output))


def counted(output):
    """The counters in ncu's CSV as {"us": 123.4, "sm_percent": ..., "dram_percent": ...}, less those that it lacks."""
    lines = output.splitlines()
    head = next((i for i, line in enumerate(lines) if '"Metric Name"' in line), len(lines))
    keys = {counter: key for key, counter in COUNTERS.items()}
    figures = {}
    for row in csv.DictReader(line for line in lines[head:] if line.startswith('"')):
        key, number = keys.get(row.get("Metric Name")), (row.get("Metric Value") or "").replace(",", "")
        factor = MICROSECONDS.get(row.get("Metric Unit")) if key == "us" else 1
        if key and factor and is_number(number):  # not "n/a"
            figures[key] = float(number) * factor
    return figures


def counters(call):
    """ncu's counters of one launch of each of six kernels."""
    tool = cuda_tool("ncu")
    for operation, kernel in PROFILED.items():
        name = f"ncu: {operation}"
        if call.rows.has("d", name) or call.left() < 30:
            continue
        if tool is None:
            call.rows.add("d", name, "skipped", detail="ncu was not found")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".names") as file:
            file.write(operation + "\n")
            file.flush()
            outcome, seconds, output, last = run(
                call, name, [tool, "--clock-control", "none", "--csv", "--print-units", "base", "--metrics",
                             ",".join(COUNTERS.values()), "-k", f"regex:{kernel}", "--launch-skip", 2, "--launch-count",
                             1, call.program("bench/bench_gpu"), "--input-file", file.name], limited(call, 60))
        figures = counted(output)
        if "ERR_NVGPUCTRPERM" in output:
            call.rows.add("d", name, "skipped", seconds, "this machine keeps ncu from the GPU's counters")
            return  # from all kernels alike
        call.rows.add("d", name, outcome if figures or outcome != "passed" else "failed", seconds,
                      str(figures) if figures else last, ncu=figures)


def speed(call):
    """Stage d. What matters most comes first, because a call's time may end."""
    toy = call.options.size == "toy"
    models = TOY if toy else MODELS
    for turn in range(1, 2 if toy else ROUNDS + 1):
        for title in ("GPT-2 124M", "LLaMA 130M"):
            train(call, title, models[title], [], turn)
            train_torch(call, title, models[title], turn)
        if turn == 1:
            operations(call)
            torch_operations(call)
        for flags in SWITCHES:
            train(call, f"GPT-2 124M, {' '.join(flags)}", models["GPT-2 124M"], flags, turn)
        for title in models:
            train(call, title, models[title], [], turn)
            train_torch(call, title, models[title], turn)
        counters(call)
