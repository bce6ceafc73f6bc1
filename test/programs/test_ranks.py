"""Several ranks give the result of one:  dev/run_tests.py test/programs/test_ranks.py"""

import os
import re
import shutil

from rank_runs import FLOAT, Ranks, environment
from testing import BUILD, MODELLED


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

    def test_teon_with_every_depth_and_mode(self):
        for k in (1, 2, 3):
            for mode in (1, 2):
                with self.subTest(k=k, mode=mode):
                    self.same_on((2, 4) if k == 2 else (4,), "--optimizer", "teon", "--teon-k", k, "--teon-mode", mode)

    def test_the_other_optimizers(self):
        # Lion's steps are signs: different rounding on several ranks flips a few of them.
        for name, *flags in (["normuon"], ["lion", "--lr", "1e-5"],
                             ["teon", "--neuron-norm", "--ortho-per-head"]):
            with self.subTest(optimizer=name):
                self.same_on((2, 3), "--optimizer", name, *flags, steps=10)

    def test_state_of_any_shape_is_gathered_for_checkpoints(self):
        """Of matrices and of their rows; AdamW's is larger than the parameters: ranks collect it in pieces."""
        for optimizer in ("adamw", "normuon"):
            with self.subTest(optimizer):
                self.check_gathered("--optimizer", optimizer, "--checkpoint-every", "6", "--dtype", "float")

    def check_gathered(self, *flags):
        state = "step_00000012/optimizer/state.safetensors"
        self.train(3, "whole", *flags, steps=12)
        for after in (3, 1):
            out = str(after)
            self.train(3, out, *flags, steps=12)
            shutil.rmtree(self.folder / out / "step_00000012")
            self.train(after, out, *flags, "--resume", steps=12)
            same = (self.folder / out / state).read_bytes() == (self.folder / "whole" / state).read_bytes()
            self.assertEqual(same, after == 3)
            self.assert_close(self.losses(out), self.losses("whole"), 0 if after == 3 else 1e-4)
        for out in ("whole", "3", "1"):
            shutil.rmtree(self.folder / out)

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
                result = self.call(*self.ranks(ranks, [BUILD / "tests", "[ranks]"]), env=environment())
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
        self.call(*self.ranks(2, command[:at] + command[at + 2:]), env=environment(),
                  preexec_fn=lambda: os.chdir(self.folder))
        [run] = (self.folder / "runs").iterdir()
        self.assertTrue((run / "step_00000002" / "manifest.json").exists())
