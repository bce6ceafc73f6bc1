"""Jobs of a real Slurm:  test/slurm.sh"""

import os
import subprocess
import time

from rank_runs import environment
from resuming import ResumeCase
from testing import BUILD, ROOT, as_flags, missing_for_ranks, read_json, write_program

LAUNCH = ROOT / "scripts/launch/slurm.sh"
ONE = ("--nodes=1", "--gpus-per-node=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=500")
FOREVER = 10**6
# Executes its arguments, which get a twentieth of the time: a job of minutes makes few steps.
SLOWLY = """#!/bin/bash
(trap "" TERM; while kill -STOP $$; do sleep 0.4; kill -CONT $$; sleep 0.02; done) 2>/dev/null &
exec "$@"
"""


class Jobs(ResumeCase):
    """Runs have a constant rate, so that a run of more steps begins with the same ones."""

    def slow_program(self):
        return write_program(self.folder / "slowly", SLOWLY.replace('"$@"', f'"{BUILD / "train_gpt2"}" "$@"'))

    def words(self, *flags, steps=40):
        shape = {**self.SHAPE, "--schedule": "constant", "--warmup-ratio": 0, "--log-every": FOREVER}
        return [*as_flags({"--data": self.data, **shape, "--steps": steps}), *flags]

    def submit(self, *words, **variables):
        """Submits a job, whose output goes to a file in the test's folder. Returns its number."""
        done = self.call("sbatch", "--parsable", "--output=job-%A_%a", *words,
                         env={**environment(), "SLURM_CONF": os.environ["SLURM_CONF"]}, **variables)
        job = done.stdout.strip()
        self.addCleanup(subprocess.run, ["scancel", "--full", job], stderr=subprocess.DEVNULL)
        return job

    def field(self, job, name):
        """Returns what `scontrol show job` says of the (first) job."""
        shown = self.call("scontrol", "--oneliner", "show", "job", job, env=os.environ).stdout
        return next(word.split("=", 1)[1] for word in shown.split() if word.startswith(name + "="))

    def wait_for_end(self, job):
        while self.call("squeue", "--noheader", "--jobs", job, env=os.environ, expect=None).stdout.strip():
            time.sleep(0.2)

    def output(self, job):
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"job-{job}_*")))

    def assert_goes_on_as_undisturbed(self, out, job):
        """Continues the run, which has ended in its job, for some steps."""
        status = read_json(self.folder / out / "status.json")
        self.assertEqual((status["state"], status["reason"]), ("stopped", "SIGTERM"), self.output(job))
        self.assertTrue((self.checkpoint(out, status["step"]) / "manifest.json").exists())
        steps = status["step"] + 30
        for run in (out, "whole"):
            self.call(BUILD / "train_gpt2", *self.words("--out", self.folder / run, "--resume", steps=steps))
        self.assert_same_run("whole", out, steps)

    def test_a_job_that_its_limit_ends_has_saved_and_goes_on_with_the_same_bits(self):
        out = self.folder / "run"
        job = self.submit(*ONE, "--time=1", "--wrap", " ".join(map(str, [
            "exec srun --mpi=none", self.slow_program(), *self.words("--out", out, steps=FOREVER)])))
        self.wait_for_end(job)
        self.assertEqual(self.field(job, "JobState"), "TIMEOUT")
        self.assert_goes_on_as_undisturbed("run", job)

    def test_slurm_sh_requeues_the_job_until_its_end_whatever_its_output_file(self):
        job = self.submit(*ONE, "--time=1", "--signal=TERM@40", LAUNCH, *self.words(steps=FOREVER),
                          TEON_OUT="run", TEON_PROGRAM=self.slow_program())
        for restarts in (1, 2):
            while self.field(job, "Restarts") != str(restarts):
                self.assertNotIn(self.field(job, "JobState"), ("FAILED", "COMPLETED"), self.output(job))
                time.sleep(0.2)
            self.call("scontrol", "update", f"JobId={job}", "StartTime=now", env=os.environ)  # instead of two minutes
        self.assertEqual(self.output(job).count("stopped by SIGTERM"), 2)
        self.assertEqual(self.output(job).count("resuming from"), 1)
        self.call("scancel", job, env=os.environ)
        self.wait_for_end(job)
        self.assert_goes_on_as_undisturbed("run", job)

    def test_tasks_of_an_array_have_flags_and_folders_of_their_own(self):
        (self.folder / "cells").write_text("--seed 1\n--seed 2 --lr 0.01")
        job = self.submit(*ONE, "--array=1-2", LAUNCH, *self.words(), TEON_CELLS="cells",
                          TEON_PROGRAM=BUILD / "train_gpt2")
        unnamed = self.submit(*ONE, "--array=1-4", "--wrap", " ".join(map(str, [
            "exec", BUILD / "train_gpt2", *self.words()])))
        for number in (job, unnamed):
            self.wait_for_end(number)
            self.assertEqual(self.field(number, "JobState"), "COMPLETED", self.output(number))
        self.assertEqual([self.config(f"runs/slurm-{job}_{task}")["options"]["seed"] for task in (1, 2)], [1, 2])
        self.assertEqual(len(list((self.folder / "runs").glob("*"))), 2 + 4)
        job = self.submit(*ONE, "--array=3", LAUNCH, *self.words(), TEON_CELLS="cells")
        self.wait_for_end(job)
        self.assertEqual(self.output(job), "cells has no line 3\n")

    def test_several_ranks(self):
        if reason := missing_for_ranks():
            self.skipTest(reason)
        known = self.call("srun", "--mpi=list", env=os.environ)
        if "pmix" not in known.stdout + known.stderr:
            self.skipTest("needs Slurm's plugin for PMIx")
        job = self.submit("--nodes=1", "--gpus-per-node=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--mem=1000",
                          LAUNCH, *self.words(), TEON_PROGRAM=BUILD / "train_gpt2", SLURM_MPI_TYPE="pmix")
        self.wait_for_end(job)
        self.assertEqual(self.field(job, "JobState"), "COMPLETED", self.output(job))
        out = f"runs/slurm-{job}"
        self.assertEqual(self.config(out)["run"]["ranks"], 2)
        self.call(BUILD / "train_gpt2", *self.words("--out", self.folder / "one"))
        for ours, theirs in zip(self.losses(out), self.losses("one"), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-5)

    def test_a_usage_error_is_one_line_and_status_2(self):
        for mpi in ("none", "pmix"):
            result = self.call("srun", "-n", 2, f"--mpi={mpi}", "--kill-on-bad-exit=1", BUILD / "train_gpt2", "--bad",
                               env=environment() | {"SLURM_CONF": os.environ["SLURM_CONF"]}, expect=2)
            ours = [line for line in result.stderr.splitlines() if "train_gpt2" in line]
            self.assertEqual(ours, ["train_gpt2: error: --bad: no such flag (--help-all lists all)"], result.stderr)
