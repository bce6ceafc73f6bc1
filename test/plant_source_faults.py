#!/usr/bin/env python3
"""Plants faults in the sources, one at a time, and checks that the test that is meant for each fails.

    make test-source-faults [WORD=ranks]         # takes half an hour; WORD: only the faults whose row contains it

Works in a copy of the git checkout, build/planted, which begins with the objects of build/. Each fault replaces text in
one file of the copy; `make` there compiles what depends on it. Faults of kernels' code need no compiler:
gpusim/test/plant_faults.py. Exit status: 0 if every fault was found by its test, else 1.
"""
import collections
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPY = ROOT / "build/planted"
TIMEOUT_S = 1200

# Replaces `old`, which occurs once in the file, by `new`. Then `make goal` must succeed, and the test must fail with
# `words`. test: a test case of the program build/FOLDER/tests, or a file of tests and a word of a test's name. needs:
# instructions without which a CPU does not run this code, as Linux names them; "not NAME": with which it does not.
Fault = collections.namedtuple("Fault", "name file old new goal test words needs", defaults=[""])
TESTS, TRAIN, MODELLED = "build/cpu/tests", "build/cpu/train_gpt2", "build/cuda-model/tests"
HOUSE, MODELLED_TRAIN = "build/model-gpu/tests", "build/cuda-model/train_gpt2"
WRONG = "with expansion:"  # a test's comparison
RANKS, RESUME, SHARDING = (f"test/programs/test_{name}.py" for name in ("ranks", "resume", "sharding"))
TORCH = "test/torch_tests.sh"  # the tests of teon_torch, with a torch of their own
FLASH = "kernels/attention/flash: many tiles*"
WINDOW, FLASH_WINDOW = (f"kernels/attention/{name}: with a window*" for name in ("attention", "flash"))
REPLAYED, OFFLOADED = "train/trainer: replayed from graphs*", "train/trainer: with blocks offloaded*"
ON_TWO_RANKS = ("test/programs/test_model_gpu.py", "test_the_order_of_streams")

