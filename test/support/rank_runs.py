"""Helpers for tests of several ranks on this machine. On CPUs mpirun starts the ranks. On GPUs scripts/launch/local.py
does, one per GPU; tests that need more ranks than there are GPUs are skipped.
"""

import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from testing import BUILD, ON_GPUS, PATIENCE, ROOT, RunCase, gpus, learnable, missing_for_ranks, write_shards

PROGRAM = BUILD / "train_gpt2"
# The relative change of a loss that another order of sums may cause. A GPU's Newton-Schulz rounds to f16.
FLOAT = 1e-4 if BUILD.name.startswith("cuda") else 1e-6
MPIRUN = os.environ.get("MPIRUN", "mpirun")
OPEN_MPI = ["--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1"]
# What `mpirun --version` (mpirun.openmpi says OpenRTE) matches: flags for more ranks than processors, started by root,
# and the variable of the rank.
MPIS = {
    r"mpirun\S* \((Open MPI|OpenRTE)\) 4": (["--oversubscribe", *OPEN_MPI], "OMPI_COMM_WORLD_RANK"),
    r"mpirun\S* \((Open MPI|OpenRTE)\)": (["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *OPEN_MPI],
                                          "OMPI_COMM_WORLD_RANK"),
    "": ([], "PMI_RANK"),  # MPICH, Intel MPI
}


def launcher():
    """Returns the words that start ranks before -np, and the variable with a rank's number."""
    if ON_GPUS:
        return [sys.executable, ROOT / "scripts/launch/local.py"], "RANK"
    try:
        version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout
    except OSError:
        version = ""  # the tests of ranks are skipped
    flags, rank = next(how for pattern, how in MPIS.items() if re.match(pattern, version))
    return [MPIRUN, *flags], rank


LAUNCHER, RANK = launcher()


def environment(**more):
    """Returns an environment without variables of this test's own launcher. Ranks share few cores: one thread each."""
    theirs = ("OMPI_", "PMI", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_", "TEON_TEST_LOG",
              "NCCL_COMM_ID", "MPI_LOCAL", "HYDRA_", "HYDI_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(theirs)}
    return {**clean, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **{k: str(v) for k, v in more.items()}}


def for_rank(rank, what, command):
    """Returns the command, before which this rank executes `what`. There "$@" is the command."""
    return ["bash", "-c", f'if [ ${RANK} = {rank} ]; then {what}; fi; exec "$@"', "bash", *command]


class Ranks(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 3, "--channels": 32, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--batch-tokens": 768, "--micro-batch": 2, "--eval-tokens": 496, "--eval-every": 1000,
             "--check-ranks": "on", "--comm-timeout": PATIENCE // 2}
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
        return self.call(*command, env=environment())

    def launch(self, command, **variables):
        return self.start(*command, stderr=subprocess.STDOUT, env=environment(**variables))

    def expect(self, process, pattern, status=1):
        """Waits for ranks that must fail (None: with any status) and print the pattern. Returns their output."""
        output = process.communicate(timeout=PATIENCE)[0]
        self.assertNotEqual(process.returncode, 0, output)
        if status:
            self.assertEqual(process.returncode, status, output)
        self.assertRegex(output, pattern)
        return output

    def wait_for_log(self, process, run, size=0):
        log = self.folder / run / "metrics.jsonl"
        while not (log.exists() and log.stat().st_size >= size):
            self.assertIsNone(process.poll())
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
        while self.ranks_of(run):
            time.sleep(0.05)

    def assert_close(self, a, b, tolerance):
        self.assertEqual(len(a), len(b))
        for step, (x, y) in enumerate(zip(a, b), 1):
            self.assertTrue(math.isfinite(x) and abs(x - y) <= tolerance * abs(y), f"step {step}: {x} and {y}")
