#!/usr/bin/env python3
"""Runs kernels of other projects on the modelled GPU, and compares their results with float64.

    make foreign CUTLASS=DIR FLASH=DIR LLMC=DIR FASTCU=DIR SAMPLES=DIR KITTENS=DIR
    (folders with these projects' files; all are optional)
    foreign.py --libraries DIR --build DIR --nvcc NVCC [--only WORD] [--orders ORDER,...] CUTLASS=DIR ...

Nothing is fetched, and nothing of these projects is part of this one: a program of ours includes their headers, gives
their kernels data and prints "right" or "wrong". A row of PROGRAMS names the program, what it needs and what it must
print; an alarm that is expected is a fault of the kernel, which the reason describes.
"""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ORDERS = ("forward", "reverse", "random:1")
ALARMS = 3  # the exit status of model-gpu after alarms


@dataclass
class Fault:
    """An alarm that a run must give: a part of its text, and why it is true."""
    alarm: str
    why: str
    everywhere: bool = True  # in each order; else it depends on which block or warp is ahead
    harmless: bool = False  # in these runs: the result must be right


@dataclass
class Program:
    name: str
    source: str
    needs: tuple
    defines: tuple = ()
    arch: str = "90a"
    device: str = "H200"
    runs: list = field(default_factory=lambda: [("", None)])  # arguments, Fault or None
    reference: str = ""  # a program in C that prints "loss X": these become arguments, after a file's name
    sample: str = ""  # a folder of cuda-samples: its own program, whose own check must hold; there is no `source`
    edits: tuple = ()  # (text, replacement) in the sample's files: smaller problems, fewer repetitions
    std: str = "c++17"
    says: str = ""  # what the sample prints if its check holds, "" if its exit status says so


ENDED = Fault("ended", "its consumers arrive at mbarriers of a block of the cluster that may have ended",
              everywhere=False, harmless=True)
FENCE = Fault("without fence.proxy.async", "no proxy fence between the stores of a tile and its copy to device memory",
              harmless=True)
SOFTMAX = "no barrier between the sums of warps for one row and for the next"
LLM = "llm.c dev/cuda"


def llm(subject, *runs):
    return Program(f"{LLM} {subject}", "llm.cu", ("LLMC",), (f'SUBJECT="{subject}.cu"', f"OF_{subject}"),
                   runs=list(runs))


def clean(*kernels):
    return " ".join(f"{k}:128" for k in kernels), None


def flash(name, head, causal, cluster=1, arch="90a", device="H200", tokens=448):
    defines = (f"ARCH={arch[:2]}", f"HEAD={head}", f"CAUSAL={str(causal).lower()}", f"CLUSTER={cluster}")
    return Program(name, "flash_forward.cu", ("FLASH", "CUTLASS"), defines, arch, device, [(str(tokens), None)])


def flash_backward(name, head, causal, arch="90a", device="H200"):
    return Program(name, "flash_backward.cu", ("FLASH", "CUTLASS"),
                   (f"ARCH={arch[:2]}", f"HEAD={head}", f"CAUSAL={str(causal).lower()}"), arch, device)


def gemm(schedule, epilogue, a="bfloat16_t", b="bfloat16_t"):
    types = "" if a == "bfloat16_t" else f" {a} {b}"
    return Program(f"CUTLASS {schedule}{types}", "cutlass_gemm.cu", ("CUTLASS",),
                   (f"SCHEDULE={schedule}", f"EPILOGUE={epilogue}", f"OF_A={a}", f"OF_B={b}"))


def sample(folder, arguments="", edits=(), says="", defines=(), fault=None, runs=()):
    return Program(f"cuda-samples {folder.rpartition('/')[2]}", "", ("SAMPLES",), defines, sample=folder, edits=edits,
                   says=says, runs=list(runs) or [(arguments, fault)])


RING = Fault("which cp.async still writes", "the first loop loads five stages into a ring of four: <= instead of <")

