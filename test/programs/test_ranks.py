"""Several ranks on this machine:  scripts/run_tests.py test/programs/test_ranks.py

On CPUs mpirun starts the ranks. On GPUs scripts/launch/local.py does, one per GPU; tests that need more ranks than
there are GPUs are skipped.
"""

import hashlib
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

from testing import (
    BUILD,
    MODELLED,
    ON_GPUS,
    ROOT,
    STATE,
    RunCase,
    as_flags,
    failing_files,
    gpus,
    learnable,
    missing_for_ranks,
    read_tensors,
    write_shard,
    write_shards,
)

PROGRAM = BUILD / "train_gpt2"
PATIENCE = 600  # seconds for a run that must end by itself; `make soak` may share the machine with other work
# The relative change of a loss that another order of sums may cause. A GPU's Newton-Schulz rounds to f16.
FLOAT = 1e-4 if BUILD.name.startswith("cuda") else 1e-6
if ON_GPUS:
    LAUNCHER, RANK = [sys.executable, ROOT / "scripts/launch/local.py"], "RANK"
else:
    LAUNCHER = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1"]
    RANK = "OMPI_COMM_WORLD_RANK"


def environment(**more):
    """Returns an environment without variables of this test's own launcher. Ranks share few cores: one thread each."""
    theirs = ("OMPI_", "PMI", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_", "TEON_TEST_LOG",
              "NCCL_COMM_ID")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(theirs)}
    return {**clean, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **{k: str(v) for k, v in more.items()}}


def for_rank(rank, what, command):
    """Returns the command, before which this rank executes `what`. There "$@" is the command."""
    return ["bash", "-c", f'if [ ${RANK} = {rank} ]; then {what}; fi; exec "$@"', "bash", *command]


class Ranks(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 3, "--channels": 32, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--batch-tokens": 768, "--micro-batch": 2, "--eval-tokens": 496, "--eval-every": 1000,
             "--check-ranks": "on", "--comm-timeout": 60}
    STEPS = 10

    @classmethod
    def setUpClass(cls):
        if reason := missing_for_ranks():
            raise unittest.SkipTest(reason)

    def setUp(self):
        super().setUp()
        tokens = learnable(6000)
        write_shards(self.folder, tokens[:5000], tokens[5000:])

    def ranks(self, n, command):
        """Returns the command that starts n ranks."""
        if ON_GPUS and n > gpus():
            self.skipTest(f"needs {n} GPUs")
        return [*LAUNCHER, "-np", n, *command] if n > 1 else command

    def train(self, ranks, out, *flags, steps=None, command=None):
        command = self.ranks(ranks, command or self.command(out, *flags, steps=steps))
        return self.call(*command, timeout=PATIENCE, env=environment())

    def launch(self, command, **variables):
        return self.start(*command, stderr=subprocess.STDOUT, env=environment(**variables))

    def expect(self, process, pattern, status=1):
        """Waits for ranks that must fail (None: with any status) and print the pattern. Returns their output."""
        output = process.communicate(timeout=300)[0]
        self.assertNotEqual(process.returncode, 0, output)
        if status:
            self.assertEqual(process.returncode, status, output)
        self.assertRegex(output, pattern)
        return output

    def wait_for_log(self, process, run, size=0):
        log = self.folder / run / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.stat().st_size >= size):
            self.assertTrue(process.poll() is None and time.monotonic() < deadline, process.poll())
            time.sleep(0.02)

    def end_in_the_first_step(self, out, *flags, of=(1,)):
        """Sends SIGTERM to some of two ranks, which are in a step that would take a minute. They skip the rest of its
        computation, but not of its exchange, so that none waits. Returns their output."""
        process = self.launch(self.ranks(2, self.command(out, *flags)))
        self.wait_for_log(process, out)
        time.sleep(0.5)
        ids = self.ranks_of(out)
        for rank in of:
            os.kill(ids[rank], signal.SIGTERM)
        output = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 0, output)
        return output

    def ranks_of(self, run):
        """Returns {rank: process id} of a run."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (str(self.folder / run) not in (path / "cmdline").read_text()
                        or PROGRAM.name not in (path / "comm").read_text()):
                    continue
                variables = (path / "environ").read_text().split("\0")
            except OSError:
                continue
            for v in variables:
                if v.startswith(RANK + "="):
                    found[int(v.split("=")[1])] = int(path.name)
        return found

    def assert_no_rank_left(self, run):
        """Waits for the ranks' end, because the launcher may end before the ranks that it killed."""
        deadline = time.monotonic() + 10
        while left := self.ranks_of(run):
            self.assertLess(time.monotonic(), deadline, left)
            time.sleep(0.05)

    def assert_close(self, a, b, tolerance):
        self.assertEqual(len(a), len(b))
        for step, (x, y) in enumerate(zip(a, b), 1):
            self.assertTrue(math.isfinite(x) and abs(x - y) <= tolerance * abs(y), f"step {step}: {x} and {y}")