FAULTS = [
    # A fault for each test that planted faults had shown to be missing.
    Fault("the key head of another group", "kernels/attention/flash_mma.cu",
          "const bf16* next = Tiles::Key::first_chunk(s.packed(qkv, b, begin, s.NH + h / s.group), s.packed_row);",
          "const bf16* next = Tiles::Key::first_chunk(s.packed(qkv, b, begin, s.NH + h % s.NKV), s.packed_row);",
          TESTS, FLASH, "NH=4 NKV=2"),
    Fault("the key head of another group, in tiles", "kernels/attention/tiled.cu",
          "const int kv = h / (s.NH / s.NKV);", "const int kv = h % s.NKV;", TESTS,
          "kernels/attention/attention: *", "NKV=2"),
    Fault("a document that begins inside an earlier tile", "kernels/attention/tiled.cu",
          "key + count - 1 > begin || *last > key;", "key + count - 1 > begin || *last >= key + count;", TESTS,
          "kernels/attention/attention: a long document*", WRONG),
    Fault("a bias in each slice of K", "cpu/tile_product.cpp", "(m.bias && (m.alpha != 1.0f || sliced))",
          "(m.bias && m.alpha != 1.0f)", TESTS, "cpu/products: a bias is added once*", "instead of",
          "avx512_bf16 or not avx512f"),
    Fault("a warmup of no steps counts as none given", "optim/schedule.cpp", "s.warmup_steps >= 0 ?",
          "s.warmup_steps > 0 ?", TESTS, "optim/schedule: a number of warmup steps*", WRONG),
    Fault("a longer run's own warmup", "train/run.cpp", 'run.value("warmup_steps", int64_t{-1})', "-1", TRAIN,
          (RESUME, "test_a_longer_run_keeps_a_warmup"), "Lists differ"),
    Fault("strided shards in the order of the mesh", "scripts/teon_torch/distribution.py",
          'sorted(range(len(placements)), key=lambda i: type(placements[i]).__name__ == "_StridedShard")',
          "range(len(placements))", "", (TORCH, "fsdp2_after_tensor_parallelism"), "strided_shards on 4 ranks"),
    Fault("two steps on the Gram matrix of a short side", "optim/orthogonalize.cpp", "&& side < kShortSide",
          "&& side < 1", TESTS, "optim/orthogonalize: polar-express in bf16*", WRONG),
    # Windows: a key too many or too few, in the rule and in each kernel that applies it, and a cache without one.
    Fault("a window without the row's own key", "kernels/attention/first_key.cu",
          "- window + 1;", "- window;", TESTS, "model/decoder: with a window*", WRONG),
    Fault("a key before the window", "kernels/attention/rows.cu",
          "return first <= column && column <= t;", "return first <= column + 1 && column <= t;", TESTS, WINDOW, WRONG),
    Fault("a key before the window, in tiles", "kernels/attention/tiled.cu",
          "return !MASKED || (first <= j && j <= last);", "return !MASKED || (first <= j + 1 && j <= last);", TESTS,
          WINDOW, WRONG),
    Fault("a key before the window, in the gradients of tiles", "kernels/attention/tiled.cu",
          "(first[k] <= key && key <= t + k)", "(first[k] <= key + 1 && key <= t + k)", TESTS, WINDOW, WRONG),
    Fault("a key before the window, in flash attention", "kernels/attention/flash_shape.h",
          "if (column < first || column > last)", "if (column + 1 < first || column > last)", TESTS, FLASH_WINDOW,
          WRONG),
    Fault("a key before the window, in flash attention's gradients of keys", "kernels/attention/flash_backward.h",
          "if (k < lowest || k > query + column)", "if (k + 1 < lowest || k > query + column)", TESTS, FLASH_WINDOW,
          WRONG),
    Fault("tiles behind the window are multiplied", "kernels/attention/tiled.cu",
          "if (*first >= key + count) continue;", "if (*first > s.T) continue;", TESTS,
          "*tiles that a window hides*", WRONG),
    Fault("a cache without a window", "model/attention.h",
          "windowed(p.cached + 1) ? p.cached + 1 - window_ : 0", "0", TESTS, "generation/generator: with a window*",
          WRONG),
    Fault("no decay at an update of zero: AdamW", "kernels/optimizers/element_update.h",
          "CAUTIOUS ? update.decay_factor(p[k], delta)",
          "CAUTIOUS ? (delta == 0.0f ? 1.0f : update.decay_factor(p[k], delta))", TESTS,
          "kernels/optimizers/adamw: with cautious*", WRONG),
    Fault("no decay at an update of zero: Lion", "kernels/optimizers/lion.cu",
          "if (c < 0.0f) return -rate;", "if (c <= 0.0f) return -rate;", TESTS,
          "kernels/optimizers/adamw: with cautious*", WRONG),
    Fault("no decay at an update of zero: matrices", "kernels/optimizers/teon.cu",
          "fmaf(update.decay_factor(x[k], delta), x[k], -delta)",
          "fmaf(delta == 0.0f ? 1.0f : update.decay_factor(x[k], delta), x[k], -delta)", TESTS,
          "kernels/optimizers/teon: with cautious weight decay*", WRONG),
    Fault("pairs by their place in a list", "scripts/experiments/significance.py",
          "paired([losses[seed] - others[seed] for seed in shared])",
          "paired([a - b for a, b in zip(losses.values(), others.values())])", "",
          ("test/scripts/test_compare.py", "test_runs_of_one_seed_are_pairs"), "95% interval"),
    Fault("the logged loss of the last micro-batch", "train/trainer.cpp",
          "losses_.data(), losses_.size(), accumulate,", "losses_.data(), losses_.size(), false,", TESTS,
          "train/trainer: the loss of a step*", WRONG),
    Fault("FP8 weights cast at times that no checkpoint has", "model/fp8_linear.cpp",
          "else if (new_weight)", "else if (static int passes = 0; passes++ % 7 == 0)", TRAIN,
          (RESUME, "test_fp8_resumes"), "safetensors of whole and cut at step 20"),
    Fault("weights sent before their update", "optim/optimizer.cpp",
          "    update_elements(params, control, context.stream);\n    exchange(element_parts_);\n",
          "    exchange(element_parts_);\n    update_elements(params, control, context.stream);\n",
          MODELLED_TRAIN, ON_TWO_RANKS, ""),
    Fault("an evaluation replayed from the first one", "train/evaluation.cpp",
          "        model_.forward(losses_.data(), batch);\n",
          "        static std::optional<Graph> graph;\n"
          "        if (!graph) graph.emplace(ctx_.stream, [&] { model_.forward(losses_.data(), batch); });\n"
          "        graph->launch(ctx_.stream);\n", TESTS, "train/trainer: an evaluation between*", WRONG),
    Fault("a step replayed with another batch", "train/trainer.cpp",
          "return m.batch == batch && m.accumulate == accumulate;", "return m.accumulate == accumulate;", TESTS,
          REPLAYED, WRONG),
    Fault("optimizer state that is not restored", "train/loop.cpp",
          "read_tensors(resume->checkpoint.folder, model_->params(), optimizer_.state(), ctx_.stream);",
          "read_tensors(resume->checkpoint.folder, model_->params(), {}, ctx_.stream);", TRAIN,
          (RESUME, "test_every_optimizer_resumes"), ""),
    Fault("CI without MPI", ".ci/run", "exit 1; }\n", "}\n", "", ("test/dev/test_makefile.py", "without_mpi"), ""),
    # Ranks.
    Fault("every rank reads the batch of rank 0", "data/loader.cpp",
          "of_sample + int64_t{o.rank} * o.B);", "of_sample);", TRAIN, (RANKS, "test_adamw"), ""),
    Fault("gradients of the step's last micro-batch alone", "train/reducer.cpp",
          "accumulate_ = accumulate && windows_;", "accumulate_ = accumulate && windows_ && parts.empty();", TRAIN,
          (SHARDING, "test_several_micro_batches"), ""),
    Fault("the norm of the own gradients", "train/reducer.cpp",
          "    context_.comm->all_reduce_sum(sum, 1, context_.stream);\n", "", TESTS, (RANKS, "test_collectives"), ""),
    Fault("weights of the step before", "train/gatherer.cpp",
          "for (Window& w : windows_) w.layer = kNone;", "", TRAIN, (SHARDING, "test_more_ranks_than_parameters"),
          "model.safetensors"),
    Fault("parameters that no rank sends", "optim/optimizer.cpp",
          "    exchange(element_parts_);\n", "", TRAIN, (RANKS, "test_weights_agree"),
          "rank 1 has different weights"),
    Fault("losses of the own rank", "train/trainer.cpp",
          "comm.all_gather(loss_sums_.data(), loss_sum, 1, DType::f32, ctx_.stream);",
          "copy(loss_sums_.data() + comm.rank(), loss_sum, 1, ctx_.stream);", TRAIN,
          (RANKS, "test_adamw"), ""),
    Fault("a mean over the micro-batches of one rank", "train/trainer.cpp",
          "1.0f / static_cast<float>(o_.batch_tokens)",
          "1.0f / static_cast<float>(o_.batch_tokens / ctx_.comm->size())", TRAIN, (RANKS, "test_adamw"), ""),
    Fault("windows of the last batch counted twice", "train/evaluation.cpp",
          "std::clamp<int64_t>(windows_ - (round * ranks + rank) * B_, 0, B_)",
          "std::clamp<int64_t>(windows_ + (round * ranks + rank) * B_, 0, B_)", TRAIN,
          (RANKS, "test_evaluation_equals"), ""),
    # Resume.
    Fault("samples read again after resuming", "train/loop.cpp", "loader_.seek(state.next_sample);",
          "loader_.seek(0);", TRAIN, (RESUME, "test_bf16_with_shuffled"), ""),
    Fault("the step's statistics lost", "train/trainer.cpp",
          "    upload(control_.data(), &last_, 1, ctx_.stream);\n", "", TRAIN,
          (RESUME, "test_every_optimizer_resumes"), ""),
    # The order of the host's calls, which shows on the modelled GPU, whose work runs late (nvcc's objects are needed).
    Fault("a batch overwritten before its upload", "data/loader.cpp",
          "        slot(calls + 2).copied.synchronize();\n", "", MODELLED,
          "data/loader: batches are right on*", WRONG),
    Fault("a batch used before its upload", "data/loader.cpp", "        now.copied.make_wait(stream);\n", "", MODELLED,
          "data/loader: batches are right on*", WRONG),
    Fault("an upload over a batch in use", "data/loader.cpp",
          "        slot(calls + 2).passed.make_wait(copies);\n", "", MODELLED,
          "data/loader: batches are right on*", WRONG),
    Fault("metrics read before the step's end", "train/trainer.cpp", "    slot.end.synchronize();\n", "", MODELLED,
          "train/trainer: the loss*", "cudaErrorNotReady"),
    Fault("activations stored before they are computed", "model/activation_offload.cpp",
          "    computed_.make_wait(stream_);\n", "", MODELLED, OFFLOADED, WRONG),
    Fault("activations overwritten before they are stored", "model/activation_offload.cpp",
          "    if (block >= device_blocks_) blocks_[", "    if (block < -device_blocks_) blocks_[", MODELLED, OFFLOADED,
          WRONG),
    Fault("activations used before they are fetched", "model/activation_offload.cpp",
          "if (block < std::ssize(blocks_)) blocks_[static_cast<size_t>(block)].moved.make_wait(compute_);",
          "if (block < -1) blocks_[static_cast<size_t>(block)].moved.make_wait(compute_);",
          MODELLED, OFFLOADED, WRONG),
    Fault("a checkpoint written before its copy", "checkpoint/checkpoint_writer.cpp",
          "        copied_.synchronize();\n", "", MODELLED, "checkpoint/checkpoint: what is read*", ""),
    Fault("an exchange before its input is ready", "runtime/cuda/comm.cu",
          "            ready_.make_wait(stream_);\n", "", MODELLED_TRAIN, ON_TWO_RANKS, ""),
    Fault("work that does not wait for the exchange", "runtime/cuda/comm.cu",
          "        joined_.make_wait(stream);\n", "        (void)stream;\n", MODELLED_TRAIN, ON_TWO_RANKS, ""),
    Fault("gathered weights used before they arrive", "train/gatherer.cpp",
          "    window(layer).filled.make_wait(context_.stream);\n", "", MODELLED_TRAIN, ON_TWO_RANKS, ""),
    # Functions of the modelled GPU that this project does not call.
    Fault("rows read at the other's distance", "gpusim/abi/programs.cpp", "from) + row * from_pitch",
          "from) + row * to_pitch", HOUSE, "gpusim/programs: copies of rows*", ""),
    Fault("the beginning of a variable", "gpusim/abi/programs.cpp",
          "char* const at = static_cast<char*>(address) + offset;", "char* const at = static_cast<char*>(address);",
          HOUSE, "gpusim/programs: variables*", WRONG),
    Fault("a variable's source read late", "gpusim/abi/programs.cpp", "std::memcpy(at, staged.data(), bytes)",
          "std::memcpy(at, host, bytes)", HOUSE, "gpusim/programs: variables*", WRONG),
    Fault("blocking streams that wait for nothing", "cpu/stream.cpp",
          "        engine().blocking.push_back(*stream);\n", "", HOUSE, "gpusim/programs: the default stream*", WRONG),
    Fault("a fill of the whole allocation", "gpusim/host/memory.cpp", "std::memset(to, byte, bytes); });",
          "std::memset(to, byte, 64); });", HOUSE, "gpusim/programs: fills*", WRONG),
    Fault("occupancy without the block's own kilobyte", "gpusim/abi/programs.cpp",
          "limits.static_shared + dynamic_shared + kReservedShared;", "limits.static_shared + dynamic_shared + 1;",
          HOUSE, "gpusim/programs: occupancy*", WRONG),
    Fault("an attribute of another number", "gpusim/abi/programs.cpp", "{97, shared}", "{98, shared}",
          HOUSE, "gpusim/programs: attributes*", ""),
    Fault("a product's batches at one place", "gpusim/abi/cublas.cpp", "p.B = {a.data, a.ld, a.stride};",
          "p.B = {a.data, a.ld, 0};", HOUSE, "gpusim/programs: cuBLAS*", WRONG),
    Fault("a product's old sum read despite beta 0", "gpusim/abi/cublas.cpp",
          "p.beta = *static_cast<const float*>(beta);", "p.beta = *static_cast<const float*>(beta) + 1e-30f;",
          HOUSE, "gpusim/programs: cuBLAS*", WRONG),
    # Decode errors that the host takes for missing code (runtime/tensor_cores/warpgroup.h).
    Fault("an error of the last call alone", "gpusim/abi/kernels.cpp",
          "        cpu::fail_device(cudaErrorInvalidPtx, error.what());\n", "", HOUSE, "gpusim/host: code that*",
          WRONG),
]


