"""Compares nvcc's build on the modelled GPU with the CPU's build:  make cuda-run-tests"""

import shutil
import unittest

from rank_runs import LAUNCHER
from testing import MODELLED, ROOT, RunCase, learnable, missing_for_ranks, write_shards

OPTIMIZERS = ("adamw", "lion", "muon", "normuon", "teon")


@unittest.skipUnless(MODELLED, "runs what nvcc built")
class ModelGpu(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 64, "--heads": 2, "--vocab-size": 64, "--seq-len": 32,
             "--batch-tokens": 256, "--micro-batch": 2, "--eval-tokens": 128, "--eval-every": 1000, "--lr": 0.01}
    STEPS = 3

    def setUp(self):
        super().setUp()
        tokens = learnable(3000)
        write_shards(self.folder, tokens[:2500], tokens[2500:])

    def numbers(self, out):
        return [(m.get("loss"), m.get("grad_norm"), m.get("val_loss")) for m in self.metrics(out)]

    def on_ranks(self, ranks, out, *flags, program, **how):
        command = self.command(out, *flags, program=program)
        launcher = [*LAUNCHER, "-np", ranks] if ranks > 1 else []
        self.call(*launcher, *command, OMP_NUM_THREADS=1, **how)
        return self.losses(out)

    def test_every_optimizer_trains_as_on_a_cpu_on_one_and_two_ranks(self):
        for program in ("train_gpt2", "train_llama"):
            for optimizer in OPTIMIZERS:
                # Newton-Schulz in f16 has an error of 2^-11 of updates that change the loss by hundredths. Lion's steps
                # are signs.
                flags = ["--optimizer", optimizer, "--dtype", "float", *(["--lr", 1e-4] if optimizer == "lion" else [])]
                with self.subTest(program=program, optimizer=optimizer):
                    expected = self.on_ranks(1, "cpu", *flags, program=ROOT / "build/cpu" / program)
                    for ranks in (1,) if missing_for_ranks() else (1, 2):
                        found = self.on_ranks(ranks, f"gpu{ranks}", *flags, program=program)
                        self.assertEqual(len(found), len(expected))
                        for a, b in zip(found, expected):
                            self.assertLess(abs(a - b), 1e-4 * b)  # NaN is not less
                for run in self.folder.glob("*pu*"):
                    shutil.rmtree(run)

    def test_the_order_of_lanes_warps_blocks_and_streams_changes_no_bit(self):
        for flags in (["--optimizer", "adamw", "--dtype", "bf16"],
                      ["--optimizer", "teon", "--dtype", "bf16"],
                      ["--optimizer", "adamw", "--matmul-dtype", "fp8", "--dtype", "bf16"]):
            self.train("first", *flags)
            for order in ("reverse", "random:1", "random:2"):
                with self.subTest(flags=flags, order=order):
                    streams = order if order != "reverse" else "random:0"
                    self.train("other", *flags, SIMT_ORDER=order, CUDA_ORDER=streams)
                    self.assertEqual(self.numbers("other"), self.numbers("first"))
                    shutil.rmtree(self.folder / "other")
            shutil.rmtree(self.folder / "first")

    @unittest.skipIf(missing_for_ranks(), str(missing_for_ranks()))
    def test_the_order_of_streams_changes_no_bit_on_two_ranks(self):
        """Weights that a rank sent before it has updated them, or read before they have arrived, would be old in some
        order."""
        for flags in (["--optimizer", "adamw"], ["--optimizer", "teon", "--dtype", "bf16"],
                      ["--optimizer", "adamw", "--shard", "all"]):
            expected = self.on_ranks(2, "first", *flags, program="train_gpt2")
            for order in ("random:1", "random:2", "random:3"):
                with self.subTest(flags=flags, order=order):
                    found = self.on_ranks(2, "other", *flags, program="train_gpt2", CUDA_ORDER=order)
                    self.assertEqual(found, expected)
                    shutil.rmtree(self.folder / "other")
            shutil.rmtree(self.folder / "first")

    def test_launches_of_large_shapes_are_accepted(self):
        """Steps are launched but not computed, so the weights are not finite and cannot be saved."""
        tokens = learnable(70000)
        write_shards(self.folder, tokens, tokens)
        shape = {"--eval-every": 0, "--checkpoint-every": 0}
        for program, *flags in (["train_gpt2", "--model", "large", "--micro-batch", 4, "--optimizer", "teon"],
                                ["train_gpt2", "--micro-batch", 64],  # more than 2^31 logits
                                ["train_gpt2", "--micro-batch", 70000, "--seq-len", 16, "--attention", "gemm"],
                                ["train_llama", "--model", "350m", "--micro-batch", 2, "--seq-len", 65536]):
            with self.subTest(program=program, flags=flags):
                values = dict(zip(flags[::2], flags[1::2]))
                batch = values["--micro-batch"] * values.get("--seq-len", 1024)
                result = self.train("run", *flags, "--batch-tokens", batch, shape=shape, program=program, steps=1,
                                    expect=1, CUDA_DRY=1)
                self.assertIn("step 1/1 | loss -nan", result.stdout)
                self.assertRegex(result.stderr, "^train_[a-z0-9]+: error: .* not finite.*\n$")
                shutil.rmtree(self.folder / "run")

    def test_fp8_products_equal_the_cpus_and_are_refused_before_sm_89(self):
        flags = ["--dtype", "bf16", "--attention", "gemm", "--matmul-dtype"]
        for kind in ("fp8", "fp8-e4m3"):
            cpu = self.on_ranks(1, f"cpu-{kind}", *flags, kind, program=ROOT / "build/cpu/train_gpt2")
            gpu = self.on_ranks(1, f"gpu-{kind}", *flags, kind, program="train_gpt2")
            # A CPU's attention in tiles rounds to bf16 elsewhere than a GPU's rows: 3e-4 of the third loss without FP8,
            # 4e-3 with it, whose codes differ by 6% where a value is at their edge. The first loss has had no update.
            self.assertLess(abs(gpu[0] - cpu[0]), 2e-5 * cpu[0])
            for a, b in zip(gpu, cpu, strict=True):
                self.assertLess(abs(a - b), 1e-2 * b)
        self.assertIn("--matmul-dtype fp8: needs a GPU of compute capability 8.9 or later, but NVIDIA A100",
                      self.call(*self.command("old", *flags, "fp8"), expect=2, CUDA_DEVICE="A100").stderr)

    def test_unknown_gpus_and_orders_are_refused_by_name(self):
        error = self.call(*self.command("run"), expect=None, CUDA_DEVICE="B200").stderr
        self.assertIn('CUDA_DEVICE is "B200"; it must be one of H100, H200, A100, L40S, RTX4090', error)
        for variable, value in (("CUDA_ORDER", "soon"), ("SIMT_ORDER", "sideways")):
            result = self.call(*self.command("run"), expect=None, **{variable: value})
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(f'{variable} is "{value}"', result.stderr)