SAMPLES = [
    sample("0_Introduction/vectorAdd", says="Test PASSED"),
    sample("0_Introduction/matrixMul", "-wA=64 -hA=64 -wB=96 -hB=64", (("nIter = 300", "nIter = 2"),), "Result = PASS"),
    sample("0_Introduction/simpleCooperativeGroups", says="...Done."),
    sample("0_Introduction/simpleVoteIntrinsics"),
    sample("2_Concepts_and_Techniques/reduction", "--n=65536 --kernel=7", (("Iterations = 100", "Iterations = 1"),),
           "Test passed"),
    sample("2_Concepts_and_Techniques/reductionMultiBlockCG", "--n=65536 --maxblocks=16",
           (("Iterations = 100", "Iterations = 2"),)),
    sample("2_Concepts_and_Techniques/threadFenceReduction", "--n=65536", (("Iterations = 100", "Iterations = 2"),)),
    sample("2_Concepts_and_Techniques/scan", "", (("13 * 1048576 / 2", "262144"), ("iCycles = 100", "iCycles = 1"))),
    sample("2_Concepts_and_Techniques/histogram", "", (("64 * 1048576", "1048576"), ("numRuns    = 16", "numRuns = 1")),
           "Test passed"),
    sample("2_Concepts_and_Techniques/shfl_scan", fault=Fault(
        "nothing has written", "lanes read the sums of warps that the block does not have; no result needs them",
        harmless=True)),
    sample("3_CUDA_Features/binaryPartitionCG"),
    sample("3_CUDA_Features/warpAggregatedAtomicsCG", "", (("10000000", "100000"),)),
    sample("3_CUDA_Features/globalToShmemAsyncCopy", edits=(("nIter = 100", "nIter = 1"),), says="Result = PASS", runs=[
        (f"-wA=256 -hA=128 -wB=128 -hB=256 --kernel={kernel}", fault)
        for kernel, fault in ((1, None), (2, None), (5, None), (6, None), (7, None), (0, RING), (4, RING))]),
    *(sample(f"3_CUDA_Features/{name}", edits=(
        (f"#define M_TILES {tiles}", "#define M_TILES 16"), (f"#define N_TILES {tiles}", "#define N_TILES 16"),
        (f"#define K_TILES {tiles}", "#define K_TILES 16")), defines=("CPU_DEBUG=1",))
      for name, tiles in (("cudaTensorCoreGemm", 256), ("bf16TensorCoreGemm", 512))),
    sample("6_Performance/transpose", "-dimX=64 -dimY=64", (("NUM_REPS 100", "NUM_REPS 1"),), "Test passed"),
]
PROGRAMS = [
    Program("CuTe tutorial, TMA", "cute_tma.cu", ("CUTLASS",)),
    Program("CuTe tutorial, cp.async", "cute_async.cu", ("CUTLASS",), runs=[
        ("", Fault("wgmma.mma_async", "no barrier between the threads' cp.async.wait_group and wgmma"))]),
    Program("fast.cu", "fast.cu", ("FASTCU",), runs=[
        ("1 2 3 4 5 6 7", None), ("8", ENDED), ("9", ENDED), ("10", FENCE), ("11", FENCE), ("12", FENCE)]),
    llm("softmax_forward", clean(1, 2, 3, 5, 6, 7, 8), ("4:128", Fault(
        "softmax_forward.cu:288: st.shared.f32", "a __syncthreads is missing before the maximum is overwritten"))),
    llm("layernorm_forward", clean(1, 2, 3, 4, 5, 6)),
    llm("layernorm_backward", clean(2, 3, 4, 5, 6, 7, 8, 9, 10)),
    llm("residual_forward", clean(1, 2)), llm("gelu_forward", clean(1, 2)), llm("gelu_backward", clean(1, 2)),
    llm("classifier_fused", clean(1, 2, 3, 4, 5)), llm("adamw", clean(1, 2)), llm("global_norm", clean(1, 2, 3, 4)),
    llm("matmul_backward_bias", clean(1, 2, 3, 4)), llm("attention_forward", clean(1, 2, 3, 4, 5, 6)),
    llm("matmul_forward", clean(1, 2)), llm("encoder_forward", clean(1, 2, 3)),
    llm("fused_residual_forward", clean(1, 3, 4, 5, 6)),  # 2 leaves its memory
    Program("llm.c train_gpt2_fp32.cu, ten steps", "llm_train.cu", ("LLMC",), reference="llm_train.c", runs=[
        ("", Fault("softmax_autoregressive_backward_kernel", f"{SOFTMAX}; and in orders other than forward the "
                   "classifier reads a logit that it has overwritten, a race in device memory"))]),
    *(Program(f"llm.c train_gpt2.cu in {precision}, ten steps", "llm_mixed.cu", ("LLMC",), (f"ENABLE_{flag}",),
              reference="llm_train.c", runs=[
                  ("", Fault("softmax_autoregressive_backward_inplace_kernel", SOFTMAX, harmless=True))])
      for precision, flag in (("float", "FP32"), ("bf16", "BF16"))),
    flash("FlashAttention-3 forward 64", 64, True),
    flash_backward("FlashAttention-3 backward 64", 64, True),
    flash("FlashAttention-3 forward 128, clusters", 128, False, cluster=2),
    flash_backward("FlashAttention-3 backward 128", 128, False),
    flash("FlashAttention forward, sm_80", 64, True, arch="80", device="A100", tokens=896),
    flash_backward("FlashAttention backward, sm_80", 64, True, arch="80", device="A100"),
    gemm("KernelTmaWarpSpecialized", "TmaWarpSpecialized"),
    gemm("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized"),
    gemm("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative"),
    gemm("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized", "float_e4m3_t", "float_e4m3_t"),
    gemm("KernelTmaWarpSpecializedCooperativeFP8FastAccum", "TmaWarpSpecializedCooperative", "float_e4m3_t",
         "float_e5m2_t"),
    Program("ThunderKittens, bf16", "thunder_kittens.cu", ("KITTENS",), ("KITTENS_HOPPER",), std="c++20"),
    *SAMPLES,
]
INCLUDES = {
    "CUTLASS": ("include", "tools/util/include", "examples", "examples/common"),
    "FLASH": ("hopper",),
    "LLMC": ("dev/cuda", "."),
    "FASTCU": (".",),
    "SAMPLES": ("Common", "Samples"),
    "KITTENS": (".", "include", "prototype"),
}


