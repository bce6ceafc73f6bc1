"""--shard decides where parameters are stored and changes no result.

    dev/run_tests.py test/programs/test_sharding.py
"""

import hashlib
import os
import random
import shutil
import sys
import unittest
import unittest.mock

from rank_runs import Ranks, environment
from testing import BUILD, MODELLED, PATIENCE, STATE, as_flags, read_tensors


class Sharding(Ranks):
    SHARDINGS = ("none", "optimizer", "gradients", "all")
    SHAPE = {**Ranks.SHAPE, "--batch-tokens": 384, "--check-ranks": "off", "--checkpoint-minutes": 0}  # for 12 ranks

    def setUp(self):
        super().setUp()
        if MODELLED and self._testMethodName != "test_any_model_and_optimizer":
            self.skipTest("takes minutes on a modelled GPU; test_any_model_and_optimizer exchanges in every way")

    def result(self, out, steps):
        """Returns {name: what training has computed}: the hash of each tensor of a checkpoint, and of its files, and
        the logged numbers."""
        values = {"metrics": [(m.get("loss"), m.get("grad_norm"), m.get("val_loss")) for m in self.metrics(out)
                              if m["kind"] != "event"]}
        for file in STATE:
            path = self.checkpoint(out, steps) / file
            values[file] = hashlib.sha256(path.read_bytes()).hexdigest()
            for name, (_, _, data) in read_tensors(path).items():
                values[f"{file} {name}"] = hashlib.sha256(data).hexdigest()
        return values

    def assert_same_result(self, actual, expected, what=""):
        different = [name for name in sorted(actual.keys() | expected.keys()) if actual.get(name) != expected.get(name)]
        self.assertFalse(different, f"{what} differs in {', '.join(different[:5])}")

    @unittest.skipIf("asan" in BUILD.name or MODELLED, "these hold more than the program does")
    def test_a_resumed_run_with_offload_holds_what_its_plan_says(self):
        """On a CPU the host's memory, which holds what --offload moves, is the device's."""
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[2:], check=True); open(sys.argv[1] + "
                  "str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss), 'w')")
        flags = {"--model": "1b", "--layers": 2, "--channels": 512, "--ffn": 1365, "--heads": 8, "--vocab-size": 4096,
                 "--seq-len": 64, "--micro-batch": 1, "--batch-tokens": 128, "--offload": "optimizer",
                 "--shard": "optimizer", "--checkpoint-every": 1}
        command = [*self.command("a", "--resume", *as_flags(flags), steps=2, program="train_llama")]
        self.train(2, "a", command=command)
        self.cut("a", 1)
        peaks = self.folder / "peak-"
        self.train(2, "a", command=[sys.executable, "-c", script, peaks, *command])
        held = [1024 * int(path.name.removeprefix("peak-")) for path in self.folder.glob("peak-*")]
        planned = sum(self.config("a")["memory_bytes"].values())
        self.assertEqual(len(self.events("a", "resumed")), 1)
        self.assertGreater(max(held), 0.7 * planned)
        self.assertLess(max(held), 1.05 * planned)

    def assert_all_the_same(self, ranks, flags, steps, shardings=SHARDINGS, of_last=()):
        results = {}
        for sharding in shardings:
            more = of_last if sharding == shardings[-1] else ()
            self.train(ranks, sharding, *flags, "--shard", sharding, *more, steps=steps)
            self.assertEqual(self.config(sharding)["run"]["sharding"], sharding if ranks > 1 else "none")
            results[sharding] = self.result(sharding, steps)
            shutil.rmtree(self.folder / sharding)
            self.assert_same_result(results[sharding], results[shardings[0]], sharding)

    def random_flags(self, draw, ranks):
        """Returns program and flags of a small model with odd sizes and an optimizer, and flags of offloading."""
        heads, micro = draw.randint(1, 4), draw.choice((1, 2))
        key_heads = draw.choice([k for k in range(1, heads + 1) if heads % k == 0])
        program = draw.choice(("train_gpt2", "train_llama", "train_qwen3"))
        flags = {"--layers": draw.randint(1, 5), "--heads": heads, "--channels": heads * 2 * draw.randint(3, 9),
                 "--ffn": draw.randint(20, 70), "--vocab-size": draw.randint(64, 90),
                 "--seq-len": 16, "--micro-batch": micro, "--batch-tokens": ranks * micro * 16,
                 "--dtype": draw.choice(("float", "bf16")), "--recompute": draw.choice(("none", "cheap", "block")),
                 "--grad-clip": draw.choice((0.5, 1)), "--grad-comm-dtype": draw.choice(("float", "bf16")),
                 "--optimizer": draw.choice(("adamw", "muon", "teon", "normuon", "lion"))}
        if program != "train_gpt2":
            flags["--kv-heads"] = key_heads
        if flags["--optimizer"] == "teon":
            flags |= {"--teon-k": draw.randint(1, 4), "--teon-mode": draw.randint(1, 3)}
        most = flags["--layers"] - 2
        blocks = ["all", "--offload-blocks", draw.randint(1, most)] if most > 0 else ["optimizer"]
        return program, as_flags(flags), ["--offload", *blocks]

    def test_any_model_and_optimizer(self):
        """TEON_MODELS sets the number of random models."""
        for seed in range(int(os.environ.get("TEON_MODELS", 2 if MODELLED else 10))):
            draw = random.Random(seed)
            ranks = draw.choice((2, 3, 4))
            self.PROGRAM, flags, offload = self.random_flags(draw, ranks)
            with self.subTest(seed=seed, ranks=ranks, program=self.PROGRAM, flags=flags, offload=offload):
                self.assert_all_the_same(ranks, flags, steps=4, of_last=offload)

    def test_fp8_products_of_gathered_weights(self):
        flags = ["--dtype", "bf16", "--matmul-dtype", "fp8", "--channels", 64, "--heads", 2, "--seq-len", 16,
                 "--micro-batch", 2, "--batch-tokens", 64, "--recompute", "cheap"]
        self.assert_all_the_same(2, flags, steps=4)

    def test_more_ranks_than_parameters_to_own(self):
        self.assert_all_the_same(8, ["--optimizer", "muon", "--layers", 1, "--micro-batch", 1, "--batch-tokens", 128],
                                 steps=3)

    def test_matrices_in_batches_of_other_sizes(self):
        """With AVX2 oneDNN's sums depend on the size of a tile from a width of 128 on."""
        flags = ["--optimizer", "muon", "--channels", 128, "--heads", 4, "--batch-tokens", 64, "--dtype", "float"]
        with unittest.mock.patch.dict(os.environ, DNNL_MAX_CPU_ISA="AVX2"):
            self.assert_all_the_same(2, flags, steps=3)

    def test_one_rank_does_not_shard(self):
        self.assert_all_the_same(1, ["--optimizer", "teon"], steps=3)

    def test_several_micro_batches_are_summed_in_another_order(self):
        """Shardings that divide gradients sum over the ranks first. Both give the same bits, close to the others'."""
        flags = ["--optimizer", "teon", "--dtype", "float"]
        self.assert_all_the_same(2, flags, steps=6, shardings=("gradients", "all"))
        self.assert_all_the_same(2, flags, steps=6, shardings=("none", "optimizer"))
        for sharding in ("optimizer", "all"):
            self.train(2, sharding, *flags, "--shard", sharding, steps=6)
        self.assert_close(self.losses("all"), self.losses("optimizer"), 1e-6)

    def test_offloading_changes_no_number(self):
        """Offloads optimizer state and activations. The 3 layers are not a multiple of the stack size 2."""
        flags = ["--optimizer", "teon", "--dtype", "bf16"]
        for ranks, sharding, tokens in ((3, "optimizer", 96), (3, "all", 96), (2, "all", 192)):
            shared = [*flags, "--shard", sharding, "--batch-tokens", tokens]
            self.train(ranks, "off", *shared, steps=4)
            self.train(ranks, "on", *shared, "--offload", "all", "--offload-blocks", 1, steps=4)
            self.assert_same_result(self.result("on", 4), self.result("off", 4))
            for out in ("on", "off"):
                shutil.rmtree(self.folder / out)

    def test_gradients_in_bf16(self):
        """With one micro-batch all shardings give the same bits, close to gradients in float. One rank sends none."""
        flags = ["--optimizer", "teon", "--dtype", "float"]
        bf16 = [*flags, "--grad-comm-dtype", "bf16"]
        for ranks in (2, 4):
            one = ["--batch-tokens", ranks * 32]
            self.assert_all_the_same(ranks, [*bf16, *one], steps=6)
            self.assert_all_the_same(ranks, bf16, steps=6, shardings=("none", "optimizer"))
            self.assert_all_the_same(ranks, bf16, steps=6, shardings=("gradients", "all"))
            for name, more in (("float", flags), ("optimizer", bf16), ("all", [*bf16, "--shard", "all"])):
                self.train(ranks, name, *more, steps=20)
            for name in ("optimizer", "all"):
                self.assertNotEqual(self.losses(name), self.losses("float"))
                self.assert_close(self.losses(name), self.losses("float"), 1 / 256)
            for name in ("float", "optimizer", "all"):
                shutil.rmtree(self.folder / name)
        self.assert_all_the_same(1, flags, steps=3)
        self.train(1, "1", *bf16, steps=3)
        self.train(1, "float", *flags, steps=3)
        self.assertEqual(self.losses("1"), self.losses("float"))
        process = self.launch(self.command("1", *flags, "--grad-comm-dtype", "float", "--resume", steps=3))
        self.assertIn('differ from the run that was saved: --grad-comm-dtype "float" (was "bf16")',
                      process.communicate(timeout=PATIENCE)[0])

    def test_resuming_with_another_sharding(self):
        """Gives the same bits, because a checkpoint does not depend on the sharding that wrote it."""
        flags = ["--optimizer", "teon", "--checkpoint-every", 3, "--batch-tokens", 96]
        for dtype in ("float", "bf16"):
            self.train(3, "whole", *flags, "--dtype", dtype, steps=6)
            for before, after in (("all", "optimizer"), ("optimizer", "all"), ("gradients", "none")):
                with self.subTest(dtype=dtype, before=before, after=after):
                    self.train(3, "cut", *flags, "--dtype", dtype, "--shard", before, steps=6)
                    shutil.rmtree(self.folder / "cut" / "step_00000006")
                    self.train(3, "cut", *flags, "--dtype", dtype, "--shard", after, "--resume", steps=6)
                    self.assertEqual(self.config("cut")["run"]["sharding"], after)
                    self.assertEqual(self.losses("cut"), self.losses("whole"))
                    self.assert_same_checkpoint("cut", "whole", 6)
                    shutil.rmtree(self.folder / "cut")
            shutil.rmtree(self.folder / "whole")

    def test_resuming_on_another_number_of_ranks(self):
        flags = ["--optimizer", "muon", "--checkpoint-every", 4, "--dtype", "float"]
        for before, after in ((4, 1), (1, 3), (2, 4)):
            with self.subTest(before=before, after=after):
                self.train(before, "cut", *flags, "--shard", "all", steps=8)
                whole = self.losses("cut")
                shutil.rmtree(self.folder / "cut" / "step_00000008")
                self.train(after, "cut", *flags, "--shard", "all", "--resume", steps=8)
                self.assert_close(self.losses("cut"), whole, 1e-6)
                shutil.rmtree(self.folder / "cut")

    def test_beginning_with_a_model(self):
        flags = ["--optimizer", "teon", "--batch-tokens", 96]
        self.train(3, "model", *flags, steps=3)
        results = []
        for sharding in ("optimizer", "all"):
            self.train(3, sharding, *flags, "--seed", 5, "--init-from", self.folder / "model", "--shard", sharding,
                       steps=3)
            results.append(self.result(sharding, 3))
        self.assert_same_result(*results)

    def test_features_that_need_whole_weights_get_them_or_are_refused(self):
        needs = "needs all weights on each rank, but --shard all divides them; use --shard gradients"
        for flags, says in ((["--shard", "all", "--check-ranks", "on"], f"--check-ranks: {needs}"),
                            (["--shard", "all", "--sample-every", 2], f"--sample-every: {needs}")):
            self.expect(self.launch(self.ranks(2, self.command("x", *flags))), says, 2)
        for sharding in ("none", "gradients"):
            self.train(2, sharding, "--shard", sharding, "--check-ranks", "on", "--sample-every", 5,
                       "--prompt-tokens", 1, "--diagnose-every", 5, "--optimizer", "teon", "--batch-tokens", 64)
        self.assertEqual(*((self.folder / s / "samples.txt").read_text() for s in ("none", "gradients")))
        self.assertEqual(self.diagnoses("none"), self.diagnoses("gradients"))

    def test_a_signal_ends_a_long_step(self):
        for sharding in ("gradients", "all"):
            with self.subTest(sharding=sharding):
                self.assertIn("stopped by another rank after step 0", self.end_in_the_first_step(
                    sharding, "--shard", sharding, "--batch-tokens", 3 * 2**16))

    def test_memory_and_traffic(self):
        for ranks in (1, 2, 4):
            for sharding in self.SHARDINGS:
                with self.subTest(ranks=ranks, sharding=sharding):
                    name = f"train/sharding: memory and traffic of {sharding}"
                    result = self.call(*self.ranks(ranks, [BUILD / "tests", name]), env=environment())
                    self.assertEqual(result.stdout.count("All tests passed"), ranks)
