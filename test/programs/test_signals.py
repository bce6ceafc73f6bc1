"""Signals that arrive while the stack pointer is outside the stack:  dev/run_tests.py test/programs/test_signals.py

oneDNN's generated code keeps other addresses in the stack pointer, where a signal's frame would overwrite data.
test/support/outside_the_stack.c does the same during each product.
"""

import platform
import re
import shutil
import signal
import subprocess
import unittest

import rank_runs
from testing import ON_GPUS, ROOT, RunCase, missing_for_ranks, temporary_folder, write_shards

# Exit status after saving.
ENDINGS = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGUSR1: 0, signal.SIGXCPU: 0, signal.SIGINT: -signal.SIGINT}


class Signals(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 32, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--dtype": "float", "--batch-tokens": 64, "--micro-batch": 2, "--eval-tokens": 64, "--eval-every": 0}

    @classmethod
    def setUpClass(cls):
        if ON_GPUS:
            raise unittest.SkipTest("of oneDNN, which multiplies on CPUs")
        if platform.machine() != "x86_64":
            raise unittest.SkipTest("needs an x86-64 CPU")
        if not shutil.which("gcc"):
            raise unittest.SkipTest("needs gcc")
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.stub = cls.folder / "outside_the_stack.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", cls.stub,
                        ROOT / "test/support/outside_the_stack.c", "-ldl", "-pthread"], check=True)
        write_shards(cls.folder, *([i * 7 % 64 for i in range(count)] for count in (5000, 200)))

    def environment(self, **variables):
        return rank_runs.environment(LD_PRELOAD=self.stub,
                                      **{f"OUTSIDE_{name}": value for name, value in variables.items()})

    def last_step(self, output):
        return int(re.search(r"stopped by .* after step (\d+)", output)[1])

    def profile(self, out, steps):
        """Trains under a profiler's signals; returns the number of products."""
        report = self.folder / f"{out}-report"
        plain = self.folder / f"plain-{steps}"
        if not plain.exists():
            self.train(plain.name, steps=steps, env=rank_runs.environment())
        self.train(out, steps=steps, env=self.environment(PROFILE=1, REPORT=report))
        products, handled = map(int, report.read_text().split())
        self.assertGreater(handled, products // 20)  # the signals during one product's tiles become one
        self.assert_same_checkpoint(plain.name, out, steps)
        return products

    def test_a_profilers_signals_are_deferred_until_a_product_ends(self):
        self.assertGreaterEqual(self.profile("profiled", 20), 1000)

    def stop_by_signal(self, number, at, out):
        """Sends the signal during the product of this number; returns the step that was saved."""
        result = self.train(out, steps=10**6, expect=ENDINGS[number],
                            env=self.environment(SIGNAL=int(number), AT=at, WAIT=1))
        self.assertIn(f"stopped by {number.name} after step ", result.stdout)
        step = self.last_step(result.stdout)
        self.assertEqual((self.checkpoint(out, step) / "manifest.json").exists(), step > 0)
        return step

    def test_a_signal_in_a_product_saves_and_ends_the_run(self):
        for number in ENDINGS:
            for at in (0, 1, 777):  # products 0 and 1 belong to the first step, which the signal ends
                with self.subTest(number, at=at):
                    self.assertEqual(self.stop_by_signal(number, at, f"{number.name}-{at}") > 0, at == 777)

    def stop_one_of_two_ranks(self, number, at, out):
        command = rank_runs.for_rank(1, f"export OUTSIDE_AT={at}", self.command(out, steps=10**6))
        result = self.call(*rank_runs.LAUNCHER, "-np", 2, *command, expect=None,
                           env=self.environment(SIGNAL=int(number)))
        output = result.stdout + result.stderr
        self.assertEqual(result.returncode == 0, ENDINGS[number] == 0, output)
        self.assertIn("stopped by another rank after step", output)
        step = self.last_step(output)
        self.assertEqual((self.checkpoint(out, step) / "manifest.json").exists(), step > 0)

    def test_a_signal_to_one_of_two_ranks(self):
        if reason := missing_for_ranks():
            self.skipTest(reason)
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                self.stop_one_of_two_ranks(number, 700, f"ranks-{number.name}")