def losses_of_reference(p, binary, options, projects):
    """Builds and runs the reference; returns the arguments for the program."""
    reference = f"{binary}_reference"
    includes = [f"-I{projects[name] / folder}" for name in p.needs for folder in INCLUDES[name]]
    subprocess.run(["cc", "-O2", "-w", f"-I{HERE}", *includes, str(HERE / p.reference), "-o", reference, "-lm"],
                   check=True)
    output = subprocess.run([reference, f"{reference}.bin"], capture_output=True, text=True, check=True).stdout
    return [f"{binary}.bin", *(line.split()[1] for line in output.splitlines() if line.startswith("loss "))]


def copy_sample(p, folder, projects):
    """Copies the sample's files with the edits to a folder of the build, and returns those to compile."""
    folder.mkdir(parents=True, exist_ok=True)
    unused = {text for text, _ in p.edits}
    for file in (projects["SAMPLES"] / "Samples" / p.sample).iterdir():
        if file.suffix not in (".cu", ".cpp", ".cuh", ".h", ".hpp"):
            continue
        content = file.read_text()
        for text, replacement in p.edits:
            if text in content:
                unused.discard(text)
                content = content.replace(text, replacement)
        if not (folder / file.name).exists() or (folder / file.name).read_text() != content:
            (folder / file.name).write_text(content)
    if unused:
        sys.exit(f"foreign: {p.sample} has no text {sorted(unused)[0]!r}; docs/modelled_gpu.md names the version")
    return sorted(file for file in folder.iterdir() if file.suffix in (".cu", ".cpp"))


