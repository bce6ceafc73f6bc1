"""Signals that arrive while the stack pointer is no stack:  scripts/run_tests.py test/test_signals.py

oneDNN's generated code keeps other things in the stack pointer, so that a signal's frame would overwrite them.
test/outside_the_stack.c makes each product such a moment.
"""

import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_ranks
from test_train import write_shard

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("TEON_BUILD", "build/cpu")
SHAPE = ["--model", "tiny", "--layers", "2", "--channels", "32", "--heads", "2", "--vocab-size", "64", "--seq-len", "16",
         "--batch-tokens", "64", "--micro-batch", "2", "--eval-tokens", "64", "--eval-every", "0", "--dtype", "float"]
ENDINGS = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGINT: -signal.SIGINT}  # exit status after saving


class Signals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if BUILD.name.startswith("cuda"):
            raise unittest.SkipTest("of oneDNN, which multiplies on CPUs")
        if platform.machine() != "x86_64":
            raise unittest.SkipTest("needs an x86-64 CPU")
        if not shutil.which("gcc"):
            raise unittest.SkipTest("needs gcc")
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.stub = cls.folder / "outside_the_stack.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", cls.stub, ROOT / "test/outside_the_stack.c", "-ldl",
                        "-pthread"], check=True)
        write_shard(cls.folder / "t_train_000000.bin", [i * 7 % 64 for i in range(5000)])
        write_shard(cls.folder / "t_val_000000.bin", [i * 7 % 64 for i in range(200)])

    def command(self, out, steps):
        return [str(x) for x in (BUILD / "train_gpt2", "--data", self.folder, *SHAPE, "--steps", steps, "--out",
                                 self.folder / out)]

    def environment(self, **variables):
        return test_ranks.environment(LD_PRELOAD=self.stub,
                                      **{f"OUTSIDE_{name}": value for name, value in variables.items()})

    def last_step(self, output):
        return int(re.search(r"stopped by .* after step (\d+)", output)[1])

    def test_a_profilers_signals_wait_for_the_end_of_a_product(self):
        report = self.folder / "report"
        subprocess.run(self.command("plain", 20), check=True, capture_output=True)
        subprocess.run(self.command("profiled", 20), check=True, capture_output=True,
                       env=self.environment(PROFILE=1, REPORT=report))
        products, handled = map(int, report.read_text().split())
        self.assertGreaterEqual(products, 1000)
        self.assertGreater(handled, products // 20)  # those of one product's tiles become one
        for file in ("model.safetensors", "optimizer/state.safetensors"):
            self.assertEqual(*((self.folder / run / "step_00000020" / file).read_bytes()
                               for run in ("plain", "profiled")))

    def test_a_signal_in_a_product_saves_and_ends_the_run(self):
        for number, status in ENDINGS.items():
            for at in (0, 1, 777):
                with self.subTest(number, at=at):
                    out = f"{number.name}-{at}"
                    result = subprocess.run(self.command(out, 10**6), capture_output=True, text=True, timeout=300,
                                            env=self.environment(SIGNAL=int(number), AT=at))
                    self.assertEqual(result.returncode, status, result.stdout + result.stderr)
                    self.assertIn(f"stopped by {number.name} after step ", result.stdout)
                    step = self.last_step(result.stdout)
                    self.assertEqual(step > 0, at == 777)
                    self.assertEqual((self.folder / out / f"step_{step:08}" / "manifest.json").exists(), step > 0)

    def test_ctrl_c_ends_a_shells_loop(self):
        loop = 'for i in 1 2; do "$@" --out $OUT/loop-$i || echo "status $?"; done'
        shell = subprocess.Popen(["bash", "-c", loop, "bash", *self.command("unused", 10**6)[:-2]],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                 env=test_ranks.environment(OUT=self.folder))
        self.addCleanup(shell.kill)
        for line in shell.stdout:
            if re.match(r"step +\d+/", line):
                break
        os.killpg(shell.pid, signal.SIGINT)
        output = shell.communicate(timeout=120)[0]
        self.assertEqual(shell.returncode, -signal.SIGINT, output)
        self.assertTrue((self.folder / "loop-1" / f"step_{self.last_step(output):08}" / "manifest.json").exists())
        self.assertFalse((self.folder / "loop-2").exists())

    def test_a_signal_to_one_of_two_ranks(self):
        if reason := test_ranks.what_is_missing():
            self.skipTest(reason)
        for number in (signal.SIGTERM, signal.SIGINT):
            out = f"ranks-{number.name}"
            command = test_ranks.for_rank(1, "export OUTSIDE_AT=700", self.command(out, 10**6))
            with self.subTest(number):
                result = subprocess.run([*test_ranks.LAUNCHER, "-np", "2", *command], capture_output=True, text=True,
                                        timeout=120, env=self.environment(SIGNAL=int(number)))
                output = result.stdout + result.stderr
                self.assertEqual(result.returncode == 0, number == signal.SIGTERM, output)
                self.assertIn("stopped by another rank after step", output)
                self.assertTrue((self.folder / out / f"step_{self.last_step(output):08}" / "manifest.json").exists())


if __name__ == "__main__":
    unittest.main()
