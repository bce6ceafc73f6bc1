"""Runs that are killed, stopped, damaged and resumed:  scripts/run_tests.py test/programs/test_resume.py

`make soak` (test/programs/soak.py) kills and fails for much longer.
"""

import errno
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import time
import unittest

import testing
from testing import BUILD, MODELLED, STATE, RunCase, failing_files, needs, read_json, write_shard, write_shards

MANY = 200 if MODELLED else 3000  # steps of a run that will be interrupted
TIMES = ("ms", "tokens_per_s", "data_wait_ms", "comm_wait_ms", "optimizer_ms")  # fields that differ from run to run


def damage(path):
    """Flips one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def write_as_if_saved(checkpoint, name, content):
    """Replaces a file of a checkpoint and its entry in the manifest."""
    import xxhash

    (checkpoint / name).write_bytes(content)
    manifest = read_json(checkpoint / "manifest.json")
    del manifest["xxh3"]
    entry = next(f for f in manifest["files"] if f["path"] == name)
    entry["xxh3"], entry["bytes"] = xxhash.xxh3_64_hexdigest(content), len(content)
    manifest["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(manifest, separators=(",", ":")).encode())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


class ResumeTest(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 16, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--batch-tokens": 64, "--micro-batch": 2, "--eval-tokens": 64, "--eval-every": 25, "--log-every": 50}
    STEPS = 40

    def setUp(self):
        super().setUp()
        rng = random.Random(1)
        self.data = self.folder / "data"
        write_shards(self.data, *([rng.randrange(64) for _ in range(count)] for count in (20000, 200)))

    def trained(self, out):
        """Returns the part of the log that must not depend on interruptions."""
        return [{k: v for k, v in m.items() if k not in TIMES} for m in self.metrics(out) if m["kind"] != "event"]

    def assert_same_run(self, a, b, steps):
        self.assert_same_checkpoint(a, b, steps, [*STATE, "config.json"])
        a_state, b_state = (read_json(self.checkpoint(run, steps) / "trainer.json") for run in (a, b))
        for state in (a_state, b_state):
            del state["run"], state["log"]  # the log holds times
        self.assertEqual(a_state, b_state)
        self.assertEqual(self.trained(a), self.trained(b))
        self.assertEqual([m["step"] for m in self.trained(b) if m["kind"] == "step"], list(range(1, steps + 1)))

    def resume(self, step, *flags, of="whole", out="cut", **how):
        """Resumes a copy of a run as it was after this step, with the same result."""
        shutil.copytree(self.folder / of, self.folder / out)
        self.cut(out, step)
        self.train(out, *flags, "--resume", **how)
        self.assert_same_run(of, out, how.get("steps", self.STEPS))

    def remove(self, *runs):
        for out in runs:
            shutil.rmtree(self.folder / out)

    def kill_until_it_ends(self, out, *flags, kills, steps, duration, rng):
        """Starts a run again and again, killed at random moments. Returns the kills that it did not need."""
        while True:
            process = self.start_run(out, *flags, "--resume", steps=steps)
            try:
                _, error = process.communicate(timeout=rng.uniform(0.1, 0.7) * duration if kills else 300)
                self.assertEqual(process.returncode, 0, error)
                return kills
            except subprocess.TimeoutExpired:
                kills -= 1
                process.kill()
                process.communicate()
                log = self.folder / out / "metrics.jsonl"
                # A kill may cut the last line's write at the end of a page of the file.
                for line in log.read_text().split("\n")[:-1] if log.exists() else []:
                    json.loads(line)

    def kill_and_resume(self, optimizer, kills=4 if MODELLED else 10, seed=""):
        steps, rng = 50 if MODELLED else 200, random.Random(optimizer + seed)
        flags = ["--optimizer", optimizer, "--checkpoint-every", 7, "--keep-last", 3]
        if optimizer in ("muon", "teon"):
            flags += ["--ns-steps", 3]
        begin = time.monotonic()
        self.train("whole", *flags, steps=steps)
        duration = time.monotonic() - begin
        while kills > 0:
            kills = self.kill_until_it_ends("killed", *flags, kills=kills, steps=steps, duration=duration, rng=rng)
            self.assert_same_run("whole", "killed", steps)
            self.assertEqual(len(self.checkpoints("killed")), 3)
            self.remove("killed")
        self.remove("whole")

    def test_every_optimizer_resumes_to_the_same_bits(self):
        for name, *flags in (["lion"], ["normuon", "--cautious-weight-decay"], ["soap", "--soap-frequency", 4],
                             ["soap", "--soap-frequency", 10], ["soap", "--soap-max-dim", 16],
                             ["teon", "--neuron-norm", "--ortho-per-head", "--ns-aol"]):
            with self.subTest(optimizer=name, flags=flags):
                flags = ["--optimizer", name, *flags, "--checkpoint-every", 6]
                self.train("whole", *flags, steps=18)
                self.resume(6, *flags, steps=18)
                self.remove("whole", "cut")

    @needs("xxhash")
    def test_a_momentum_that_is_not_finite_is_never_saved(self):
        flags = ["--optimizer", "teon", "--checkpoint-every", 2, "--resume"]
        self.train("a", *flags, steps=4)
        shutil.rmtree(self.checkpoint("a", 4))
        checkpoint, name = self.checkpoint("a", 2), "optimizer/state.safetensors"
        tensors = testing.read_tensors(checkpoint / name)
        momentum = next(key for key in tensors if key.endswith("attn.q.weight.momentum"))
        dtype, shape, data = tensors[momentum]
        bad = {momentum: (dtype, shape, struct.pack("<f", math.nan) + data[4:])}
        testing.write_tensors(checkpoint / name, tensors | bad)
        write_as_if_saved(checkpoint, name, (checkpoint / name).read_bytes())
        result = self.train("a", *flags, steps=4, expect=1)
        self.assertRegex(result.stderr, r"^train_gpt2: error: the momentum of \S+q\S* .* is not finite.*\n$")
        self.assertEqual(self.checkpoints("a"), ["step_00000002"])

    @needs("xxhash")
    def test_a_mixture_of_an_older_version_continues_in_its_order(self):
        rng = random.Random(2)
        for name, count in (("a", 1000), ("b", 3000)):
            write_shards(self.folder / name, *([rng.randrange(64) for _ in range(n)] for n in (count, 200)))
        flags = ["--checkpoint-every", 10, "--val-data", self.data]
        how = {"data": f"{self.folder / 'a'}:1,{self.folder / 'b'}:1", "steps": 40}
        note = "keeps its order of the mixture"
        self.assertNotIn(note, self.train("run", *flags, **how).stdout)
        new = self.losses("run")
        self.cut("run", 10)
        state = read_json(self.checkpoint("run", 10) / "trainer.json")
        self.assertIs(state["run"]["data"].pop("mixture_in_turn"), True)
        # As version 0.2 wrote it, with a list of the shards.
        state["run"]["data"]["train"] = [{key: shard[key] for key in ("tokens", "content")} | {"share": 0.5}
                                         for shard in self.config("run")["data"]["train"]]
        write_as_if_saved(self.checkpoint("run", 10), "trainer.json", json.dumps(state).encode())
        self.assertIn(note, " ".join(self.train("run", *flags, "--resume", **how).stdout.split()))
        older = self.losses("run")
        self.assertEqual(older[:10], new[:10])
        self.assertNotEqual(older[10:], new[10:])
        self.cut("run", 20)
        self.assertIn(note, " ".join(self.train("run", *flags, "--resume", **how).stdout.split()))  # later ones, too
        self.assertEqual(self.losses("run"), older)

    @needs("xxhash")
    def test_a_run_of_a_version_without_ns_dtype_continues_in_its_type(self):
        flags = ["--optimizer", "muon", "--dtype", "bf16", "--checkpoint-every", 10]
        was = "f16" if BUILD.name.startswith("cuda") else "float"
        self.train("whole", *flags, "--ns-dtype", was)
        self.train("run", *flags, "--ns-dtype", was)
        self.cut("run", 10)
        state = read_json(self.checkpoint("run", 10) / "trainer.json")
        self.assertEqual(state["run"]["options"].pop("ns-dtype"), was)
        write_as_if_saved(self.checkpoint("run", 10), "trainer.json", json.dumps(state).encode())
        config = read_json(self.folder / "run" / "config.json")
        del config["options"]["ns-dtype"]
        (self.folder / "run" / "config.json").write_text(json.dumps(config))
        text = self.train("run", *flags, "--resume").stdout
        self.assertRegex(text, rf"\nNS dtype +{was} ")
        self.assertEqual(self.trained("run"), self.trained("whole"))
        self.assertIn('--ns-dtype "bf16" (was', self.refused("run", *flags, "--ns-dtype", "bf16", "--resume"))

    def test_resuming_removes_checkpoints_that_a_killed_run_should_have_removed(self):
        self.train("a", "--checkpoint-every", 10)
        self.assertEqual(len(self.checkpoints("a")), 4)
        self.train("a", "--checkpoint-every", 10, "--keep-last", 2, "--resume")  # no further save
        self.assertEqual(self.checkpoints("a"), ["step_00000030", "step_00000040"])

    def test_a_damaged_log_is_refused_and_may_be_moved_away(self):
        self.train("a", "--checkpoint-every", 30)
        shutil.rmtree(self.checkpoint("a", 40))
        log = self.folder / "a" / "metrics.jsonl"
        damaged = log.read_text().replace('"step":13,', '"step":93,')
        log.write_text(damaged)
        error = self.refused("a", "--checkpoint-every", 30, "--resume", expect=1)
        self.assertIn(f"{log}: is damaged: its first ", error)
        self.assertEqual(log.read_text(), damaged)
        log.unlink()
        self.train("a", "--checkpoint-every", 30, "--resume")
        self.assertEqual([m["step"] for m in self.metrics("a", "step")], list(range(31, 41)))

    def test_a_measurement_that_a_kill_prevented_is_made_after_resuming(self):
        flags = ["--optimizer", "muon", "--checkpoint-every", 10, "--diagnose-every", 10, "--eval-every", 20]
        self.train("whole", *flags)
        shutil.copytree(self.folder / "whole", self.folder / "cut")
        self.cut("cut", 20)
        log = self.folder / "cut" / "metrics.jsonl"
        lines = log.read_text().splitlines(keepends=True)
        last = next(i for i, line in enumerate(lines) if '"kind":"step"' in line and '"step":20,' in line)
        log.write_text("".join(lines[:last + 1]))  # the checkpoint was written, and nothing after it
        self.train("cut", *flags, "--resume")
        self.assertEqual(self.trained("cut"), self.trained("whole"))
        self.assertEqual(len(self.metrics("cut", "diagnose")), 4 * 6)  # a pair of layers of each role, four times

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

    def test_killed_at_any_moment_a_run_keeps_its_best_checkpoint_and_its_patience(self):
        self.overfit()
        flags = [*self.OVERFITS, "--patience", 12, "--keep-best", "--checkpoint-every", 4, "--keep-last", 2,
                 "--dropout", 0.1]
        begin = time.monotonic()
        self.train("whole", *flags, steps=400)
        duration = time.monotonic() - begin
        end = self.lowest("whole")[0] + 60
        rng = random.Random(7)
        for _ in range(1 if MODELLED else 4):
            self.kill_until_it_ends("killed", *flags, kills=3, steps=400, duration=duration, rng=rng)
            self.assert_same_run("whole", "killed", end)
            self.assertEqual(self.best("killed"), self.best("whole"))
            self.assert_same_checkpoint("whole", "killed", self.lowest("whole")[0])
            self.remove("killed")

    def test_a_best_checkpoint_that_a_killed_run_did_not_mark_is_marked(self):
        self.overfit()
        flags = [*self.OVERFITS, "--keep-best", "--checkpoint-every", 5]
        self.train("a", *flags)
        step, _ = self.lowest("a")
        self.cut("a", step)  # killed after the best evaluation
        (self.folder / "a" / "best").unlink()
        self.train("a", *flags, "--resume")
        self.assertEqual(self.best("a"), f"step_{step:08}")

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

    def test_dropout_has_the_same_bits_on_resume_with_graphs_recomputation_and_offloading(self):
        shape = self.SHAPE | {"--layers": 4}
        flags = ["--dropout", 0.2, "--optimizer", "teon", "--checkpoint-every", 10]
        self.train("whole", *flags, steps=20, shape=shape)
        self.train("none", *flags[2:], steps=20, shape=shape)
        self.assertNotEqual(self.losses("whole")[0], self.losses("none")[0])
        for out, *more in (["graphs", "--graphs", "on"], ["block", "--recompute", "block"],
                           ["cheap", "--recompute", "cheap", "--offload", "activations", "--offload-blocks", 2],
                           ["same"]):
            with self.subTest(out):
                self.train(out, *flags, *more, steps=20, shape=shape)
                shutil.rmtree(self.checkpoint(out, 20))
                self.train(out, "--resume", shape={}, steps=20)
                self.assert_same_run("whole", out, 20)
        self.assertIn("dropout 0.1 (was 0.2)", self.refused("same", "--dropout", 0.1, "--resume", shape={}, steps=20))
        # Without the flag, a run is what it was before there was one.
        self.train("zero", *flags[2:], "--dropout", 0, steps=20, shape=shape)
        self.assert_same_run("none", "zero", 20)

    def test_checkpoints_by_the_clock_are_written_and_replaced(self):
        result = self.train("a", "--plan-only", steps=MANY)
        self.assertIn("checkpoints at the end, after 30 minutes without one (replaced by the next)", result.stdout)
        flags = ["--checkpoint-minutes", "1e-5", "--checkpoint-every", 70]
        result = self.train("a", *flags, steps=140)
        self.assertGreater(result.stdout.count("\ncheckpoint "), 10)
        self.assertEqual(self.checkpoints("a"), ["step_00000070", "step_00000140"])
        self.train("b", "--checkpoint-minutes", 0, steps=140)
        self.assert_same_run("a", "b", 140)

    def test_a_run_without_a_checkpoint_at_its_end_saves_the_others_and_when_it_is_stopped(self):
        result = self.train("run", "--checkpoint-end", "off", "--checkpoint-every", 16)
        self.assertEqual(self.checkpoints("run"), ["step_00000016", "step_00000032"])
        self.assertIn("none at the end, every 16 steps", result.stdout)
        # Long enough for the first step on a busy machine: a run without a step has nothing to save.
        result = self.train("stopped", "--checkpoint-end", "off", "--time-limit", "5s", steps=10**6)
        self.assertIn("stopped by time limit 5s", result.stdout)
        self.assertEqual(len(self.checkpoints("stopped")), 1)

    def test_killed_at_any_moment(self):
        for optimizer in ("adamw", "muon", "teon"):
            with self.subTest(optimizer):
                self.kill_and_resume(optimizer)

    def test_bf16_with_fused_gelu_shuffled_epochs_and_spike_guard_resumes_exactly(self):
        flags = ["--dtype", "bf16", "--gelu-fusion", "--skip-spikes", 3, "--optimizer", "teon", "--checkpoint-every",
                 17]
        self.train("whole", *flags, steps=60)
        self.resume(17, *flags, steps=60)

    def test_fp8_resumes_to_the_same_bits(self):
        shape = self.SHAPE | {"--channels": 64, "--vocab-size": 64}
        for recompute in ("none", "block"):
            with self.subTest(recompute):
                flags = ["--dtype", "bf16", "--matmul-dtype", "fp8", "--optimizer", "teon", "--checkpoint-every", 10,
                         "--recompute", recompute]
                self.train("whole", *flags, steps=20, shape=shape)
                self.resume(10, shape={}, steps=20)
                self.remove("whole", "cut")

    def test_offloading_changes_no_result_and_can_begin_on_resume(self):
        shape = self.SHAPE | {"--layers": 5}
        some = ["activations", "--offload-blocks"]
        for optimizer, offload, *more in (["adamw", ["optimizer"]],
                                          ["muon", [*some, 2], "--diagnose-every", 10, "--recompute", "block"],
                                          ["teon", ["all", "--offload-blocks", 3], "--neuron-norm"],
                                          ["lion", [*some, 1], "--graphs", "on", "--recompute", "cheap"]):
            for dtype in ("bf16", "float"):
                with self.subTest(optimizer=optimizer, dtype=dtype):
                    flags = ["--optimizer", optimizer, *more, "--dtype", dtype, "--checkpoint-every", 10]
                    self.train("off", *flags, steps=20, shape=shape)
                    self.train("on", *flags, "--offload", *offload, steps=20, shape=shape)
                    self.assert_same_run("off", "on", 20)
                    self.resume(10, "--offload", "none", of="on", shape={}, steps=20)
                    for run in ("on", "cut"):
                        self.assertEqual(self.metrics(run, "diagnose"), self.metrics("off", "diagnose"))
                    self.remove("off", "on", "cut")
        self.assertIn("--offload optimizer: --optimizer soap multiplies by its state",
                      self.refused("soap", "--optimizer", "soap", "--offload", "optimizer"))
        self.assertIn("--offload-blocks 1: of 2 layers the last 2 stay on the device; at most 0 can be offloaded",
                      self.refused("few", "--offload", "activations", "--offload-blocks", 1))

    def test_graphs_change_no_result_and_can_begin_on_resume(self):
        flags = ["--optimizer", "teon", "--checkpoint-every", 15]
        self.train("whole", *flags, "--graphs", "off")
        self.resume(15, *flags, "--graphs", "on", "--profile-steps", "30:31")

    def test_sigterm_and_sigint_save_before_they_end_a_run(self):
        self.train("whole", steps=MANY)
        for which in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(which):
                out = which.name
                process = self.start_run(out, steps=MANY)
                self.wait_for(out)
                process.send_signal(which)
                output, error = process.communicate(timeout=300)
                self.assertEqual(process.returncode, -which if which == signal.SIGINT else 0, error)
                step = self.metrics(out, "step")[-1]["step"]
                self.assertLess(step, MANY)
                self.assertIn(f"stopped by {which.name} after step {step}", output)
                self.assertEqual(self.checkpoints(out), [f"step_{step:08}"])
                self.train(out, "--resume", steps=MANY)
                self.assert_same_run("whole", out, MANY)

    def wait_for(self, out, steps=1):
        """Waits until a run has logged `steps` steps."""
        path = self.folder / out / "metrics.jsonl"
        while not path.exists() or path.read_text().count('"kind":"step"') < steps:
            time.sleep(0.01)

    def test_a_second_signal_ends_at_once(self):
        process = self.start_run("run", steps=10**6)
        self.wait_for("run")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (-signal.SIGTERM, -signal.SIGINT))
        self.assertEqual(self.checkpoints("run"), [])

    def end_by_signal(self, out, wait, *flags, **shape):
        """The run's output."""
        process = self.start_run(out, *flags, steps=100, shape=self.SHAPE | shape)
        wait(out)
        process.send_signal(signal.SIGHUP)
        output, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, error)
        self.assertEqual(error, "SIGHUP: saving, then ending; a second signal ends the run at once\n")
        return output

    @unittest.skipIf(MODELLED, "a modelled GPU has queued a micro-batch, and takes its time")
    def test_a_signal_is_seen_within_a_step_an_evaluation_and_a_sample(self):
        tokens = [random.Random(2).randrange(64) for _ in range(400000)]
        write_shards(self.data, tokens, tokens)

        # Each of these would take long without the signal, and would then leave other results than expected here.
        def in_the_first_step(out):
            self.wait_for(out, 0)
            time.sleep(0.3)

        def in_what_follows(out):
            self.wait_for(out)
            time.sleep(0.3)

        output = self.end_by_signal("step", in_the_first_step, **{"--batch-tokens": 4194304, "--eval-every": 0})
        self.assertIn("stopped by SIGHUP after step 0", output)
        output = self.end_by_signal("deep", in_the_first_step, "--recompute", "block",
                                    **{"--layers": 96, "--batch-tokens": 262144, "--micro-batch": 16384})
        self.assertIn("stopped by SIGHUP after step 0", output)
        output = self.end_by_signal("eval", in_what_follows, **{"--eval-tokens": 400000, "--eval-every": 1})
        self.assertIn("stopped by SIGHUP after step 1;", output)
        self.assertEqual(self.checkpoints("eval"), ["step_00000001"])
        self.assertEqual(self.metrics("eval", "eval"), [])
        self.end_by_signal("sample", in_what_follows, "--sample-every", 1, "--prompt-tokens", 1, "--sample-tokens",
                           4000, **{"--seq-len": 4096, "--batch-tokens": 4096, "--micro-batch": 1, "--eval-every": 0})
        self.assertFalse((self.folder / "sample" / "samples.txt").exists())

        # The resumed run repeats the interrupted evaluation.
        self.train("eval", "--resume", "--eval-every", 1, steps=100)
        self.assertEqual([m["step"] for m in self.metrics("eval", "eval")], list(range(1, 101)))

    def test_an_ignored_hangup_stays_ignored(self):
        process = self.start("bash", "-c", 'trap "" HUP; exec "$@"', "nohup", *self.command("run", steps=10**6))
        self.wait_for("run")
        process.send_signal(signal.SIGHUP)
        self.wait_for("run", len(self.metrics("run")) + 50)
        process.send_signal(signal.SIGTERM)
        self.assertIn("stopped by SIGTERM", process.communicate(timeout=60)[0])

    def test_a_closed_output_does_not_end_a_run(self):
        self.train("whole", "--log-every", 1, steps=MANY)
        process = self.start_run("run", "--log-every", 1, steps=MANY)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=120), 0)
        self.assertEqual(testing.of_program(process.stderr.read()), "standard output cannot be written (Broken pipe); "
                         "the run goes on and is in its metrics.jsonl\n")
        self.assert_same_run("whole", "run", MANY)

    def test_options_that_must_not_change(self):
        self.train("run", "--dtype", "float")
        before = (self.folder / "run" / "metrics.jsonl").read_bytes()
        shard = self.data / "t_train_000000.bin"
        for flags, words in ((["--seed", 5], "--seed 5 (was 1337)"), (["--dtype", "bf16"], "--dtype"),
                             (["--layers", 3], "layers"), (["--micro-batch", 4], "micro_batch 4 (was 2)"),
                             (["--steps", 41], "steps 41 (was 40;")):
            with self.subTest(flags):
                self.assertIn(words, self.refused("run", "--resume", *flags))
        self.assertEqual((self.folder / "run" / "metrics.jsonl").read_bytes(), before)
        write_shard(shard, [1] * 19999)
        self.assertIn("training shards", self.refused("run", "--resume"))

    def test_resuming_a_finished_run_does_nothing(self):
        self.train("run")
        before = self.trained("run")
        self.train("run", "--resume", "--eval-every", 3, "--log-every", 2)  # these may change
        self.assertEqual(self.trained("run"), before)
        self.assertEqual(self.checkpoints("run"), ["step_00000040"])

    def test_a_damaged_checkpoint_is_named_and_skipped(self):
        self.train("whole", "--checkpoint-every", 10)
        shutil.copytree(self.folder / "whole", self.folder / "run")
        damage(self.checkpoint("run", 40) / "optimizer" / "state.safetensors")
        (self.checkpoint("run", 30) / "trainer.json").unlink()
        (self.folder / "run" / "step_00000035.tmp").mkdir()
        result = self.train("run", "--resume", "--checkpoint-every", 10)
        self.assertIn("resuming from", result.stdout)
        self.assertIn("step_00000040/optimizer/state.safetensors: its content changed", result.stdout)
        self.assertIn("step_00000030/trainer.json: cannot be opened", result.stdout)
        self.assertIn("step_00000020", [m["reason"][-13:] for m in self.events("run", "resumed")])
        self.assertEqual(len(self.events("run", "checkpoint_passed_over")), 2)
        self.assert_same_run("whole", "run", 40)
        self.assertEqual(self.checkpoints("run"), ["step_00000010", "step_00000020", "step_00000030",
                                                   "step_00000030.damaged", "step_00000040", "step_00000040.damaged"])

    def test_only_damaged_checkpoints_are_an_error_and_none_is_a_new_run(self):
        self.train("run")
        damage(self.checkpoint("run", 40) / "model.safetensors")
        self.assertRegex(self.refused("run", "--resume", expect=1), "no checkpoint in.*model.safetensors")
        self.train("other", "--resume")
        shutil.rmtree(self.checkpoint("other", 40))
        self.train("other", "--resume")
        self.assertEqual([m["step"] for m in self.trained("other") if m["kind"] == "step"], list(range(1, 41)))

    def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_run_continues_or_stops_as_asked(self):
        for out in ("on", "stop", "last"):
            (self.folder / out).mkdir()
            in_the_way = self.folder / out / ("step_00000040" if out == "last" else "step_00000020")
            in_the_way.write_text("in the way")
        flags = ["--checkpoint-every", 10]
        result = self.train("on", *flags)
        self.assertIn("checkpoint of step 20 failed", result.stdout)
        [event] = self.events("on", "checkpoint_failed")
        self.assertIn("step_00000020", event["reason"])
        self.assertEqual(event["step"], 20)
        result = self.train("stop", *flags, "--on-save-error", "stop", expect=1)
        self.assertIn("step_00000020", result.stderr)
        self.train("stop", "--resume", "--on-save-error", "continue")
        self.assertEqual(self.trained("stop"), self.trained("on"))
        result = self.train("last", *flags, expect=1)
        self.assertIn("last checkpoint could not be written", result.stderr)

    def test_vanished_data_end_the_run_after_saving_its_progress(self):
        self.train("whole", steps=MANY)
        shard = self.data / "t_train_000000.bin"
        original = shard.read_bytes()
        process = self.start_run("run", steps=MANY)
        self.wait_for("run")
        os.truncate(shard, 2000)
        output, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("t_train_000000.bin", error)
        [last] = self.checkpoints("run")
        self.assertLess(int(last[5:]), MANY)
        shard.write_bytes(original)
        self.train("run", "--resume", steps=MANY)
        self.assert_same_run("whole", "run", MANY)

    def test_a_log_that_cannot_be_written_ends_the_run_with_an_error_and_without_a_checkpoint(self):
        """Imitates a disk that is full for the log alone, by a file size limit whose signal is ignored."""
        # 96 KiB: the log has more, every other file less.
        result = self.call("bash", "-c", 'trap "" XFSZ; ulimit -f 96; exec "$@"', "limited",
                           *self.command("run", "--checkpoint-every", 10, steps=500), expect=1)
        self.assertRegex(result.stderr.splitlines()[-1], r"metrics\.jsonl: \d+ lines cannot be written: File too large")
        logged = [m["step"]
                  for m in map(json.loads, (self.folder / "run" / "metrics.jsonl").read_text().splitlines()[:-1])]
        self.assertLessEqual(int(self.checkpoints("run")[-1][5:]), logged[-1])
        self.train("run", "--checkpoint-every", 10, "--resume", steps=500)
        self.train("whole", "--checkpoint-every", 10, steps=500)
        self.assert_same_run("whole", "run", 500)

    def test_init_from_starts_with_the_given_weights(self):
        self.train("run")
        last = self.checkpoint("run", 40)
        for source in (last, last / "model.safetensors"):
            out = f"from-{source.name}"
            self.train(out, "--init-from", source, "--lr", 0, "--weight-decay", 0)
            self.assert_same_checkpoint("run", out, 40, ["model.safetensors"])
        self.assertIn("nothing", self.refused("none", "--init-from", "nothing"))

    def test_init_from_reads_the_whole_configuration_and_flags_must_not_contradict_it(self):
        """Covers settings of config.json that no shape flag has: a LLaMA with a rotary base of 500000 must not continue
        with 10000."""
        def train(out, *flags, expect=0):
            return self.run_program("--data", self.data, "--out", self.folder / out, *flags, program="train_llama",
                                    expect=expect)

        # Uses SHAPE's micro-batch, because products of other sizes may sum in another order.
        still = ["--lr", 0, "--weight-decay", 0, "--steps", 1, "--eval-tokens", 64, "--batch-tokens", 64,
                 "--micro-batch", 2]
        shape = testing.as_flags(self.SHAPE)
        train("a", *shape, "--rope-base", 500000, "--rope-scaling", 2, "--norm-eps", 0.001, "--steps", 3)
        source = self.checkpoint("a", 3)
        files = [(source / name).read_bytes() for name in ("config.json", "model.safetensors")]
        for name, flags in (("b", []), ("c", ["--seq-len", 8]),
                            ("d", [*shape, "--rope-base", 5e5, "--norm-eps", 1e-3])):
            train(name, "--init-from", self.folder / "a" if name == "b" else source, *flags,
                  *(still if name != "d" else still[:6]))
            saved = self.checkpoint(name, 1)
            self.assertEqual([(saved / file).read_bytes() for file in ("config.json", STATE[0])], files, name)
        self.assertEqual(self.metrics("a")[-1]["val_loss"], self.metrics("b")[-1]["val_loss"])  # the same model
        for flags in (["--layers", 3], ["--channels", 32], ["--heads", 1], ["--ffn", 99], ["--vocab-size", 65],
                      ["--norm-eps", 1e-5], ["--rope-base", 10000], ["--rope-scaling", 1], ["--seq-len", 32],
                      ["--model", "60m"]):
            error = train("x", "--init-from", source, *still, *flags, expect=2).stderr
            self.assertIn(flags[0], error)
            self.assertIn("the model of --init-from has", error)
        config = json.loads(files[0])
        (source / "manifest.json").unlink()
        for key, value in (("rope_scaling", {"rope_type": "llama3", "factor": 8}), ("hidden_act", "relu"),
                           ("attention_bias", "yes"), ("model_type", "gpt2")):
            (source / "config.json").write_text(json.dumps({**config, key: value}))
            self.assertIn(f"{source}/config.json", train("x", "--init-from", source, *still, expect=2).stderr)
        self.assertFalse((self.folder / "x").exists())

    def test_too_many_skipped_updates_end_the_run_and_keep_the_last_good_state(self):
        # Decoupled weight decay of 10 at a learning rate of 100 multiplies weights by -999 in each step, so that the
        # loss is soon not finite.
        error = self.refused("bad", "--lr", 100, "--weight-decay", 10, "--schedule", "constant", "--warmup-ratio", 0,
                             "--checkpoint-every", 1, "--keep-last", 2, "--max-skipped", 8, expect=1)
        skipped = [m["step"] for m in self.events("bad", "update_skipped")]
        self.assertIn(len(skipped), (8, 9))  # a step is queued before the one before it is known
        good = f"step_{skipped[0] - 1:08}"
        self.assertIn(f"{len(skipped)} updates in a row were skipped (--max-skipped 8); the last good state is in "
                      f"{self.folder / 'bad' / good}", error)
        self.assertEqual(len(self.checkpoints("bad")), 3)
        self.assertEqual(self.checkpoints("bad")[0], good)
        # Its weights are finite.
        self.train("again", "--init-from", self.folder / "bad" / good, "--max-skipped", 3, expect=1)

    def test_too_many_skipped_updates_end_the_run_although_the_next_one_is_not_skipped(self):
        """A GPU has queued the next step before it knows."""
        steps, rng = 120, random.Random(4)  # of 64 tokens, without shuffling
        tokens = [i % 2 for i in range(64 * steps + 1)]
        tokens[64 * 99:64 * 101] = [rng.randrange(2, 64) for _ in range(2 * 64)]  # steps 100 and 101
        write_shards(self.data, tokens, [0, 1] * 100)
        result = self.train("run", "--lr", 0.003, "--shuffle", "off", "--skip-spikes", 8, "--max-skipped", 2,
                            steps=steps, expect=1)
        self.assertEqual([m["step"] for m in self.events("run", "update_skipped")], [100, 101])
        self.assertIn("2 updates in a row were skipped (--max-skipped 2)", result.stderr)
        self.assertLess(self.metrics("run", "step")[-1]["step"], 103)

    def test_weights_that_are_not_finite_are_not_begun_with(self):
        self.train("run")
        last = self.checkpoint("run", 40)
        weights = bytearray((last / "model.safetensors").read_bytes())
        weights[-4:] = struct.pack("<f", float("nan"))
        (self.folder / "nan.safetensors").write_bytes(weights)
        shutil.copy(last / "config.json", self.folder)
        error = self.refused("bad", "--init-from", self.folder / "nan.safetensors")
        self.assertRegex(error, r"^train_gpt2: error: \S*nan.safetensors: tensor '\S+' is not finite\b.*\n$")
        self.assertFalse((self.folder / "bad").exists())  # so the corrected start needs no other folder
        damage(last / "model.safetensors")
        for command in (self.command("bad", "--init-from", last),
                        [BUILD / "train_gpt2", "--eval-only", "--init-from", last, "--val-data", self.data],
                        [BUILD / "generate", "--checkpoint", last, "--prompt-tokens", 1]):
            with self.subTest(command=command):
                self.assertIn("model.safetensors: its content changed", self.error_of(*command))
        self.assertFalse((self.folder / "bad").exists())

    @needs("numpy")
    def test_inspect_prints_state_and_tensors_and_finds_damage(self):
        self.train("run", "--optimizer", "muon")
        result = self.run_script("inspect_checkpoint.py", self.folder / "run")
        for words in ("step 40 of 40", "40 applied, 0 skipped", "transformer.h.1.mlp.c_fc.weight",
                      "h.1.attn.q.weight.momentum"):
            self.assertIn(words, result.stdout)
        state = self.checkpoint("run", 40) / "optimizer" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-4] + struct.pack("<f", float("nan")))
        self.assertIn("1 not finite", self.run_script("inspect_checkpoint.py", state, expect=1).stdout)

    def test_a_refused_start_changes_nothing_and_a_failed_one_does_not_block_the_next(self):
        process = self.start_run("live", steps=10**6)
        self.wait_for("live")
        before = (self.folder / "live" / "config.json").read_bytes()
        for flags in ([], ["--resume"], ["--resume", "--lr", 5]):
            self.assertIn(f"another process is writing it (process {process.pid} on ",
                          self.refused("live", *flags, expect=1, steps=10**6))
        self.assertEqual((self.folder / "live" / "config.json").read_bytes(), before)
        (self.folder / "live" / "lock").unlink()
        (self.folder / "live" / "config.json").write_text("{")  # no other process may read it
        self.assertIn("another process", self.refused("live", "--resume", steps=10**6, expect=1))
        (self.folder / "live" / "config.json").write_bytes(before)
        process.kill()
        process.communicate()
        self.train("live", steps=20)  # killed before its first checkpoint, so it starts again
        self.assertEqual([m["step"] for m in self.metrics("live", "step")], list(range(1, 21)))
        before = (self.folder / "live" / "metrics.jsonl").read_bytes()
        self.assertIn("already holds a run", self.refused("live"))
        self.assertEqual((self.folder / "live" / "metrics.jsonl").read_bytes(), before)
        write_shard(self.data / "t_val_000000.bin", [99] * 200)  # outside the vocabulary: found while reading
        self.train("failed", expect=1)
        self.assertFalse((self.folder / "failed").exists())

    def test_a_run_into_the_root_is_refused(self):
        before = sorted(os.listdir("/"))
        for out in ("/", "//", "/."):
            for flags in ([], ["--resume"]):
                with self.subTest(out, flags=flags):
                    command = [word if word != self.folder / "root" else out for word in self.command("root", *flags)]
                    self.assertIn(out, command)
                    self.assertRegex(self.error_of(*command), r"--out /\S*: is a folder with other files \(\S+\)")
        self.assertEqual(sorted(os.listdir("/")), before)

    def test_a_folder_without_a_run_is_named(self):
        self.assertIn(f"--resume: there is no run in {self.folder / 'misspelt'}; check --out",
                      self.error_of(BUILD / "train_gpt2", "--resume", "--out", self.folder / "misspelt"))
        self.assertFalse((self.folder / "misspelt").exists())
        begun = self.train("new", "--resume", steps=2).stdout
        self.assertIn(f"there is no run in {self.folder / 'new'} yet: this one begins", begun)

    def test_a_run_is_extended_where_its_schedule_allows_it(self):
        flags = ["--schedule", "constant", "--warmup-ratio", 0.25, "--checkpoint-every", 10]
        self.train("a", *flags, steps=20)
        result = self.train("a", *flags, "--resume", steps=40)
        self.assertIn("the run ends after 40 steps instead of 20", result.stdout)
        rates = [m["lr"] for m in self.metrics("a", "step")]
        for i in range(5):
            self.assertAlmostEqual(rates[i], rates[-1] * (i + 1) / 5, delta=1e-12)  # the warmup of the 20
        self.assertEqual(rates[5:], rates[-1:] * 35)
        done = self.train("a", *flags, "--resume", steps=40).stdout  # and once more, with nothing to do
        self.assertRegex(done, r"\A.*/a is done: all 40 steps\. .*\n\Z")
        self.assertIn("steps 30 (was 40; 40 are done", self.refused("a", *flags, "--resume", steps=30))

    def test_a_run_that_holds_its_peak_is_extended_before_the_decay(self):
        for schedule in ("constant-linear", "constant-sqrt"):
            flags = ["--schedule", schedule, "--constant-ratio", 0.5, "--warmup-ratio", 0.25, "--checkpoint-every", 10]
            decayed, held = f"{schedule}-decayed", f"{schedule}-held"
            self.train(decayed, *flags, steps=40)
            shutil.copytree(self.folder / decayed, self.folder / held)
            self.assertIn("only before the decay", self.refused(decayed, *flags, "--resume", steps=80))
            self.cut(held, 20)
            result = self.train(held, *flags, "--resume", steps=80)
            self.assertIn("the decay begins after step 40 instead of 20", result.stdout)
            rates = [m["lr"] for m in self.metrics(held, "step")]
            self.assertEqual(rates[9:41], rates[9:10] * 32)
            self.assertLess(rates[41], rates[40])
            self.assertEqual(len(rates), 80)

    # How a file operation fails (test/support/failing_files.c).
    FAULTS = [("error", errno.EIO), ("error", errno.ENOSPC), ("forever", errno.ENOSPC), ("short", 0), ("kill", 0)]

    def prepare_faults(self):
        """Trains the run `whole`, whose result every faulty run must have, and `half`, which faulty runs resume.
        Returns {whether a run resumes: its number of file operations}."""
        failing_files(self.folder)
        self.run_with_fault("whole")
        self.run_with_fault("half")
        shutil.rmtree(self.checkpoint("half", 9))
        counts = {}
        for resumes in (False, True):
            if resumes:
                shutil.copytree(self.folder / "half", self.folder / "counted")
            self.run_with_fault("counted", resumes=resumes, expect=0)
            counts[resumes] = int((self.folder / "counted-operations").read_text())
            shutil.rmtree(self.folder / "counted")
        return counts

    def run_with_fault(self, out, at=-1, how="error", code=0, resumes=False, expect=None):
        flags = ["--checkpoint-every", 3, "--keep-last", 2, "--eval-every", 4, *["--resume"] * resumes]
        return self.train(out, *flags, steps=9, expect=expect, LD_PRELOAD=self.folder / "failing_files.so",
                          FAIL_UNDER=self.folder / out, FAIL_AT=at, FAIL_HOW=how, FAIL_ERRNO=code, FAIL_READS=1,
                          FAIL_COUNT=self.folder / f"{out}-operations")

    def survive_fault(self, resumes, at, how, code):
        """The faulty run succeeds, ends with one error and exit status 1 or 2, or is killed. The next run with --resume
        has the result of an undisturbed one. A file that cannot be read is not taken for damaged."""
        out = f"fault-{resumes}-{at}-{how}-{code}"
        if resumes:
            shutil.copytree(self.folder / "half", self.folder / out)
        result = self.run_with_fault(out, at, how, code, resumes)
        self.assertIn(result.returncode, (0, -signal.SIGKILL) if how == "kill" else (0, 1, 2),
                      result.stdout + result.stderr)
        if result.returncode > 0:
            self.assertIn("train_gpt2: error: ", result.stderr.splitlines()[-1])
        self.run_with_fault(out, resumes=True, expect=0)
        self.assert_same_run("whole", out, 9)
        self.assertEqual([p.name for p in (self.folder / out).glob("step_*.damaged")], [])
        shutil.rmtree(self.folder / out)

    @unittest.skipIf(testing.MODELLED, "of files, and takes minutes")
    def test_a_fault_at_any_file_operation_of_a_run_costs_no_result(self):
        for resumes, operations in self.prepare_faults().items():
            self.assertGreater(operations, 100)
            for i, at in enumerate(range(0, operations, 29)):
                how, code = self.FAULTS[i % len(self.FAULTS)]
                with self.subTest(resumes=resumes, at=at, how=how, error=os.strerror(code)):
                    self.survive_fault(resumes, at, how, code)

    def test_a_run_with_a_damaged_config_json_resumes_with_flags(self):
        flags = ["--checkpoint-every", 20]
        self.train("whole", *flags)
        shutil.copytree(self.folder / "whole", self.folder / "run")
        shutil.rmtree(self.checkpoint("run", 40))
        config = self.folder / "run" / "config.json"
        config.write_text(config.read_text()[:-20])
        damaged = config.read_text()
        self.assertRegex(self.error_of(BUILD / "train_gpt2", "--resume", "--out", self.folder / "run"),
                         r"^train_gpt2: error: \S*run/config.json: not valid JSON.*\n$")
        self.assertIn("--lr", self.refused("run", *flags, "--resume", "--lr", 0.5))
        self.assertEqual(config.read_text(), damaged)
        self.train("run", *flags, "--resume")
        self.assert_same_run("whole", "run", 40)
        [event] = self.events("run", "config_replaced")
        self.assertIn("not valid JSON", event["reason"])
        self.assertEqual((self.folder / "run" / "config.json.damaged").read_text(), damaged)

    def test_a_single_rank_does_not_wait_for_others(self):
        self.train("run", steps=5)
        self.assertEqual([m["comm_wait_ms"] for m in self.metrics("run", "step")], [0] * 5)