def compile_program(p, options, projects):
    """Returns the program, or None after an error that was printed."""
    binary = options.build / "".join(c if c.isalnum() else "_" for c in p.name)
    sources = [HERE / p.source]
    if p.sample:
        sources = copy_sample(p, Path(f"{binary}_sources"), projects)
    inputs = [*sources, *HERE.glob("*.h")]
    if binary.exists() and all(binary.stat().st_mtime > s.stat().st_mtime for s in inputs):
        return binary
    includes = [f"-I{projects[name] / folder}" for name in p.needs for folder in INCLUDES[name]]
    command = [*shlex.split(options.nvcc), f"-std={p.std}", "-O3", "-w", "-lineinfo", "--no-compress", "-cudart",
               "shared", "-gencode", f"arch=compute_{p.arch},code=compute_{p.arch}", "--expt-relaxed-constexpr",
               "--expt-extended-lambda", "-DNDEBUG", f"-I{HERE}", *includes, *(f"-D{d}" for d in p.defines),
               *map(str, sources), "-o", f"{binary}.new"]
    if "LLMC" in p.needs:
        command += ["-lcublas", "-lcublasLt"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        print(f"wrong: {p.name}: nvcc refuses it: {result.stderr.strip()[:2000]}", flush=True)
        return None
    os.replace(f"{binary}.new", binary)
    return binary


def judge(p, output, status, fault):
    """Returns what is wrong with the output of a run, or ""."""
    lines = output.splitlines()
    alarms = [line for line in lines if line.startswith("alarm: ")]
    wrong = [line for line in lines if line.startswith(("wrong: ", "failed: "))]
    right = [line for line in lines if line.startswith("right: ")]
    if p.sample:
        wrong += [line for line in lines if "mismatch" in line][:1]
        right = [p.says] if p.says in output else []
    if fault is None:
        if alarms or wrong or status or not right:
            return (alarms + wrong + [f"exit status {status}, {len(right)} results"])[0]
        return ""
    others = [alarm for alarm in alarms if fault.alarm not in alarm and ENDED.alarm not in alarm]
    if others:
        return others[0]
    if fault.everywhere and not alarms:
        return f"no alarm with \"{fault.alarm}\""
    if fault.harmless and (wrong or not right or status not in (0, ALARMS)):
        return (wrong + [f"exit status {status}, {len(right)} results"])[0]
    return ""


def run(p, binary, arguments, fault, order, options, more=()):
    command = [HERE.parent / "model-gpu", f"--libraries={options.libraries}", f"--device={p.device}",
               f"--order={order}", binary, *arguments.split(), *more]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    problem = judge(p, result.stdout + result.stderr, result.returncode, fault)
    notes = (result.stdout + result.stderr).count("\nnote: ")
    errors = [float(line.rsplit("error ", 1)[1].split()[0]) for line in result.stdout.splitlines()
              if line.startswith("right: ")]
    of_program = "its own check holds" if p.sample else "no result"
    outcome = problem or (f"error {max(errors):.2g}" if errors else of_program)
    if "alarm: " in result.stderr + result.stdout and not problem:
        outcome += f"; alarm, true: {fault.why}"
    print(f"{'wrong' if problem else 'as it must be'} | {p.name} {arguments} | {order} | {outcome} | {notes} notes",
          flush=True)
    return not problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=Path, required=True, help="the folder of the modelled GPU's libraries")
    parser.add_argument("--build", type=Path, required=True, help="where to build the programs")
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--only", default="", help="programs with this word in their name")
    parser.add_argument("--orders", default=",".join(ORDERS), help="orders of warps, as SIMT_ORDER")
    parser.add_argument("projects", nargs="*", metavar="PROJECT=DIR", help=", ".join(INCLUDES))
    options = parser.parse_args()
    projects = {}
    for pair in options.projects:
        name, _, folder = pair.partition("=")
        if name not in INCLUDES:
            sys.exit(f"foreign: there is no project {name}; known are {', '.join(INCLUDES)}")
        if not folder:
            continue
        for part in INCLUDES[name]:
            if not (Path(folder) / part).is_dir():
                sys.exit(f"foreign: {name}={folder} has no folder {part}")
        projects[name] = Path(folder)
    options.build.mkdir(parents=True, exist_ok=True)
    failed = 0
    ran = 0
    for p in PROGRAMS:
        if options.only not in p.name:
            continue
        missing = [name for name in p.needs if name not in projects]
        if missing:
            print(f"skipped | {p.name} | needs {' and '.join(missing)}", flush=True)
            continue
        binary = compile_program(p, options, projects)
        if not binary:
            failed += 1
            continue
        more = losses_of_reference(p, binary, options, projects) if p.reference else ()
        for arguments, fault in p.runs:
            for order in options.orders.split(","):
                ran += 1
                failed += not run(p, binary, arguments, fault, order, options, more)
    print(f"{ran} runs, {failed} wrong")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
