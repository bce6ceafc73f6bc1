"""--keep-best and --patience:  dev/run_tests.py test/programs/test_best.py"""

import errno
import math
import os
import random
import shutil
import time

from resuming import ResumeCase
from testing import MODELLED, STATE, failing_files, read_json, write_shards


class BestTest(ResumeCase):
    def best(self, out):
        return os.readlink(self.folder / out / "best")

    def lowest(self, out):
        """Returns (step, loss) of a run's lowest validation loss: the first, if several are equal."""
        return min(((m["step"], m["val_loss"]) for m in self.metrics(out, "eval")), key=lambda pair: pair[1])

    OVERFITS = ["--eval-every", 5, "--lr", "1e-2", "--eval-tokens", 190, "--batch-tokens", 256]

    def overfit(self):
        """Makes the training data so few that the validation loss soon rises: all tokens are random."""
        rng = random.Random(2)
        write_shards(self.data, *([rng.randrange(64) for _ in range(count)] for count in (300, 200)))

    def test_the_checkpoint_with_the_lowest_validation_loss_is_kept(self):
        self.overfit()
        self.train("all", *self.OVERFITS, "--checkpoint-every", 5)
        step, _ = self.lowest("all")
        self.assertLess(step, 40)
        name = f"step_{step:08}"
        result = self.train("best", *self.OVERFITS, "--keep-best")
        self.assertEqual((self.checkpoints("best"), self.best("best")), ([name, "step_00000040"], name))
        self.assertIn(" | lowest so far", result.stdout)
        self.assert_same_checkpoint("all", "best", step, [*STATE, "config.json"])
        # A checkpoint that is due is saved before the evaluation shows that it is the best.
        self.train("last", *self.OVERFITS, "--keep-best", "--checkpoint-every", 5, "--keep-last", 1)
        self.assertEqual((self.checkpoints("last"), self.best("last")), ([name, "step_00000040"], name))
        self.assertIn("checkpoints at the end, after 30 minutes without one (replaced by the next), of the lowest "
                      "validation loss\n", self.train("plan", "--keep-best", "--plan-only").stdout)

    def test_patience_ends_a_run_and_a_resumed_run_ends_at_the_same_step(self):
        self.overfit()
        flags = [*self.OVERFITS, "--patience", 3, "--keep-best"]
        result = self.train("whole", *flags, steps=400)
        step, loss = self.lowest("whole")
        end = step + 15
        message = (f"--patience 3: 3 evaluations without a lower validation loss than {loss:.4f} of step {step}")
        self.assertIn(f"stopped by {message} after step {end}; continue with --resume and a larger --patience, or 0\n",
                      result.stdout)
        self.assertEqual([(e["step"], e["reason"]) for e in self.events("whole", "out_of_patience")], [(end, message)])
        self.assertEqual(self.checkpoints("whole"), [f"step_{s:08}" for s in (step, end)])
        # A resumed run that has run out of patience does not train.
        again = self.train("whole", "--resume", shape={}, steps=400)
        self.assertIn(f"stopped by {message} after step {end};", again.stdout)
        self.assertEqual(len(self.events("whole", "out_of_patience")), 1)
        self.assertEqual(len(self.losses("whole")), end)
        # With more patience it goes on.
        shutil.copytree(self.folder / "whole", self.folder / "more", symlinks=True)
        self.train("more", "--resume", "--patience", 5, shape={}, steps=400)
        self.assertEqual(len(self.losses("more")), self.lowest("more")[0] + 25)

    def kill_and_keep_best(self, rng, *flags, times, kills=3, **variables):
        """Kills runs with these variables in their environment at random moments, and resumes them."""
        self.overfit()
        flags = [*self.OVERFITS, "--patience", 12, "--keep-best", "--checkpoint-every", 4, "--keep-last", 2,
                 "--dropout", 0.1, *flags]
        begin = time.monotonic()
        self.train("whole", *flags, steps=400)
        duration = time.monotonic() - begin
        step, loss = self.lowest("whole")
        for _ in range(times):
            self.kill_until_it_ends("killed", *flags, kills=kills, steps=400, duration=duration, rng=rng, **variables)
            self.assert_same_run("whole", "killed", step + 60)
            self.assertEqual(read_json(self.folder / "killed" / "best.json"), {"step": step, "loss": loss})
            if variables.get("FAIL_CALL") != "symlink":
                self.assertEqual(self.best("killed"), self.best("whole"))
            self.assert_same_checkpoint("whole", "killed", step)
            self.remove("killed")
        self.remove("whole")

    def refusing(self, function, code):
        """Returns the variables with which runs have a disk that refuses this function."""
        return {"LD_PRELOAD": failing_files(self.folder), "FAIL_UNDER": self.folder / "killed", "FAIL_CALL": function,
                "FAIL_ERRNO": code}

    def test_killed_at_any_moment_a_run_keeps_its_best_checkpoint_and_its_patience(self):
        self.kill_and_keep_best(random.Random(7), times=1 if MODELLED else 4)

    def test_killed_on_disks_without_links_or_synced_folders_a_run_keeps_its_best_checkpoint(self):
        for function, code in (("symlink", errno.EPERM), ("fsync_folder", errno.EINVAL)):
            with self.subTest(function):
                self.kill_and_keep_best(random.Random(8), times=1, **self.refusing(function, code))

    def test_a_best_checkpoint_that_a_killed_run_did_not_mark_is_marked(self):
        self.overfit()
        flags = [*self.OVERFITS, "--keep-best", "--checkpoint-every", 5]
        self.train("a", *flags)
        step, _ = self.lowest("a")
        self.cut("a", step)  # killed after the best evaluation
        (self.folder / "a" / "best").unlink()
        self.train("a", *flags, "--resume")
        self.assertEqual(self.best("a"), f"step_{step:08}")

    def test_where_links_are_refused_the_best_checkpoint_is_kept_and_named_in_a_file(self):
        self.overfit()
        flags = [*self.OVERFITS, "--keep-best", "--checkpoint-every", 5, "--keep-last", 1]
        no_links = {"LD_PRELOAD": failing_files(self.folder), "FAIL_UNDER": self.folder / "a", "FAIL_CALL": "symlink",
                    "FAIL_ERRNO": errno.EPERM}
        result = self.train("a", *flags, **no_links)
        step, loss = self.lowest("a")
        self.assertEqual(self.checkpoints("a"), [f"step_{step:08}", "step_00000040"])
        self.assertEqual(read_json(self.folder / "a" / "best.json"), {"step": step, "loss": loss})
        self.assertFalse((self.folder / "a" / "best").is_symlink())
        self.assertIn("a: the disk refuses symbolic links (Operation not permitted): best.json alone names the best "
                      "checkpoint\n", result.stdout)
        self.train("a", *flags, "--resume", steps=40, **no_links)
        self.assertEqual(self.checkpoints("a"), [f"step_{step:08}", "step_00000040"])
        # Where there are links, the resumed run makes it.
        self.train("a", *flags, "--resume", steps=40)
        self.assertEqual(self.best("a"), f"step_{step:08}")

    def test_the_best_checkpoint_outlives_its_log(self):
        self.overfit()
        flags = [*self.OVERFITS, "--keep-best", "--checkpoint-every", 5, "--keep-last", 1, "--schedule", "constant"]
        self.train("a", *flags, "--patience", 100)
        step, loss = self.lowest("a")
        self.assertLess(step, 40)
        (self.folder / "a" / "metrics.jsonl").rename(self.folder / "moved")
        result = self.train("a", *flags, "--patience", (40 - step) // 5 + 2, "--resume", steps=400)
        self.assertNotIn("lowest so far", result.stdout)
        self.assertIn(f"than {loss:.4f} of step {step} after step 50;", result.stdout)
        self.assertEqual(self.checkpoints("a"), [f"step_{step:08}", "step_00000050"])
        self.assertEqual(self.best("a"), f"step_{step:08}")
        self.assertEqual(read_json(self.folder / "a" / "best.json"), {"step": step, "loss": loss})

    def test_a_file_with_the_links_name_is_refused(self):
        self.train("a", "--checkpoint-every", 20)
        self.cut("a", 20)
        for name in ("file", "folder"):
            with self.subTest(name):
                best = self.folder / "a" / "best"
                best.write_text("mine") if name == "file" else best.mkdir()
                self.assertEqual(self.refused("a", "--checkpoint-every", 20, "--resume", "--keep-best"),
                                 f"train_gpt2: error: {best}: is not a link, which --keep-best makes there; move it "
                                 "away\n")
                best.unlink() if name == "file" else best.rmdir()

    def test_other_validation_data_begin_with_no_best_loss(self):
        self.overfit()
        self.train("a", *self.OVERFITS, "--patience", 100, "--checkpoint-every", 20)
        shutil.rmtree(self.checkpoint("a", 40))
        flags = [flag if flag != 190 else 64 for flag in self.OVERFITS]
        result = self.train("a", *flags, "--patience", 1, "--resume")
        self.assertIn("validation_changed", result.stdout)
        first = next(m for m in self.metrics("a", "eval") if m["step"] > 20)
        self.assertIn(f"than {first['val_loss']:.4f} of step 25 after step 30", result.stdout)

    def test_the_lowest_loss_needs_validation_data_and_evaluations(self):
        train = next(self.data.glob("*_train_*"))
        self.assertEqual(self.refused("a", "--keep-best", data=train),
                         "train_gpt2: error: --keep-best: there are no validation data; give --val-data\n")
        self.assertEqual(self.refused("a", "--patience", 3, data=train),
                         "train_gpt2: error: --patience 3: there are no validation data; give --val-data\n")
        self.assertEqual(self.refused("a", "--patience", 3, "--eval-every", 0),
                         "train_gpt2: error: --patience 3: needs evaluations; give --eval-every N\n")

    def test_a_rise_of_the_validation_loss_is_noted_once(self):
        self.overfit()
        result = self.train("a", *self.OVERFITS, "--keep-best", "off", steps=100)
        step, loss = self.lowest("a")
        last = self.metrics("a", "eval")[-1]["val_loss"]
        rises = self.events("a", "validation_rises")
        self.assertEqual([(e["step"], e["reason"]) for e in rises],
                         [(step + 15, f"lowest {loss:.4f} at step {step}, 3 evaluations ago; --keep-best keeps it; "
                                      "--dropout and --patience may help")])
        self.assertEqual(result.stdout.count("validation_rises: lowest"), 1)
        self.assertIn(f"\nloss {self.losses('a')[-1]:.4f} in training, {last:.4f} in validation; the lowest was "
                      f"{loss:.4f} at step {step}\n", result.stdout)
        self.assertIn(f"val    {last:.4f} (perplexity {math.exp(last):.2f}) at step 100; lowest {loss:.4f} at step "
                      f"{step}\n", self.run_script("watch.py", self.folder / "a").stdout)
        result = self.train("kept", *self.OVERFITS, "--dropout", 0.1, "--patience", 90, "--keep-best", steps=100)
        step, loss = self.lowest("kept")
        self.assertIn(f"lowest {loss:.4f} at step {step}, 3 evaluations ago; it is kept\n", result.stdout)
        self.assertIn(f"the lowest was {loss:.4f} at step {step}, kept in {self.folder}/kept/best\n", result.stdout)
        self.assertNotIn("validation_rises", self.train("few", *self.OVERFITS, steps=step + 10).stdout)

    def test_a_run_of_several_epochs_keeps_its_best_checkpoint_unless_a_flag_says_otherwise(self):
        self.overfit()
        says = "of the lowest validation loss (several epochs; --keep-best off)\n"
        self.SHAPE = {flag: value for flag, value in self.SHAPE.items() if flag != "--keep-best"}
        result = self.train("several", *self.OVERFITS)
        self.assertIn(says, result.stdout)
        self.assertEqual(self.best("several"), f"step_{self.lowest('several')[0]:08}")
        seldom = [0 if flag == 5 else flag for flag in self.OVERFITS]
        self.assertIn(says, self.train("plan", *self.OVERFITS, "--plan-only").stdout)
        for flags, steps in (([*self.OVERFITS, "--keep-best", "off"], 40), (seldom, 40), (self.OVERFITS, 2),
                             ([*self.OVERFITS, "--checkpoint-end", "off"], 40)):
            with self.subTest(flags=flags, steps=steps):
                plan = self.train("plan", *flags, "--plan-only", steps=steps)
                self.assertNotIn("lowest validation loss", plan.stdout)
