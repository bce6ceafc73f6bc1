"""Runs that are killed, stopped, damaged and resumed:  scripts/run_tests.py test/test_resume.py

TEON_SOAK=1 kills 200 times per optimizer instead of 10 (make soak).
"""

import importlib.util
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOAK = bool(os.environ.get("TEON_SOAK"))
SHAPE = ["--model", "tiny", "--layers", "2", "--channels", "16", "--heads", "2", "--vocab-size", "64", "--seq-len", "16",
         "--batch-tokens", "64", "--micro-batch", "2", "--eval-tokens", "64", "--eval-every", "25", "--log-every", "50"]
TIMES = ("ms", "tokens_per_s", "data_wait_ms", "comm_wait_ms", "optimizer_ms")  # what differs from run to run
RESULTS = ("model.safetensors", "optimizer/master.safetensors", "optimizer/state.safetensors", "config.json")


def write_shard(path, tokens):
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))


def damage(path):
    """Flips one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def write_as_if_saved(checkpoint, name, content):
    """Replaces a file of a checkpoint and what the manifest says of it."""
    import xxhash

    (checkpoint / name).write_bytes(content)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["xxh3"]
    next(f for f in manifest["files"] if f["path"] == name)["xxh3"] = xxhash.xxh3_64_hexdigest(content)
    manifest["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(manifest, separators=(",", ":")).encode())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


class ResumeTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        rng = random.Random(1)
        self.data = self.folder / "data"
        self.data.mkdir()
        write_shard(self.data / "t_train_000000.bin", [rng.randrange(64) for _ in range(20000)])
        write_shard(self.data / "t_val_000000.bin", [rng.randrange(64) for _ in range(200)])

    def command(self, out, *flags, steps=40, shape=SHAPE):
        return [ROOT / "train_gpt2", "--data", self.data, *shape, "--steps", str(steps), "--out", self.folder / out,
                *map(str, flags)]

    def start(self, out, *flags, **how):
        return subprocess.Popen(self.command(out, *flags, **how), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=self.folder)

    def train(self, out, *flags, expect=0, **how):
        result = subprocess.run(self.command(out, *flags, **how), capture_output=True, text=True, cwd=self.folder, timeout=600)
        self.assertEqual(result.returncode, expect, result.stdout + result.stderr)
        return result

    def metrics(self, out):
        return [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]

    def trained(self, out):
        """What must be the same however often a run was interrupted."""
        return [{k: v for k, v in m.items() if k not in TIMES} for m in self.metrics(out) if m["kind"] != "event"]

    def checkpoints(self, out):
        return sorted(p.name for p in (self.folder / out).iterdir() if p.name.startswith("step_"))

    def assert_same_run(self, a, b, steps):
        last = f"step_{steps:08}"
        for name in RESULTS:
            self.assertEqual((self.folder / a / last / name).read_bytes(), (self.folder / b / last / name).read_bytes(), name)
        a_state, b_state = (json.loads((self.folder / x / last / "trainer.json").read_text()) for x in (a, b))
        for state in (a_state, b_state):
            del state["run"]
        self.assertEqual(a_state, b_state)
        self.assertEqual(self.trained(a), self.trained(b))
        self.assertEqual([m["step"] for m in self.trained(b) if m["kind"] == "step"], list(range(1, steps + 1)))

    def kill_and_resume(self, optimizer):
        steps, kills, life, rng = 200, 200 if SOAK else 10, 0, random.Random(optimizer)
        flags = ["--optimizer", optimizer, "--checkpoint-every", 7, "--keep-last", 3]
        if optimizer != "adamw":
            flags += ["--ns-steps", 3]
        begin = time.monotonic()
        self.train("whole", *flags, steps=steps)
        duration = time.monotonic() - begin
        while kills > 0:
            out = f"killed-{life}"
            life += 1
            while True:
                process = self.start(out, *flags, "--resume", steps=steps)
                try:
                    _, error = process.communicate(timeout=rng.uniform(0.1, 0.7) * duration)
                    self.assertEqual(process.returncode, 0, error)
                    break
                except subprocess.TimeoutExpired:
                    if kills > 0:
                        process.send_signal(signal.SIGKILL)
                        kills -= 1
                    process.communicate()
                    for line in (self.folder / out / "metrics.jsonl").read_text().splitlines() if \
                            (self.folder / out / "metrics.jsonl").exists() else []:
                        json.loads(line)
            self.assert_same_run("whole", out, steps)
            self.assertEqual(len(self.checkpoints(out)), 3)
            shutil.rmtree(self.folder / out)

    @unittest.skipUnless(importlib.util.find_spec("xxhash"), "xxhash is not installed")
    def test_a_momentum_that_is_not_finite_is_never_saved(self):
        flags = ["--optimizer", "teon", "--checkpoint-every", 2, "--resume"]
        self.train("a", *flags, steps=4)
        shutil.rmtree(self.folder / "a" / "step_00000004")
        checkpoint, name = self.folder / "a" / "step_00000002", "optimizer/state.safetensors"
        content = bytearray((checkpoint / name).read_bytes())
        header = int.from_bytes(content[:8], "little")
        tensors = json.loads(content[8:8 + header])
        momentum = next(tensor for key, tensor in tensors.items() if key.endswith("attn.q.weight.momentum"))
        at = 8 + header + momentum["data_offsets"][0]
        content[at:at + 4] = struct.pack("<f", math.nan)
        write_as_if_saved(checkpoint, name, bytes(content))
        result = self.train("a", *flags, steps=4, expect=1)
        self.assertRegex(result.stderr, r"^train_gpt2: error: the momentum of \S+q\S* .* is not finite.*\n$")
        self.assertEqual(self.checkpoints("a"), ["step_00000002"])

    def test_resuming_removes_what_a_kill_kept_from_being_removed(self):
        self.train("a", "--checkpoint-every", 10)
        self.assertEqual(len(self.checkpoints("a")), 4)
        self.train("a", "--checkpoint-every", 10, "--keep-last", 2, "--resume")  # the last save is done, so none comes
        self.assertEqual(self.checkpoints("a"), ["step_00000030", "step_00000040"])

    def test_killed_at_any_moment_adamw(self):
        self.kill_and_resume("adamw")

    def test_killed_at_any_moment_muon(self):
        self.kill_and_resume("muon")

    def test_killed_at_any_moment_teon(self):
        self.kill_and_resume("teon")

    def test_bf16_with_shuffled_epochs_and_spike_guard_resumes_exactly(self):
        flags = ["--dtype", "bf16", "--skip-spikes", 3, "--optimizer", "teon", "--checkpoint-every", 17]
        self.train("whole", *flags, steps=60)
        shutil.copytree(self.folder / "whole", self.folder / "again")
        for name in self.checkpoints("again")[1:]:
            shutil.rmtree(self.folder / "again" / name)
        self.train("again", *flags, "--resume", steps=60)
        self.assert_same_run("whole", "again", 60)

    def test_sigterm_and_sigint_save_and_end_well(self):
        self.train("whole", steps=3000)
        for which in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(which):
                out = which.name
                process = self.start(out, steps=3000)
                while not (self.folder / out / "metrics.jsonl").exists() or not self.metrics(out):
                    time.sleep(0.01)
                process.send_signal(which)
                output, error = process.communicate(timeout=300)
                self.assertEqual(process.returncode, 0, error)
                step = [m["step"] for m in self.metrics(out) if m["kind"] == "step"][-1]
                self.assertLess(step, 3000)
                self.assertIn(f"stopped by {which.name} after step {step}", output)
                self.assertEqual(self.checkpoints(out), [f"step_{step:08}"])
                self.train(out, "--resume", steps=3000)
                self.assert_same_run("whole", out, 3000)

    def test_a_second_signal_ends_at_once(self):
        slow = [*SHAPE[:-12], "--seq-len", "128", "--batch-tokens", "262144", "--micro-batch", "4"]
        process = self.start("run", steps=100, shape=slow)
        while not (self.folder / "run" / "metrics.jsonl").exists():
            time.sleep(0.01)
        time.sleep(0.5)  # into the first step, which takes long
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=5)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(self.checkpoints("run"), [])

    def test_a_time_limit_saves_and_ends_well(self):
        result = self.train("run", "--time-limit", "1s", steps=10**6)
        self.assertIn("stopped by time limit 1s", result.stdout)
        self.assertEqual(len(self.checkpoints("run")), 1)

    def test_options_that_must_not_change(self):
        self.train("run")
        before = (self.folder / "run" / "metrics.jsonl").read_bytes()
        shard = self.data / "t_train_000000.bin"
        for flags, words in ((["--lr", "0.1"], "--lr 0.1"), (["--seed", "5"], "--seed 5 (was 1337)"),
                             (["--optimizer", "muon"], "--optimizer"), (["--weight-decay", "0"], "--weight-decay"),
                             (["--skip-spikes", "5"], "--skip-spikes"), (["--schedule", "linear"], "--schedule"),
                             (["--shuffle", "off"], "--shuffle"), (["--dtype", "bf16"], "--dtype")):
            with self.subTest(flags):
                result = self.train("run", "--resume", *flags, expect=2)
                self.assertIn(words, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)
        result = self.train("run", "--resume", expect=2, steps=41)
        self.assertIn("steps 41 (was 40)", result.stderr)
        self.assertIn("layers", self.train("run", "--resume", expect=2, shape=[*SHAPE[:2], "--layers", "3", *SHAPE[4:]]).stderr)
        shape = [("4" if SHAPE[i - 1] == "--micro-batch" else flag) for i, flag in enumerate(SHAPE)]
        self.assertIn("micro_batch 4 (was 2)", self.train("run", "--resume", expect=2, shape=shape).stderr)
        self.assertEqual((self.folder / "run" / "metrics.jsonl").read_bytes(), before)
        write_shard(shard, [1] * 19999)
        self.assertIn("training shards", self.train("run", "--resume", expect=2).stderr)

    def test_a_finished_run_has_nothing_left_to_do(self):
        self.train("run")
        before = self.trained("run")
        shape = [{"--eval-every": "3", "--log-every": "2"}.get(SHAPE[i - 1], flag) for i, flag in enumerate(SHAPE)]
        self.train("run", "--resume", shape=shape)  # these may change
        self.assertEqual(self.trained("run"), before)
        self.assertEqual(self.checkpoints("run"), ["step_00000040"])

    def test_a_damaged_checkpoint_is_named_and_passed_over(self):
        self.train("whole", "--checkpoint-every", 10)
        shutil.copytree(self.folder / "whole", self.folder / "run")
        damage(self.folder / "run" / "step_00000040" / "optimizer" / "state.safetensors")
        (self.folder / "run" / "step_00000030" / "trainer.json").unlink()
        (self.folder / "run" / "step_00000035.tmp").mkdir()
        result = self.train("run", "--resume", "--checkpoint-every", 10)
        self.assertIn("resuming from", result.stdout)
        self.assertIn("step_00000040/optimizer/state.safetensors: its content changed", result.stdout)
        self.assertIn("step_00000030/trainer.json: missing", result.stdout)
        self.assertIn("step_00000020", [m["reason"][-13:] for m in self.metrics("run") if m.get("event") == "resumed"])
        self.assertEqual(len([m for m in self.metrics("run") if m.get("event") == "checkpoint_passed_over"]), 2)
        self.assert_same_run("whole", "run", 40)
        self.assertEqual(self.checkpoints("run"), ["step_00000010", "step_00000020", "step_00000030", "step_00000030.damaged",
                                                   "step_00000040", "step_00000040.damaged"])

    def test_no_whole_checkpoint_is_an_error_and_none_at_all_a_new_run(self):
        self.train("run")
        damage(self.folder / "run" / "step_00000040" / "model.safetensors")
        result = self.train("run", "--resume", expect=1)
        self.assertIn("no checkpoint in", result.stderr)
        self.assertIn("model.safetensors", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.train("other", "--resume")
        shutil.rmtree(self.folder / "other" / "step_00000040")
        self.train("other", "--resume")
        self.assertEqual([m["step"] for m in self.trained("other") if m["kind"] == "step"], list(range(1, 41)))

    def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_run_goes_on_or_stops_as_asked(self):
        for out in ("on", "stop", "last"):
            in_the_way = self.folder / out / ("step_00000040" if out == "last" else "step_00000020") / "in_the_way"
            in_the_way.mkdir(parents=True)
        flags = ["--checkpoint-every", 10]
        result = self.train("on", *flags)
        self.assertIn("checkpoint of step 20 failed", result.stdout)
        events = [m for m in self.metrics("on") if m.get("event") == "checkpoint_failed"]
        self.assertEqual(len(events), 1)
        self.assertIn("step_00000020", events[0]["reason"])
        result = self.train("stop", *flags, "--on-save-error", "stop", expect=1)
        self.assertIn("step_00000020", result.stderr)
        self.train("stop", *flags, "--resume")
        self.assertEqual(self.trained("stop"), self.trained("on"))
        result = self.train("last", *flags, expect=1)
        self.assertIn("last checkpoint could not be written", result.stderr)

    def test_a_full_disk_costs_no_checkpoint_and_no_line_of_the_log(self):
        disk = self.folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=480k", "tmpfs", disk], capture_output=True).returncode != 0:
            self.skipTest("mounting a tmpfs is not permitted")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        flags = ["--checkpoint-every", 10]
        self.train("whole", *flags)
        result = self.train("disk/run", *flags, expect=1)
        self.assertIn("No space left on device", result.stderr)
        good = self.checkpoints("disk/run")
        self.assertIn("step_00000010", good)
        self.assertNotIn("step_00000040", good)
        self.assertIn("checkpoint of step 40 failed", result.stdout)
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        result = self.train("disk/run", *flags, "--resume")
        self.assertIn(f"resuming from {self.folder / 'disk/run' / good[-1]}", result.stdout)
        self.assert_same_run("whole", "disk/run", 40)

    def test_data_that_vanish_end_the_run_after_saving_what_was_done(self):
        self.train("whole", steps=3000)
        shard = self.data / "t_train_000000.bin"
        original = shard.read_bytes()
        process = self.start("run", steps=3000)
        while not (self.folder / "run" / "metrics.jsonl").exists() or not self.metrics("run"):
            time.sleep(0.01)
        os.truncate(shard, 2000)
        output, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("t_train_000000.bin", error)
        [last] = self.checkpoints("run")
        self.assertLess(int(last[5:]), 3000)
        shard.write_bytes(original)
        self.train("run", "--resume", steps=3000)
        self.assert_same_run("whole", "run", 3000)

    def test_init_from_begins_with_those_weights(self):
        self.train("run")
        last = self.folder / "run" / "step_00000040"
        for source in (last, last / "model.safetensors"):
            out = f"from-{source.name}"
            self.train(out, "--init-from", source, "--lr", 0, "--weight-decay", 0)
            self.assertEqual((self.folder / out / "step_00000040" / "model.safetensors").read_bytes(),
                             (last / "model.safetensors").read_bytes())
        self.assertIn("nothing", self.train("none", "--init-from", "nothing", expect=1).stderr)

    def test_too_many_skipped_updates_end_the_run_with_the_last_good_state(self):
        self.train("run")
        weights = bytearray((self.folder / "run" / "step_00000040" / "model.safetensors").read_bytes())
        weights[-4:] = struct.pack("<f", float("nan"))
        (self.folder / "nan.safetensors").write_bytes(weights)
        result = self.train("bad", "--init-from", self.folder / "nan.safetensors", "--max-skipped", 5, expect=1)
        self.assertIn("--max-skipped 5", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        metrics = self.metrics("bad")
        self.assertIsNone(metrics[0]["loss"])
        self.assertEqual({m["reason"] for m in metrics if m["kind"] == "event"}, {"non-finite loss"})
        [last] = self.checkpoints("bad")
        self.assertLess(int(last[5:]), 8)
        self.assertEqual((self.folder / "bad" / last / "model.safetensors").read_bytes(), bytes(weights))

    def test_inspect_prints_state_and_tensors_and_finds_damage(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("numpy is not installed")
        self.train("run", "--optimizer", "muon")
        inspect = [sys.executable, ROOT / "scripts" / "inspect_checkpoint.py"]
        result = subprocess.run([*inspect, self.folder / "run"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ("step 40 of 40", "40 applied, 0 skipped", "transformer.h.1.mlp.c_fc.weight", "h.1.attn.q.weight.momentum"):
            self.assertIn(words, result.stdout)
        state = self.folder / "run" / "step_00000040" / "optimizer" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-4] + struct.pack("<f", float("nan")))
        result = subprocess.run([*inspect, state], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("1 not finite", result.stdout)

    def test_two_processes_cannot_write_one_run(self):
        process = self.start("run", steps=10**6)
        try:
            while not (self.folder / "run" / "metrics.jsonl").exists():
                time.sleep(0.01)
            result = self.train("run", "--resume", steps=10**6, expect=1)
            self.assertIn("another process", result.stderr)
        finally:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    unittest.main()
