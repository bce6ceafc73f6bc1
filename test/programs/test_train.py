"""The training programs, run as a user runs them:  dev/run_tests.py test/programs/test_train.py"""

import contextlib
import fcntl
import math
import os
import pty
import re
import shutil
import struct
import termios
import time
import unittest

from testing import BUILD, MODELLED, ON_GPUS, RunCase, as_flags, learnable, write_shards

PRESETS = {"train_gpt2": ("tiny", "small", "base", "large"), "train_llama": ("tiny", "60m", "130m", "350m", "1b"),
           "train_qwen2": ("tiny", "0.5b"), "train_qwen3": ("tiny", "0.6b"), "train_olmo2": ("tiny", "1b", "7b"),
           "train_smollm3": ("tiny", "3b")}


class TrainTest(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 32, "--heads": 2, "--vocab-size": 64, "--seq-len": 32,
             "--batch-tokens": 128, "--eval-tokens": 128, "--eval-every": 4, "--micro-batch": 2}
    SMALL = as_flags(SHAPE)

    def setUp(self):
        super().setUp()
        tokens = learnable(3000)
        write_shards(self.folder, tokens[:2500], tokens[2500:])

    def train(self, out, *flags, **how):
        return super().train(out, *flags, **how), self.metrics(out)

    def losses(self, metrics):
        return [(m["kind"], m["step"], m.get("loss", m.get("val_loss")), m.get("grad_norm")) for m in metrics]

    def test_profile_steps_reports_the_time_by_kernel(self):
        result, metrics = self.train("profiled", "--profile-steps", "3:4")
        table = (self.folder / "profiled" / "profile.txt").read_text().splitlines()
        self.assertRegex(table[0], r"share +ms/step +calls/step +GFLOP/s")
        rows = [line.split(None, 2) for line in table[1:]]
        self.assertAlmostEqual(sum(float(share.rstrip("%")) for share, _, _ in rows), 100, delta=0.1 * len(rows))
        # 2 micro-batches per step: the activation's backward in 2 layers; the forward products of these layers and, of
        # the same shape, of the logits.
        self.assertRegex("\n".join(table), r" 4 +activation_backward_kernel<\w+, \d+, Gelu, false>")
        self.assertRegex("\n".join(table), r" 6 +\d+  gemm 64 x 128 x 32 NT")
        self.assertIn("outside of all", table[-1])
        self.assertIn("profile of steps 3 to 4", result.stdout)
        _, without = self.train("plain")
        self.assertEqual(self.losses(metrics), self.losses(without))

    @unittest.skipIf(MODELLED, "test_model_gpu.py trains in FP8 there")
    def test_fp8_trains_like_bf16_with_the_same_bits_for_any_number_of_threads(self):
        def flags(kind):
            return "--dtype", "bf16", "--matmul-dtype", kind, "--channels", 64, "--lr", "1e-2", "--micro-batch", 2

        if ON_GPUS and "compute capability" in self.call(*self.command("old", *flags("fp8")), expect=None).stderr:
            self.skipTest("this GPU multiplies no FP8")
        _, exact = self.train("exact", *flags("same"), steps=40)
        for kind in ("fp8", "fp8-e4m3"):
            with self.subTest(kind):
                first, *others = (
                    self.losses(self.train(f"{kind}-{i}", *flags(kind), *more, steps=40, OMP_NUM_THREADS=threads)[1])
                    for i, (threads, *more) in enumerate(([1], [3], [1, "--recompute", "block"])))
                for other in others:
                    self.assertEqual(other, first)
                losses = [(a["val_loss"], b) for a, (what, _, b, _) in zip(exact, first, strict=True) if what == "eval"]
                for without, with_fp8 in losses:  # while the loss falls steeply, from 4.2 to 0.5 in 40 steps
                    self.assertAlmostEqual(with_fp8, without, delta=0.1)
                self.assertNotEqual(losses[-1][0], losses[-1][1])
        config = self.config("fp8-0")
        self.assertEqual(config["options"]["matmul-dtype"], "fp8")
        self.assertEqual(config["experiment"]["options"]["matmul-dtype"], "fp8")
        error = self.refused("fp8-0", *flags("same"), "--resume", steps=40)
        self.assertIn('--matmul-dtype "same" (was "fp8")', error)
        figures = self.evaluate("--resume", "--out", self.folder / "fp8-0", "--val-data", self.folder, "--eval-tokens",
                                128, "--micro-batch", 2)
        self.assertEqual(figures["val_loss"], self.metrics("fp8-0", "eval")[-1]["val_loss"])

    def test_a_run_writes_its_folder_and_logs_every_step_once(self):
        result, metrics = self.train("run")
        steps = [m for m in metrics if m["kind"] == "step"]
        self.assertEqual([m["step"] for m in steps], list(range(1, 9)))
        self.assertEqual([m["step"] for m in metrics if m["kind"] == "eval"], [4, 8])
        for m in steps:
            self.assertEqual(m["tokens"], 128 * m["step"])
            self.assertTrue(math.isfinite(m["loss"]) and m["ms"] > 0 and m["tokens_per_s"] > 0)
        config = self.config("run")
        self.assertEqual(config["options"]["steps"], 8)
        self.assertEqual(config["program"], "train_gpt2")
        self.assertIn("device", config)
        for word in ("parameters", "memory", "total", "step 8/8"):
            self.assertIn(word, result.stdout)

    def test_the_same_command_gives_the_same_bits(self):
        for optimizer in ("adamw", "lion", "muon", "normuon", "teon"):
            for dtype in ("float", "bf16"):
                with self.subTest(optimizer=optimizer, dtype=dtype):
                    first, *others = (
                        self.losses(self.train(f"{optimizer}-{dtype}-{run}", "--optimizer", optimizer, "--dtype", dtype,
                                               OMP_NUM_THREADS=threads)[1])
                        for run, threads in enumerate("1124"))  # up to the number of cores
                    for other in others:
                        self.assertEqual(other, first)

    def test_it_learns(self):
        for program in PRESETS:
            with self.subTest(program):
                _, metrics = self.train(program, "--lr", "1e-2", program=program, steps=40)
                evals = [m["val_loss"] for m in metrics if m["kind"] == "eval"]
                self.assertLess(evals[-1], evals[0] - 0.3)

    def test_accumulation_is_one_large_batch(self):
        _, small = self.train("small", "--micro-batch", "1", "--dtype", "float")
        _, large = self.train("large", "--micro-batch", "4", "--dtype", "float")
        for a, b in zip(small, large):
            self.assertEqual(a["step"], b["step"])
            if a["kind"] == "step":  # the same sums in another order, over eight steps
                self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5 * b["loss"])

    @unittest.skipIf(ON_GPUS or MODELLED, "a GPU multiplies bf16 in any case")
    def test_the_storage_type_suits_the_cpu_unless_given_or_resumed(self):
        self.train("best")
        library = self.config("best")["device"]["products"]
        self.assertRegex(library, r"^oneDNN \d+\.\d+\.\d+ with \w+")
        best = "bf16" if re.search("AMX|AVX512_BF16", library) else "float"
        self.assertEqual(self.config("best")["storage"]["dtype"], best)
        result, _ = self.train("old", DNNL_MAX_CPU_ISA="AVX2")
        reason = self.config("old")["storage"]["reason"]
        self.assertEqual(self.config("old")["storage"], {"dtype": "float", "reason": reason})
        self.assertRegex(reason, "^oneDNN .* with AVX2 has no instructions for bf16$")
        self.assertRegex(result.stdout, rf"dtype +float \({re.escape(reason)}\)")
        self.train("given", "--dtype", "bf16", DNNL_MAX_CPU_ISA="AVX2")
        self.assertEqual(self.config("given")["storage"], {"dtype": "bf16", "reason": "given"})
        self.train("best", "--resume", DNNL_MAX_CPU_ISA="AVX2")
        self.assertEqual(self.config("best")["storage"]["dtype"], best)

    def test_bf16_follows_float(self):
        _, full = self.train("full", "--dtype", "float")
        _, half = self.train("half", "--dtype", "bf16")
        for a, b in zip(full, half):
            if a["kind"] == "step":  # weights and activations are rounded to 2^-9
                self.assertAlmostEqual(a["loss"], b["loss"], delta=0.02 * a["loss"])

    def test_usage_errors_are_one_line_and_exit_2(self):
        for flags, words in ((["--data", self.folder, "--layers", "0"], "--layers 0"),
                             (["--data", self.folder / "nothing"], "nothing"),
                             (self.command("x", "--out", "/proc/nothing")[1:], "/proc/nothing"), ([], "--data")):
            error = self.error_of(BUILD / "train_gpt2", *flags)
            self.assertTrue(error.startswith("train_gpt2: error: "), error)
            self.assertIn(words, error)

    def test_a_folder_that_is_no_run_is_not_written_to(self):
        corpus = self.folder / "corpus"
        corpus.mkdir()
        (corpus / ".hidden").write_text("x")
        (corpus / "slurm-1.out").write_text("x")
        (corpus / "redirected").write_text("")
        (corpus / "a.txt").write_text("text")
        before = sorted(corpus.iterdir())
        self.assertIn('is a folder with other files ("a.txt") and no run; name a new folder', self.refused("corpus"))
        self.assertIn('other files ("a.txt")', self.refused("corpus", "--resume"))
        self.assertEqual(sorted(corpus.iterdir()), before)
        (corpus / "a.txt").unlink()
        self.train("corpus", steps=1)

    def test_nanogpts_tokens_are_explained(self):
        (self.folder / "nano").mkdir()
        (self.folder / "nano" / "train.bin").write_bytes(bytes(2000))
        for data in ("nano", "nano/train.bin"):
            self.assertIn("train.bin: is not a token shard; nanoGPT's files of this name are uint16 tokens without a "
                          "header: make shards of them with scripts/prepare.py tokens --raw uint16",
                          self.error_of(BUILD / "train_gpt2", "--data", self.folder / data))

    def test_a_plan_without_a_gpu_says_so_and_needs_no_data(self):
        text = self.run_program("--plan-only", "--data", "nowhere").stdout
        if not ON_GPUS:
            self.assertRegex(text, r"^device +.+: this machine, with \S+ .iB for the run \(--memory\); --plan-for "
                                   r"plans a GPU: h100, .*rtx4090")
        self.assertRegex(text, "(?m)^note +nowhere: no such file or folder.*: planned without data")
        self.assertIn("nowhere", self.error_of(BUILD / "train_gpt2", "--data", "nowhere"))
        plan = self.run_program("--plan-only", *self.command("run", steps=8)[1:]).stdout
        run = self.train("run")[0].stdout
        for line in re.findall("(?m)^(?:step|length|optimizer|schedule|clipping|seed)  .*", plan):
            self.assertIn(f"\n{line}\n", run)

    def on_terminal(self, columns, command, **environment):
        """Returns what a program prints on a terminal of so many columns."""
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = self.popen(command, None, environment, stdout=child, stderr=child)
        os.close(child)
        output = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while part := os.read(parent, 4096):
                output += part
        os.close(parent)
        self.assertEqual(process.wait(), 0)
        return output.decode()

    def test_help_and_plans_fit_the_terminal(self):
        for columns in (80, 100):
            for flags in (["--help"], ["--help-all"], ["--plan-for", "h100", "--model", "3b", "--steps", "9",
                                                       "--optimizer", "muon", "--offload", "all"]):
                lines = self.on_terminal(columns, [BUILD / "train_llama", *flags]).splitlines()
                self.assertEqual([line for line in lines if len(line) > columns], [])
                self.assertGreater(max(map(len, lines)), columns - 12)
            for flag in ("--help", "--help-all"):
                lines = self.on_terminal(columns, [BUILD / "generate", flag]).splitlines()
                self.assertEqual([line for line in lines if len(line) > columns], [])

    def test_a_step_is_shown_when_it_ends(self):
        # One micro-batch: on a GPU a step's line appears once the next step is queued, whose batches wait for buffers.
        rows = 128 if MODELLED else 512
        pauses = []
        for run in "abcde":  # a busy machine may delay this process's reading, but not each time
            process = self.start_run(run, "--batch-tokens", 32 * rows, "--micro-batch", rows, steps=3)
            arrived = {}
            for line in process.stdout:
                if line.startswith("step "):
                    arrived[int(line.split()[1].split("/")[0])] = time.monotonic()
            self.assertEqual(process.wait(), 0)
            ms = [line["ms"] for line in self.metrics(run, "step")]
            # A line that is printed too late arrives together with the next step's line.
            pauses.append((arrived[3] - arrived[2]) / ms[2] * 1000)
            if pauses[-1] > 1 / 2:
                return
        self.fail(f"a step's line arrives this share of a step before the next one: {pauses}")

    def test_a_terminal_has_one_live_line_with_a_bar(self):
        def on_terminal(name, **environment):
            return self.on_terminal(60, self.command(name, steps=5),
                                    **{"NO_COLOR": "", "TERM": "xterm", **environment})

        output = on_terminal("colour")
        self.assertIn("\x1b[32m[", output)
        shown = re.findall(r"\r([^\r\n]*)\x1b\[K", re.sub(r"\x1b\[\d*m", "", output))
        bars = [line for line in shown if line.startswith("[")]
        self.assertEqual(len(bars), 5)
        self.assertTrue(all(len(line) < 60 for line in bars))
        self.assertIn("5/5 | loss", bars[-1])
        self.assertNotIn("\nstep 1/5", output)
        self.assertNotIn("\x1b[32m", on_terminal("plain", NO_COLOR="1"))
        dumb = on_terminal("dumb", TERM="dumb")
        self.assertIn("step 1/5 | loss", dumb)
        self.assertNotIn("\x1b", dumb)

    def test_resume_with_only_out_uses_the_runs_own_flags(self):
        self.train("whole", "--optimizer", "muon", "--lr", "0.02", steps=8)
        self.train("cut", "--optimizer", "muon", "--lr", "0.02", "--checkpoint-every", "4", steps=8)
        shutil.rmtree(self.folder / "cut" / "step_00000008")
        self.assertIn("resuming from", self.run_program("--resume", self.folder / "cut").stdout)
        self.assert_same_checkpoint("whole", "cut", 8)
        self.assertIn(f"write --resume --out {self.folder / 'cut'}",
                      self.error_of(BUILD / "train_gpt2", self.folder / "cut"))
        self.run_program("--config", self.folder / "whole" / "config.json", "--out", self.folder / "again")
        self.assert_same_checkpoint("whole", "again", 8, ["model.safetensors"])

    def test_a_run_of_an_older_version_keeps_its_rate_of_adamw_and_its_batch(self):
        # Version 0.2.0 resolved --adamw-lr to --lr.
        flags = ["--optimizer", "muon", "--lr", "0.02"]
        self.train("old", *flags, "--adamw-lr", "0.02", "--checkpoint-every", "4", steps=8)
        for with_config in (True, False):
            shutil.rmtree(self.folder / "old" / "step_00000008")
            if not with_config:
                (self.folder / "old" / "config.json").unlink()
            self.train("old", *flags, "--resume", "--checkpoint-every", "4", steps=8)
            self.assertEqual(self.config("old")["options"]["adamw-lr"], 0.02)
        self.train("new", *flags, steps=8)
        self.assertNotEqual(self.config("new")["options"]["adamw-lr"], 0.02)

    def test_errors_are_one_line_for_any_characters_in_names(self):
        for flags, says in ((["--data", b"a\xff"], "--data"), (["--out", b"runs/\xff"], "--out"),
                            (["--data", "a\nb"], "a\\nb"),
                            (["--data", self.folder, *self.SMALL, "--out", "x" * 5000], "--out")):
            error = self.error_of(BUILD / "train_gpt2", *flags)
            self.assertTrue(error.startswith("train_gpt2: error: "))
            self.assertIn(says, error)

    def test_bash_completes_flags_and_their_values(self):
        def completed(*words, program="train_gpt2"):
            script = (f'source <("{BUILD}/{program}" --completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                      f'_{program}; printf "%s\\n" "${{COMPREPLY[@]}}"')
            result = self.call("bash", "-c", script, "bash", program, *words, expect=None)
            self.assertEqual(result.stderr, "")
            return result.stdout.split()

        self.assertEqual(completed("--adamw"), ["--adamw-lr", "--adamw-weight-decay"])
        self.assertEqual(completed("--optimizer", ""), ["adamw", "lion", "muon", "normuon", "teon"])
        self.assertEqual(completed("--ortho", "jo"), ["jordan"])
        self.assertEqual(completed("--data", "t_tr"), ["t_train_000000.bin"])
        self.assertEqual(completed("--layers", ""), [])
        self.assertIn("--steps", completed("--layers", "3", "--"))
        self.assertEqual(completed("--checkp", program="generate"), ["--checkpoint"])

    def test_plan_only_needs_no_data_and_help_names_every_flag(self):
        for program, presets in PRESETS.items():
            for preset in presets:
                result = self.run_program("--plan-only", "--model", preset, "--optimizer", "teon", "--memory", "400Gi",
                                          program=program)
                self.assertIn("parameters", result.stdout)
                self.assertIn("optimizer state", result.stdout)
        text = self.run_program("--help-all").stdout
        self.train("run")
        for flag in self.config("run")["options"]:
            self.assertIn(f"--{flag}", text)

    def test_plan_for_works_without_the_gpu(self):
        result = self.run_program("--plan-for", "h100", "--model", "1b", "--steps", "10", program="train_llama")
        self.assertEqual(result.returncode, 0, result.stderr)
        for line in ("device +NVIDIA H100 80GB HBM3: 132 multiprocessors, 79.6[0-9] GiB", "dtype +bf16",
                     "attention +flash", "  CUDA and libraries, allowance +1.00 GiB", "memory of the host, pinned"):
            self.assertRegex(result.stdout, "(?m)^" + line)
        ranks = self.run_program("--plan-for", "a100", "--ranks", "8", program="train_llama")
        self.assertIn("8 ranks x", ranks.stdout)

    def test_help_is_short_and_its_four_examples_use_flags_that_exist(self):
        for program in (*PRESETS, "generate"):
            text = self.run_program("--help", program=program).stdout
            if program != "generate":
                self.assertEqual([line for line in text.splitlines() if len(line) > 80], [])
                title = {"gpt2": "GPT-2", "llama": "LLaMA", "qwen2": "Qwen2", "qwen3": "Qwen3", "olmo2": "OLMo 2",
                         "smollm3": "SmolLM3"}[program[6:]]
                self.assertIn(f"Trains {title} language models", text)
                self.assertIn("adamw and lion update all parameters", " ".join(text.split()))
            self.assertEqual(self.run_program("-h", program=program).stdout, text)
            self.assertLess(text.count("\n"), 60)
            examples = re.findall(rf"^  .*\./{program} .*", text, re.M)
            self.assertEqual(len(examples), 5 if program == "generate" else 4, text)
            every = self.run_program("--help-all", program=program).stdout
            self.assertGreater(every.count("\n"), text.count("\n") - 10)
            for flag in re.findall(r"--[a-z][\w-]*", text):
                self.assertRegex(every, rf"(?m)^  {flag}\b")
