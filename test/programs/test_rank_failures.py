"""If a rank fails, all ranks end and one of them names it:  dev/run_tests.py test/programs/test_rank_failures.py"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from rank_runs import RANK, Ranks, for_rank
from testing import BUILD, MODELLED, ON_GPUS, PATIENCE, SCRIPTS, failing_files, read_json, write_shard


class Failures(Ranks):
    def running(self, run, *flags, ranks=3):
        """Returns a long run in the middle of its steps."""
        process = self.launch(self.ranks(ranks, self.command(run, *flags, steps=1000000)))
        self.wait_for_log(process, run, 1000)
        return process, self.ranks_of(run)

    def test_flags_of_one_rank_that_the_others_must_share_are_named(self):
        one = self.command("flags", steps=2)
        for command, says in (
                (for_rank(1, 'exec "$@" --seed 1', one), "rank 1 has different options or data than rank 0"),
                (for_rank(1, 'exec "$@" --dtype bf16', for_rank(0, 'exec "$@" --dtype float', one)),
                 "--dtype bf16: rank 0 stores float; give all ranks the same")):
            with self.subTest(says):
                self.expect(self.launch(self.ranks(2, command)), re.escape(says), None)
                self.assert_no_rank_left("flags")

    @unittest.skipIf(ON_GPUS, "NVIDIA's NCCL has no NCCL_DIE_AT")
    def test_a_rank_dies_in_any_collective(self):
        """With TEON_KILLS, tries every collective of a step and an evaluation."""
        at, after = 1, 1
        while True:
            out = f"die{at}"
            command = self.command(out, "--shard", "all", "--check-ranks", "off", steps=1)
            process = self.launch(self.ranks(3, for_rank(1, f"export NCCL_DIE_AT={at}", command)))
            output = process.communicate(timeout=PATIENCE)[0]
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
                    process.communicate(timeout=PATIENCE)
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
            self.cut(out, int(max(saved)[5:]))
        self.train(ranks, out, *flags, "--resume", steps=steps)
        return out

    def test_a_rank_is_stopped(self):
        """The other ranks report the operation that timed out and, on CPUs, the rank."""
        for rank in (0, 1, 2):
            with self.subTest(rank=rank):
                process, ids = self.running(f"stop{rank}", "--comm-timeout", "20")
                os.kill(ids[rank], signal.SIGSTOP)
                late = "" if ON_GPUS else rf".* rank {rank}\b"
                self.expect(process, rf"(reduce_sum|broadcast) of .*: waited 20 s \(--comm-timeout\) for the other "
                                     rf"ranks{late}")
                self.assert_no_rank_left(f"stop{rank}")

    def test_a_checkpoint_may_take_longer_than_the_timeout(self):
        """One of rank 0's file operations in the checkpoint takes 15 s longer."""
        library = failing_files(self.folder)
        slow = (f"export LD_PRELOAD={library} FAIL_UNDER={self.folder}/long/step_ FAIL_AT=3 FAIL_HOW=slow "
                f"FAIL_S=15")
        self.train(2, "long", command=for_rank(0, slow, self.command("long", "--comm-timeout", 10, steps=2)))
        self.assertTrue((self.folder / "long/step_00000002/manifest.json").exists())

    def test_ranks_skip_a_damaged_checkpoint_of_a_run_with_an_initial_model(self):
        flags = ["--init-from", self.folder / "begin", "--checkpoint-every", 1, "--schedule", "constant"]
        self.train(1, "begin", steps=1)
        self.train(2, "run", *flags, steps=2)
        (self.folder / "run/step_00000002/config.json").write_text("")
        self.train(2, "run", *flags, "--resume", steps=3)
        self.assertEqual(len(self.losses("run")), 3)

    def test_ranks_wait_for_a_slow_rank(self):
        self.train(2, "slow", command=for_rank(1, "sleep 1.5", self.command("slow")))
        self.assertEqual(len(self.losses("slow")), 10)

    def test_a_rank_is_too_late(self):
        for rank in (0, 2):
            with self.subTest(rank=rank):
                late = for_rank(rank, "sleep 100", self.command("late", "--comm-timeout", "1"))
                self.expect(self.launch(self.ranks(3, late)),
                            "meeting the other ranks: waited 1 s|starting NCCL at .*: waited 1 s")

    def test_a_signal_to_all_ranks_ends_a_long_step(self):
        self.assertIn("stopped by SIGTERM after step 0",
                      self.end_in_the_first_step("long", "--batch-tokens", 3 * 2**20, of=(0, 1)))
        self.assertEqual(self.losses("long"), [])

    def test_sigusr1_to_the_launcher_lets_the_ranks_save(self):
        process = self.launch(self.ranks(2, self.command("run", "--exit-when-stopped", 75, steps=10**6)))
        self.wait_for_log(process, "run", 1000)
        for _ in range(2):
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.02)
        output = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 75, output)
        status = read_json(self.folder / "run" / "status.json")
        self.assertEqual((status["state"], status["reason"]), ("stopped", "SIGUSR1"))
        self.assertTrue((self.checkpoint("run", status["step"]) / "manifest.json").exists())

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
            output = process.communicate(timeout=PATIENCE)[0]
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
        self.cut("b", 5)  # a stale view
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
        hydra = RANK == "PMI_RANK"  # which returns the status of ranks that it killed
        self.expect(self.launch(self.ranks(5, self.command("x"))), "48 sequences are no multiple of 5 ranks",
                    None if hydra else 2)

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
                process = self.launch(self.ranks(2, [BUILD / "tests", f"runtime/cuda/comm: fault: {fault}"]))
                self.expect(process, f"rank 0 called {zero} and rank 1 {one}")

    @unittest.skipIf(BUILD.name.startswith("cuda"), "of MPI, over which the modelled GPU's NCCL goes")
    def test_a_launcher_other_than_mpis_is_refused_on_cpus(self):
        ranks = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1234}
        for variables, by in ((ranks | {"TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
                              (ranks, r"a launcher \(RANK, WORLD_SIZE\)"),
                              ({"SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_NODELIST": "n1"}, "srun")):
            with self.subTest(by=by):
                self.expect(self.launch(self.command("env"), **variables),
                            f"{by} started 2 ranks, but ranks on CPUs are MPI's: start them with mpirun", 2)

        local = [sys.executable, SCRIPTS / "launch" / "local.py", "-n", 2]
        self.expect(self.launch([*local, *self.command("env")]), "local.py started 2 ranks, but ranks on CPUs", 2)

    def test_contradictions_in_the_environment(self):
        for variables, text in (({"RANK": "x", "WORLD_SIZE": 2}, "RANK=x: expected a whole number"),
                                ({"RANK": 2, "WORLD_SIZE": 2}, "says rank 2 of 2"),
                                ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "a"}, "MASTER_PORT is not")):
            with self.subTest(text=text):
                self.expect(self.launch(self.command("env"), **variables), text, 2)