def copy_of_checkout():
    """Makes or refreshes the copy. Files keep their times, so that objects are not compiled again."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\n"):
        source, target = ROOT / name, COPY / name
        if not name or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    (COPY / ".venv").unlink(missing_ok=True)
    (COPY / ".venv").symlink_to(ROOT / ".venv")
    for folder in ("cpu", "deps", "corpus", "cuda-model", "model-gpu", "mpi", "version"):
        source, target = ROOT / "build" / folder, COPY / "build" / folder
        if source.exists() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", source, target], check=True)


def run(command, **variables):
    """Returns (exit status, output) of a command in the copy; the status is None if it does not end."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    try:
        process = subprocess.run(command, cwd=COPY, env={**outer, **variables}, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                 timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"no end within {TIMEOUT_S} s"
    return process.returncode, process.stdout


def found(fault):
    """Returns (whether the test finds the fault, the output that tells)."""
    if fault.goal:
        status, output = run(["make", "-s", "SETUP=0", "BACKEND=cpu", fault.goal])
        if status != 0:
            return False, "does not compile:\n" + output
    is_modelled = fault.goal.startswith("build/cuda-model")
    variables = {"LD_LIBRARY_PATH": str(COPY / "build/model-gpu"), "CUDA_VISIBLE_DEVICES": "0,1"} if is_modelled else {}
    if isinstance(fault.test, tuple):
        path, word = fault.test
        variables["TEON_BUILD"] = "build/cuda-model" if is_modelled else "build/cpu"
        command = [path] if path == TORCH else [sys.executable, "dev/run_tests.py", path]
        status, output = run([*command, "-k", word], **variables)
    else:
        # Tests of functions that programs of others call use the default stream; this project's code does not.
        streams = "legacy" if fault.goal == HOUSE else "refuse"
        status, output = run([fault.goal, fault.test, "--abort"], CUDA_DEFAULT_STREAM=streams, **variables)
    # Catch2 breaks lines anywhere, so whitespace is ignored.
    return status != 0 and "".join(fault.words.split()) in "".join(output.split()), output


def planted(fault):
    """Plants the fault, looks for it, and restores the file."""
    path = COPY / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return False, f"{fault.file} has the text {text.count(fault.old)} times; update the table\n"
    before, began = path.stat(), time.time()
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        return found(fault)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        for made in (COPY / fault.goal).parent.rglob("*.o") if fault.goal else ():
            if made.stat().st_mtime >= began:
                made.unlink()  # has the fault; objects of other build folders stay


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    copy_of_checkout()
    faults = [fault for fault in FAULTS if word in f"{fault.name} {fault.file} {fault.test}"]
    instructions = pathlib.Path("/proc/cpuinfo").read_text().split()
    missed = 0
    for fault in faults:
        if fault.needs and not any((need.removeprefix("not ") in instructions) != need.startswith("not ")
                                   for need in fault.needs.split(" or ")):
            print(f"SKIPPED {fault.name}: needs a CPU with {fault.needs}", flush=True)
            continue
        if fault.goal in (MODELLED, MODELLED_TRAIN) and not (ROOT / fault.goal).exists():
            print(f"SKIPPED {fault.name}: needs {fault.goal}", flush=True)
            continue
        ok, output = planted(fault)
        missed += not ok
        print(f"{'found ' if ok else 'MISSED'}  {fault.name}: {fault.file}", flush=True)
        if not ok:
            print(output[-1500:], file=sys.stderr, flush=True)
    print(f"{len(faults) - missed} of {len(faults)} planted faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
