"""Runs that are killed, stopped, damaged and resumed:  dev/run_tests.py test/programs/test_interrupted.py

`make soak` (test/programs/soak.py) kills and fails for much longer.
"""

import errno
import json
import os
import pty
import random
import shutil
import signal
import time
import unittest

import testing
from resuming import ResumeCase, damage
from testing import BUILD, MODELLED, PATIENCE, failing_files, read_json, write_shards

MANY = 200 if MODELLED else 3000  # steps of a run that will be interrupted


class InterruptedTest(ResumeCase):
    def kill_and_resume(self, optimizer, *flags, kills=4 if MODELLED else 10, seed=""):
        steps, rng = 50 if MODELLED else 200, random.Random(optimizer + seed)
        flags = ["--optimizer", optimizer, "--checkpoint-every", 7, "--keep-last", 3, *flags]
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

    def test_killed_at_any_moment(self):
        for optimizer in ("adamw", "muon", "teon"):
            with self.subTest(optimizer):
                self.kill_and_resume(optimizer)

    def test_resuming_removes_checkpoints_that_a_killed_run_should_have_removed(self):
        self.train("a", "--checkpoint-every", 10)
        self.assertEqual(len(self.checkpoints("a")), 4)
        self.train("a", "--checkpoint-every", 10, "--keep-last", 2, "--resume")  # no further save
        self.assertEqual(self.checkpoints("a"), ["step_00000030", "step_00000040"])

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

    def test_sigterm_and_sigint_save_before_they_end_a_run(self):
        self.train("whole", steps=MANY)
        for which in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(which):
                out = which.name
                process = self.start_run(out, steps=MANY)
                self.wait_for(out)
                process.send_signal(which)
                output, error = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, -which if which == signal.SIGINT else 0, error)
                step = self.metrics(out, "step")[-1]["step"]
                self.assertLess(step, MANY)
                self.assertIn(f"stopped by {which.name} after step {step}", output)
                self.assertEqual(self.checkpoints(out), [f"step_{step:08}"])
                self.train(out, "--resume", steps=MANY)
                self.assert_same_run("whole", out, MANY)

    def status(self, out):
        path = self.folder / out / "status.json"
        return read_json(path) if path.exists() else {"state": "not begun"}

    # What schedulers send, with the seconds until the next: Slurm at a time limit and at scancel, twice within 18 or
    # 300 ms; --signal=USR1@60 and then the limit; SGE's and LSF's warnings; a limit of processor time.
    SEQUENCES = [
        [(signal.SIGTERM, .018), (signal.SIGTERM, 0)],
        [(signal.SIGTERM, .3), (signal.SIGTERM, 0)],
        [(signal.SIGUSR1, .1), (signal.SIGTERM, .018), (signal.SIGTERM, 0)],
        [(signal.SIGUSR2, .1), (signal.SIGINT, .1), (signal.SIGTERM, 0)],
        [(signal.SIGXCPU, .2), (signal.SIGXCPU, .2), (signal.SIGXCPU, 0)],
        [(signal.SIGHUP, 0), (signal.SIGTERM, 0)],
    ]

    def send(self, process, sequence, to_group=False):
        """Sends the signals to the process, or each to its group and to the process."""
        for number, pause in sequence:
            if to_group:
                os.killpg(process.pid, number)
            process.send_signal(number)
            time.sleep(pause)

    def test_what_schedulers_send_during_a_save_leaves_it_whole(self):
        """The save that the first signal asks for takes 3 seconds longer at one of its file operations."""
        library = failing_files(self.folder)
        self.train("whole", steps=MANY)
        rng, running = random.Random(5), []
        for i, sequence in enumerate(self.SEQUENCES):
            out = f"slow{i}"
            process = self.start(*self.command(out, steps=MANY), LD_PRELOAD=library, FAIL_HOW="slow",
                                 FAIL_UNDER=self.folder / out / "step_", FAIL_AT=rng.randrange(20),
                                 start_new_session=True)
            self.wait_for(out)
            self.send(process, sequence, to_group=i % 2 == 0)
            running.append((out, process, sequence))
        for out, process, sequence in running:
            with self.subTest(sequence, out=out):
                first = sequence[0][0].name
                output, error = process.communicate(timeout=PATIENCE)
                self.assertEqual((process.returncode, error), (0, f"{first}: saving, then ending\n"), output)
                step = self.status(out)["step"]
                self.assertEqual(self.status(out), {"state": "stopped", "step": step, "steps": MANY, "reason": first})
                self.assertEqual(self.checkpoints(out), [f"step_{step:08}"])
                self.assertRegex(output, rf"\nsaved ([3-9]|\d\d+)\.\d s after {first}\n"
                                         f"stopped by {first} after step {step};")
                self.train(out, "--resume", steps=MANY)
                self.assert_same_run("whole", out, MANY)

    def stop_again_and_again(self, rng, *flags):
        """Resumes a run until it is finished, and sends it what schedulers send at random moments. Returns how often it
        was stopped."""
        flags = ["--checkpoint-every", 7, "--keep-last", 2, "--exit-when-stopped", 75, *flags]
        self.train("whole", *flags, steps=MANY)
        stops = 0
        while True:
            process = self.start_run("run", *flags, "--resume", steps=MANY)
            while process.poll() is None and self.status("run")["state"] != "running":
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.4))
            self.send(process, [(number, pause * rng.uniform(1, 3)) for number, pause in rng.choice(self.SEQUENCES)])
            output, error = process.communicate(timeout=PATIENCE)
            if process.returncode == 0:
                break
            self.assertEqual(process.returncode, 75, output + error)
            self.assertEqual(self.status("run")["state"], "stopped")
            stops += 1
        # A signal in the last step may have prevented its evaluation, and is then the reason in status.json.
        self.train("run", *flags, "--resume", steps=MANY)
        self.assertEqual(self.status("run"), {"state": "finished", "step": MANY, "steps": MANY, "reason": ""})
        self.assert_same_run("whole", "run", MANY)
        return stops

    def test_a_run_stopped_by_schedulers_again_and_again_has_the_result_of_an_undisturbed_one(self):
        self.assertGreater(self.stop_again_and_again(random.Random(6)), 2)

    def test_ctrl_c_twice_in_a_terminal_ends_at_once(self):
        slow = {"LD_PRELOAD": failing_files(self.folder), "FAIL_UNDER": self.folder / "run" / "step_", "FAIL_AT": 0,
                "FAIL_HOW": "slow", "FAIL_S": PATIENCE}
        words = [str(word) for word in self.command("run", "--log-every", 10**6, steps=10**6)]
        child, keys = pty.fork()
        if child == 0:
            os.execve(words[0], words, os.environ | {name: str(value) for name, value in slow.items()})
        self.addCleanup(os.close, keys)
        self.wait_for("run")
        os.write(keys, b"\3")
        shown = b""
        while b"SIGINT: saving" not in shown:
            shown += os.read(keys, 1 << 16)
        os.write(keys, b"\3")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGINT)
        self.assertEqual([name for name in self.checkpoints("run") if not name.endswith(".tmp")], [])
        self.assertEqual(self.status("run")["state"], "running")

    def test_a_run_ends_before_its_slurm_job_and_says_how_much_time_was_left(self):
        result = self.train("run", "--exit-when-stopped", 9, steps=10**6, expect=9,
                            SLURM_JOB_END_TIME=int(time.time()) + 66)
        left = r"(1m0[0-6]|[1-5]?\d)s"  # less on a busy machine
        self.assertRegex(result.stdout, f"the Slurm job ends in {left}: the run saves and ends a minute and")
        self.assertRegex(result.stdout, rf"saved \d+\.\d s after the end of the Slurm job; {left} of the job "
                                        "were left\n")
        self.assertEqual(self.status("run")["reason"], "the end of the Slurm job")
        self.assertEqual(len(self.checkpoints("run")), 1)

    def test_a_failed_run_says_so_in_its_folder(self):
        (self.folder / "run").mkdir()
        (self.folder / "run" / "step_00000040").write_text("in the way")
        error = self.train("run", expect=1).stderr
        status = self.status("run")
        self.assertEqual((status["state"], status["step"]), ("failed", 40))
        self.assertIn(status["reason"], error)

    def end_by_signal(self, out, wait, *flags, **shape):
        """The run's output."""
        process = self.start_run(out, *flags, steps=100, shape=self.SHAPE | shape)
        wait(out)
        process.send_signal(signal.SIGHUP)
        output, error = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, error)
        self.assertEqual(error, "SIGHUP: saving, then ending\n")
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

    @unittest.skipIf(MODELLED, "a modelled GPU takes its time")
    def test_a_run_whose_last_evaluation_a_signal_ended_has_stopped_and_is_resumed_with_it(self):
        tokens = [random.Random(2).randrange(64) for _ in range(400000)]
        write_shards(self.data, tokens, tokens)
        flags = ["--exit-when-stopped", 75, "--eval-tokens", 400000]
        process = self.start_run("run", *flags, steps=5)
        self.wait_for("run", 5)
        time.sleep(0.3)
        process.send_signal(signal.SIGUSR1)
        output, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 75, output + error)
        self.assertIn("stopped by SIGUSR1 after step 5;", output)
        self.assertEqual(self.status("run"), {"state": "stopped", "step": 5, "steps": 5, "reason": "SIGUSR1"})
        self.assertEqual(self.metrics("run", "eval"), [])
        self.train("run", *flags, "--resume", steps=5)
        self.assertEqual(self.status("run"), {"state": "finished", "step": 5, "steps": 5, "reason": ""})
        self.assertEqual([m["step"] for m in self.metrics("run", "eval")], [5])

    def test_an_ignored_hangup_stays_ignored(self):
        process = self.start("bash", "-c", 'trap "" HUP; exec "$@"', "nohup", *self.command("run", steps=10**6))
        self.wait_for("run")
        process.send_signal(signal.SIGHUP)
        self.wait_for("run", len(self.metrics("run")) + 50)
        process.send_signal(signal.SIGTERM)
        self.assertIn("stopped by SIGTERM", process.communicate(timeout=PATIENCE)[0])

    def test_a_closed_output_does_not_end_a_run(self):
        self.train("whole", "--log-every", 1, steps=MANY)
        process = self.start_run("run", "--log-every", 1, steps=MANY)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=PATIENCE), 0)
        self.assertEqual(testing.of_program(process.stderr.read()), "standard output cannot be written (Broken pipe); "
                         "the run goes on and is in its metrics.jsonl\n")
        self.assert_same_run("whole", "run", MANY)

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
        output, error = process.communicate(timeout=PATIENCE)
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

    # Functions of which every call fails on some disk: what a run says of it before step 1. The lock is the first file.
    REFUSED = {"mkdir": "cannot make a folder (a trial", "open": "/lock cannot be written",
               "write": "/lock: cannot be written", "fsync": "/config.json.tmp: cannot be written",
               "rename": "config.json: cannot be replaced", "fsync_folder": "cannot sync a folder (a trial",
               "symlink": None, "flock": None}  # None: a run does without it
    NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)

    def test_what_a_disk_cannot_do_is_named_before_the_first_step_or_done_without(self):
        self.train("whole", "--keep-best", steps=2)
        library = failing_files(self.folder)
        for function, says in self.REFUSED.items():
            few = says and function != "fsync_folder"
            for code in (errno.EINVAL, errno.EIO) if few else (*self.NOT_SUPPORTED, errno.EPERM, errno.EIO):
                with self.subTest(function, error=os.strerror(code)):
                    out = f"{function}-{code}"
                    (self.folder / out).mkdir()
                    result = self.train(out, "--keep-best", steps=2, expect=None, LD_PRELOAD=library,
                                        FAIL_UNDER=f"{self.folder / out}", FAIL_CALL=function, FAIL_ERRNO=code)
                    if not says or function == "fsync_folder" and code in self.NOT_SUPPORTED:
                        self.assertEqual(result.returncode, 0, result.stderr)
                        self.assert_same_checkpoint("whole", out, 2)
                    else:
                        self.assertIn(result.returncode, (1, 2), result.stdout + result.stderr)
                        [line] = result.stderr.splitlines()
                        for words in (str(self.folder / out), os.strerror(code), says):
                            self.assertIn(words, line)
                        log = self.folder / out / "metrics.jsonl"
                        self.assertEqual(log.read_text() if log.exists() else "", "")
                    self.remove(out)

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
                shutil.copytree(self.folder / "half", self.folder / "counted", symlinks=True)
            self.run_with_fault("counted", resumes=resumes, expect=0)
            counts[resumes] = int((self.folder / "counted-operations").read_text())
            shutil.rmtree(self.folder / "counted")
        return counts

    def run_with_fault(self, out, at=-1, how="error", code=0, resumes=False, expect=None):
        flags = ["--checkpoint-every", 3, "--keep-last", 2, "--eval-every", 4, "--keep-best", *["--resume"] * resumes]
        return self.train(out, *flags, steps=9, expect=expect, LD_PRELOAD=self.folder / "failing_files.so",
                          FAIL_UNDER=self.folder / out, FAIL_AT=at, FAIL_HOW=how, FAIL_ERRNO=code, FAIL_READS=1,
                          FAIL_COUNT=self.folder / f"{out}-operations")

    def survive_fault(self, resumes, at, how, code):
        """The faulty run succeeds, ends with one error and exit status 1 or 2, or is killed. The next run with --resume
        has the result of an undisturbed one, and its best checkpoint unless the faulty run said that it could not write
        it. A file that cannot be read is not taken for damaged."""
        out = f"fault-{resumes}-{at}-{how}-{code}"
        if resumes:
            shutil.copytree(self.folder / "half", self.folder / out, symlinks=True)
        result = self.run_with_fault(out, at, how, code, resumes)
        self.assertIn(result.returncode, (0, -signal.SIGKILL) if how == "kill" else (0, 1, 2),
                      result.stdout + result.stderr)
        if result.returncode > 0:
            self.assertIn("train_gpt2: error: ", result.stderr.splitlines()[-1])
        self.run_with_fault(out, resumes=True, expect=0)
        self.assert_same_run("whole", out, 9)
        best = read_json(self.folder / "whole" / "best.json")
        if best["step"] not in [event["step"] for event in self.events(out, "checkpoint_failed")]:
            self.assertEqual(read_json(self.folder / out / "best.json"), best)
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