class SameResult(Ranks):
    def same_on(self, ranks, *flags, steps=10 if MODELLED else 50, tolerance=FLOAT):
        """Ranks sum gradients in another order than one rank does; the difference grows with the steps."""
        self.train(1, "1", "--dtype", "float", *flags, steps=steps)
        for n in ranks:
            self.train(n, str(n), "--dtype", "float", *flags, steps=steps)
            self.assert_close(self.losses(str(n)), self.losses("1"), tolerance)
        for out in self.folder.glob("[1-8]"):
            shutil.rmtree(out)

    def test_adamw(self):
        self.same_on((2, 4))

    def test_muon(self):
        self.same_on((2, 4), "--optimizer", "muon")

    def test_soap(self):
        """An eigenvector turns by rounding / the gap to the next eigenvalue: 3e-6 here in 12 steps. Steps along the
        directions of rounding noise would show as 4e-4."""
        self.same_on((2, 4), "--optimizer", "soap", "--soap-frequency", 10, steps=12, tolerance=1e-5)

    def test_teon_with_every_depth_and_mode(self):
        for k in (1, 2, 3):
            for mode in (1, 2):
                with self.subTest(k=k, mode=mode):
                    self.same_on((2, 4) if k == 2 else (4,), "--optimizer", "teon", "--teon-k", k, "--teon-mode", mode)

    def test_the_other_optimizers(self):
        # Lion's steps are signs: different rounding on several ranks flips a few of them.
        for name, *flags in (["normuon"], ["lion", "--lr", "1e-5"],
                             ["teon", "--neuron-norm", "--ortho-per-head", "--ns-aol"]):
            with self.subTest(optimizer=name):
                self.same_on((2, 3), "--optimizer", name, *flags, steps=10)

    def test_state_of_any_shape_is_gathered_for_checkpoints(self):
        """SOAP's state is larger than the parameters: ranks collect it in pieces."""
        flags = ["--optimizer", "soap", "--soap-frequency", "4", "--checkpoint-every", "6", "--dtype", "float"]
        state = "step_00000012/optimizer/state.safetensors"
        self.train(3, "whole", *flags, steps=12)
        for after in (3, 1):
            out = str(after)
            self.train(3, out, *flags, steps=12)
            shutil.rmtree(self.folder / out / "step_00000012")
            self.train(after, out, *flags, "--resume", steps=12)
            same = (self.folder / out / state).read_bytes() == (self.folder / "whole" / state).read_bytes()
            self.assertEqual(same, after == 3)
            # Eigenvectors of zero eigenvalues are arbitrary and depend on the rounding of sums.
            self.assert_close(self.losses(out), self.losses("whole"), 0 if after == 3 else 0.02)

    def test_bf16_is_close(self):
        # Half the precision of bf16's 8 bits: gradients are summed in float in both cases, but weights are rounded.
        self.train(1, "1", "--dtype", "bf16", "--optimizer", "teon", steps=20)
        self.train(2, "2", "--dtype", "bf16", "--optimizer", "teon", steps=20)
        self.assert_close(self.losses("2"), self.losses("1"), 1 / 256)

    def test_dropout(self):
        self.same_on((2, 3), "--dropout", 0.2, steps=8 if MODELLED else 20)

    def test_patience_ends_all_ranks_after_the_same_step(self):
        result = self.train(2, "run", "--patience", 2, "--eval-every", 2, "--lr", 0, "--keep-best", steps=40)
        self.assertIn("of step 2 after step 6;", result.stdout)
        self.assertEqual(os.readlink(self.folder / "run" / "best"), "step_00000002")
        self.assertEqual(self.checkpoints("run"), ["step_00000002", "step_00000006"])
        result = self.train(2, "run", "--resume", steps=40)
        self.assertIn("of step 2 after step 6;", result.stdout)

    def test_more_ranks_than_stacks(self):
        flags = ["--optimizer", "muon", "--layers", "1"]  # six matrices
        self.same_on((8,), *flags, steps=10)
        plan = self.call(*self.command("x", *flags), "--plan-only", "--ranks", 8).stdout
        self.assertRegex(plan, r"(?m)^ +\d-\d +0 +0\.00 ")  # ranks that own no stack

    def test_two_runs_give_the_same_bits_with_and_without_graphs(self):
        for out in ("off", "on", "again"):
            self.train(2, out, "--optimizer", "teon", "--graphs", "off" if out == "off" else "on", steps=20)
        self.assertEqual(self.losses("off"), self.losses("on"))
        self.assertEqual(self.losses("off"), self.losses("again"))

    def test_weights_agree_on_all_ranks_for_many_steps(self):
        self.train(4, "4", "--optimizer", "teon", steps=20 if MODELLED else 200)  # SHAPE has --check-ranks

    def test_evaluation_equals_that_of_one_rank_bit_for_bit(self):
        # 31 windows in batches of two: ranks get different numbers of batches, and the last batch is short.
        for ranks in (1, 2, 3, 4):
            self.train(ranks, str(ranks), "--lr", "0", steps=1)
        results = {m["val_loss"] for n in "1234" for m in self.metrics(n, "eval")}
        self.assertEqual(len(results), 1, results)

    def test_collectives_and_reducer(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                result = self.call(*self.ranks(ranks, [BUILD / "tests", "[ranks]"]), env=environment(), timeout=120)
                self.assertEqual(result.stdout.count("All tests passed"), ranks)

    def test_resuming_on_another_number_of_ranks(self):
        for before, after, dtype in ((1, 2, "float"), (2, 1, "float"), (2, 4, "bf16"), (4, 1, "bf16")):
            with self.subTest(before=before, after=after, dtype=dtype):
                flags = ["--optimizer", "teon", "--checkpoint-every", "6", "--dtype", dtype]
                out = f"{before}-{after}"
                self.train(before, out, *flags, steps=12)
                whole = self.losses(out)
                shutil.rmtree(self.folder / out / "step_00000012")
                self.train(after, out, *flags, "--resume", steps=12)
                self.assert_close(self.losses(out), whole, FLOAT if dtype == "float" else 1 / 256)
                if before == 4:
                    self.compare_checkpoints(out)

    def test_ranks_save_by_the_clock_of_rank_0_and_it_changes_nothing(self):
        flags = ["--optimizer", "teon", "--checkpoint-every", 5]
        self.train(2, "steps", *flags, "--checkpoint-minutes", 0, steps=10)
        result = self.train(2, "clock", *flags, "--checkpoint-minutes", 1e-6, steps=10)
        saved = [int(step) for step in re.findall(r"(?m)^checkpoint \S*/step_(\d+) ", result.stdout)]
        self.assertGreater(len(saved), 2)
        self.assertNotIn(6, saved)  # rank 0 asks for it after step 6 at the earliest, as step 5 has been saved
        self.assertEqual(self.losses("clock"), self.losses("steps"))
        for out in ("clock", "steps"):
            self.assertEqual(self.checkpoints(out), ["step_00000005", "step_00000010"])
        self.assert_same_checkpoint("clock", "steps", 10)

    def compare_checkpoints(self, out):
        """Compares the checkpoint of four ranks with that of one rank, which continued from it. Both have the same
        tensors. Master weights have changed little: uncollected masters of a rank would still be the initial ones."""
        def tensors(step, file):
            found = read_tensors(self.checkpoint(out, step) / file)
            return {name: memoryview(data).cast("f") for name, (_, _, data) in found.items()}

        for file in STATE:
            of_four, of_one = tensors(6, file), tensors(12, file)
            self.assertEqual(of_four.keys(), of_one.keys())
        masters, later = tensors(6, "model.safetensors"), tensors(12, "model.safetensors")
        rounded = [x for t in masters.values() for x in t if x != 0 and math.frexp(x)[0] * 256 % 1 == 0]
        self.assertLess(len(rounded), sum(map(len, masters.values())) / 4)  # floats, not broadcast bf16
        moved = sum((x - y) ** 2 for n in masters for x, y in zip(masters[n], later[n]))
        size = sum(x * x for t in masters.values() for x in t)
        self.assertLess(moved, 0.3 * size)

    def test_only_rank_0_prints(self):
        alone = self.train(1, "alone").stdout.splitlines()
        result = self.train(2, "two", "--rank-logs")
        steps = [line for line in result.stdout.splitlines() if line.startswith("step ")]
        self.assertEqual(len([line for line in steps if "/10 |" in line]), 10)
        self.assertEqual(len([line for line in alone if "/10 |" in line]), 10)
        self.assertEqual(result.stderr, "")
        self.assertIn("step 10/10", (self.folder / "two" / "rank1.log").read_text())
        self.assertEqual(len((self.folder / "two" / "metrics.rank1.jsonl").read_text().splitlines()),
                         len(self.metrics("two")))


    def test_ranks_without_out_use_the_folder_that_rank_0_names(self):
        command = self.command("unused", steps=2)
        at = command.index("--out")
        self.call(*self.ranks(2, command[:at] + command[at + 2:]), timeout=120, env=environment(),
                  preexec_fn=lambda: os.chdir(self.folder))
        [run] = (self.folder / "runs").iterdir()
        self.assertTrue((run / "step_00000002" / "manifest.json").exists())


class Sharding(Ranks):
    """--shard decides where parameters are stored and changes no result."""

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

    def test_soap(self):
        self.assert_all_the_same(3, ["--optimizer", "soap", "--soap-frequency", 2, "--batch-tokens", 96], steps=5)

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
                      process.communicate(timeout=60)[0])

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
                            (["--shard", "all", "--sample-every", 2], f"--sample-every: {needs}"),
                            (["--shard", "none", "--autotune", "--optimizer", "muon"],
                             "--autotune: with --shard none each rank updates all matrices")):
            self.expect(self.launch(self.ranks(2, self.command("x", *flags))), says, 2)
        for sharding in ("none", "gradients"):
            self.train(2, sharding, "--shard", sharding, "--check-ranks", "on", "--sample-every", 5,
                       "--prompt-tokens", 1, "--diagnose-every", 5, "--optimizer", "teon", "--batch-tokens", 64)
        self.assertEqual(*((self.folder / s / "samples.txt").read_text() for s in ("none", "gradients")))
        self.assertEqual(self.metrics("none", "diagnose"), self.metrics("gradients", "diagnose"))

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
                    result = self.call(*self.ranks(ranks, [BUILD / "tests", name]), env=environment(), timeout=120)
                    self.assertEqual(result.stdout.count("All tests passed"), ranks)


class Failures(Ranks):
    """If a rank fails, all ranks end and one of them names it."""

    def running(self, run, *flags, ranks=3):
        """Returns a long run in the middle of its steps."""
        process = self.launch(self.ranks(ranks, self.command(run, *flags, steps=1000000)))
        self.wait_for_log(process, run, 1000)
        return process, self.ranks_of(run)

    def test_flags_of_one_rank_that_the_others_must_share_are_named(self):
        one = self.command("flags", steps=2)
        for command, says in (
                (for_rank(1, 'exec "$@" --verify-data', one), "rank 1 has different --verify-data than rank 0"),
                (for_rank(1, 'exec "$@" --seed 1', one), "rank 1 has different options or data than rank 0"),
                (for_rank(1, 'exec "$@" --dtype bf16', for_rank(0, 'exec "$@" --dtype float', one)),
                 "--dtype bf16: rank 0 stores float; give all ranks the same")):
            with self.subTest(says):
                self.expect(self.launch(self.ranks(2, command)), re.escape(says), None)
                self.assert_no_rank_left("flags")

    def test_a_rank_is_killed(self):
        for rank in (0, 1, 2):
            with self.subTest(rank=rank):
                process, ids = self.running(f"kill{rank}")
                os.kill(ids[rank], signal.SIGKILL)
                self.expect(process, rf"rank {rank}\b.*(Killed|SIGKILL)", None)
                self.assert_no_rank_left(f"kill{rank}")

    @unittest.skipIf(ON_GPUS, "NVIDIA's NCCL has no NCCL_DIE_AT")
    def test_a_rank_dies_in_any_collective(self):
        """With TEON_KILLS, tries every collective of a step and an evaluation."""
        at, after = 1, 1
        while True:
            out = f"die{at}"
            command = self.command(out, "--shard", "all", "--check-ranks", "off", steps=1)
            process = self.launch(self.ranks(3, for_rank(1, f"export NCCL_DIE_AT={at}", command)))
            output = process.communicate(timeout=120)[0]
            self.assert_no_rank_left(out)
            if process.returncode == 0:
                break
            self.assertRegex(output, r"rank 1\b.*(Killed|SIGKILL)")
            at, after = (at + 1, 1) if "TEON_KILLS" in os.environ else (at + after, at)
        self.assertGreater(at, 20)

    def test_killed_ranks_resume_to_the_same_bits(self):
        self.kill_and_resume(2, 7)

    def test_killed_ranks_resume_on_fewer_ranks_to_the_bits_of_an_undisturbed_run(self):
        """TEON_KILLS sets the number of kills for each sharding."""
        for sharding in ("gradients", "all"):
            with self.subTest(sharding=sharding):
                self.kill_and_resume(int(os.environ.get("TEON_KILLS", 2)), 7, 4, sharding)
                for run in self.folder.glob("*/metrics.jsonl"):
                    shutil.rmtree(run.parent)

    def kill_and_resume(self, kills, seed, ranks=2, sharding=None):
        """With a sharding, each kill is followed by fewer ranks. No rank survives a kill or waits for a dead one."""
        flags = ["--optimizer", "teon", "--checkpoint-every", "5", "--check-ranks", "off"]
        if sharding:
            flags += ["--shard", sharding]
        steps, rng = 20 if MODELLED else 60, random.Random(seed)
        begin = time.monotonic()
        self.train(ranks, "whole", *flags, steps=steps)
        duration = time.monotonic() - begin
        lives = 0
        while kills > 0:
            out, whole, n, lives = f"killed{lives}", "whole", ranks, lives + 1
            while True:
                command = self.command(out, *flags, "--keep-last", "2", "--resume", steps=steps)
                process = self.launch(self.ranks(n, command))
                try:
                    output, _ = process.communicate(timeout=rng.uniform(0.2, 0.8) * duration if kills > 0 else PATIENCE)
                    self.assertEqual(process.returncode, 0, output)
                    break
                except subprocess.TimeoutExpired:
                    kills -= 1
                    ids = self.ranks_of(out)
                    if ids:
                        os.kill(ids[rng.choice(sorted(ids))], signal.SIGKILL)
                    else:
                        process.kill()
                    process.communicate(timeout=60)
                    self.assert_no_rank_left(out)
                if sharding and n > 1:
                    n = rng.randrange(1, n)
                    whole = self.undisturbed(whole, out, n, *flags, steps=steps)
            self.assert_same_checkpoint(out, whole, steps)
            self.assertEqual(self.losses(out), self.losses(whole))

    def undisturbed(self, whole, killed, ranks, *flags, steps):
        """Makes a run that continues `whole` on this number of ranks, from the step at which `killed` will resume."""
        out = f"{killed}-{ranks}"
        saved = [name for name in self.checkpoints(killed) if not name.endswith(".tmp")]
        if saved:
            shutil.copytree(self.folder / whole, self.folder / out)
            for name in self.checkpoints(out):
                if name > max(saved):
                    shutil.rmtree(self.folder / out / name)
        self.train(ranks, out, *flags, "--resume", steps=steps)
        return out

    def test_a_rank_is_stopped(self):
        """The other ranks report the operation that timed out and, on CPUs, the rank."""
        for rank in (0, 1, 2):
            with self.subTest(rank=rank):
                process, ids = self.running(f"stop{rank}", "--comm-timeout", "6")
                os.kill(ids[rank], signal.SIGSTOP)
                late = "" if ON_GPUS else rf".* rank {rank}\b"
                self.expect(process, rf"(reduce_sum|broadcast) of .*: waited 6 s \(--comm-timeout\) for the other "
                                     rf"ranks{late}")
                self.assert_no_rank_left(f"stop{rank}")

    def test_a_checkpoint_may_take_longer_than_the_timeout(self):
        """Rank 0's file operations in the checkpoint take 3 s in total."""
        library = failing_files(self.folder)
        slow = (f"export LD_PRELOAD={library} FAIL_UNDER={self.folder}/long/step_ FAIL_AT=3 FAIL_HOW=slow")
        self.train(2, "long", command=for_rank(0, slow, self.command("long", "--comm-timeout", 2, steps=2)))
        self.assertTrue((self.folder / "long/step_00000002/manifest.json").exists())

    def test_ranks_skip_a_damaged_checkpoint_of_a_run_with_an_initial_model(self):
        flags = ["--init-from", self.folder / "begin", "--checkpoint-every", 1, "--schedule", "constant"]
        self.train(1, "begin", steps=1)
        self.train(2, "run", *flags, steps=2)
        (self.folder / "run/step_00000002/config.json").write_text("")
        self.train(2, "run", *flags, "--resume", steps=3)
        self.assertEqual(len(self.losses("run")), 3)

    def test_ranks_wait_for_a_slow_rank(self):
        self.train(2, "slow", command=for_rank(1, "sleep 1.5", self.command("slow", "--comm-timeout", "20")))
        self.assertEqual(len(self.losses("slow")), 10)

    def test_a_rank_is_too_late(self):
        for rank in (0, 2):
            with self.subTest(rank=rank):
                late = for_rank(rank, "sleep 30", self.command("late", "--comm-timeout", "1"))
                self.expect(self.launch(self.ranks(3, late)),
                            "meeting the other ranks: waited 1 s|starting NCCL at .*: waited 1 s")

    def test_a_signal_to_all_ranks_ends_a_long_step(self):
        self.assertIn("stopped by SIGTERM after step 0",
                      self.end_in_the_first_step("long", "--batch-tokens", 3 * 2**20, of=(0, 1)))
        self.assertEqual(self.losses("long"), [])

    def test_a_step_that_one_rank_abandons_counts_on_no_rank(self):
        """Whenever the signal arrives, the resumed run gives the results of an undisturbed one."""
        flags = ["--optimizer", "muon", "--check-ranks", "off", "--batch-tokens", "6144"]
        steps, begin = 3 if MODELLED else 30, time.monotonic()
        self.train(2, "whole", *flags, steps=steps)
        duration, rng = time.monotonic() - begin, random.Random(3)
        for _ in range(3):
            process = self.launch(self.ranks(2, self.command("cut", *flags, "--resume", steps=steps)))
            time.sleep(rng.uniform(0.4, 0.9) * duration)
            ids = self.ranks_of("cut")
            if ids and (self.folder / "cut" / "metrics.jsonl").exists():
                os.kill(ids[rng.choice(sorted(ids))], signal.SIGTERM)
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, output)
        self.train(2, "cut", *flags, "--resume", steps=steps)
        self.assert_same_checkpoint("whole", "cut", steps)
        self.assertEqual(self.losses("cut"), self.losses("whole"))

    def test_an_error_of_one_rank_ends_all(self):
        good, bad = self.folder / "good", self.folder / "bad"
        shutil.copytree(self.folder, good, ignore=shutil.ignore_patterns("good"))
        shutil.copytree(good, bad)
        write_shard(bad / "t_train_000000.bin", [99] * 5000)  # outside of the vocabulary
        command = self.command("run", "--data", good)
        command = for_rank(1, f'good={good} bad={bad}; exec "${{@/#$good/$bad}}"', command)
        self.expect(self.launch(self.ranks(2, command)), r"rank 1\b")

    def with_other_folder(self, out, other, *flags, **how):
        """Returns the command of two ranks. Rank 1 sees `other` in place of `out`, as if on its own machine's disk."""
        rename = f'out={self.folder / out} other={self.folder / other}; exec "${{@/#$out/$other}}"'
        return self.ranks(2, for_rank(1, rename, self.command(out, *flags, **how)))

    def test_a_rank_that_sees_a_different_folder_is_named(self):
        for out in ("a", "b"):
            self.train(2, out, "--checkpoint-every", 5, "--check-ranks", "off", steps=15)
        shutil.rmtree(self.folder / "a" / "step_00000015")
        for out in ("a", "b"):
            shutil.copytree(self.folder / out, self.folder / f"{out}-before")
        shutil.rmtree(self.folder / "b" / "step_00000015")
        shutil.rmtree(self.folder / "b" / "step_00000010")  # a stale view
        other = self.folder / "b" / "step_00000010"
        for view in (None, "a-before/step_00000005"):  # and another checkpoint of the same name
            if view:
                shutil.copytree(self.folder / view, other)
            output = self.expect(self.launch(self.with_other_folder("a", "b", "--resume", steps=15)),
                                 r"rank 1 does not see \S*step_00000010 as rank 0 does")
            self.assertIn("must be one folder for all ranks", output)
            self.assertEqual(self.checkpoints("a"), ["step_00000005", "step_00000010"])
        self.train(2, "a", "--resume", "--checkpoint-every", 5, "--check-ranks", "off", steps=15)  # it is intact
        self.assert_same_checkpoint("a", "b-before", 15, ["model.safetensors"])

    def test_a_new_run_with_a_folder_per_machine_is_refused(self):
        self.expect(self.launch(self.with_other_folder("here", "there")),
                    r"--out \S*there: rank 1 does not see what rank 0 writes there")

    def test_usage_errors_are_printed_once(self):
        output = self.expect(self.launch(self.ranks(4, self.command("x", "--no-such-flag"))), "no such flag", 2)
        self.assertEqual(output.count("no such flag"), 1, output)
        self.expect(self.launch(self.ranks(5, self.command("x"))), "48 sequences are no multiple of 5 ranks", 2)

    @unittest.skipIf(ON_GPUS, "NCCL does not look at what other ranks call")
    def test_ranks_that_call_different_collectives_end_and_are_named(self):
        number = r"\(count 5, ncclFloat32, root {}\)"
        for fault, zero, one in (("kind", r"ncclReduce" + number.format(0), r"ncclBroadcast" + number.format(0)),
                                 ("count", r"ncclReduce" + number.format(0),
                                  r"ncclReduce\(count 4, ncclFloat32, root 0\)"),
                                 ("type", r"ncclBroadcast" + number.format(0),
                                  r"ncclBroadcast\(count 5, ncclBfloat16, root 0\)"),
                                 ("root", r"ncclReduce" + number.format(0), r"ncclReduce" + number.format(1)),
                                 ("parts", r"a group of 2 from ncclReduce" + number.format(0) + " on",
                                  "one of 1 as operation")):
            with self.subTest(fault=fault):
                process = self.launch(self.ranks(2, [BUILD / "tests", f"runtime/comm: fault: {fault}"]))
                self.expect(process, f"rank 0 called {zero} and rank 1 {one}")

    @unittest.skipIf(BUILD.name.startswith("cuda"), "of MPI, over which the modelled GPU's NCCL goes")
    def test_a_launcher_other_than_mpis_is_refused_on_cpus(self):
        for variables, by in (({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1234},
                               "torchrun"),
                              ({"SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_NODELIST": "n1"}, "srun")):
            with self.subTest(by=by):
                self.expect(self.launch(self.command("env"), **variables),
                            f"{by} started 2 ranks, but ranks on CPUs are MPI's: start them with mpirun", 2)

    def test_contradictions_in_the_environment(self):
        for variables, text in (({"RANK": "x", "WORLD_SIZE": 2}, "RANK=x: expected a whole number"),
                                ({"RANK": 2, "WORLD_SIZE": 2}, "torchrun says rank 2 of 2"),
                                ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "a"}, "MASTER_PORT is not")):
            with self.subTest(text=text):
                self.expect(self.launch(self.command("env"), **variables), text, 2)


del Ranks  # its subclasses are the tests
