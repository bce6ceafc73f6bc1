"""Programs for the modelled GPU:  dev/run_tests.py gpusim/test/test_model_gpu.py"""

import shlex
import shutil
import subprocess
import unittest

from testing import PATIENCE, ROOT, Case

PROGRAM = ROOT / "gpusim/model-gpu"
LIBRARIES = ROOT / "build/model-gpu"


def nvcc():
    found = subprocess.run([ROOT / "dev/find_cuda.sh", "nvcc"], text=True, capture_output=True)
    return shlex.split(found.stdout) if found.returncode == 0 else []


class ModelGpuTest(Case):
    def run_model(self, *words, expect=0):
        return self.call(PROGRAM, f"--libraries={LIBRARIES}", *words, expect=expect)

    def test_wrong_options_end_with_one_line(self):
        for words, why in ((("--sanitise=race", "true"), "there is no option --sanitise=race; --help lists them"),
                           ((), "name a program; --help says more"),
                           (("--sanitize=", "true"), "--sanitize names no alarm"),
                           (("/nowhere/program",), "/nowhere/program is no program that can be run"),
                           (("--libraries=/nowhere", "true"), "/nowhere has no libcudart.so.13")):
            refused = self.call(PROGRAM, *words, expect=2)
            self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
            self.assertIn(f"model-gpu: {why}", refused.stderr)

    def test_help_lists_every_option(self):
        text = self.call(PROGRAM, "--help").stdout
        for option in ("--sanitize=LIST", "--device=NAME", "--order=ORDER", "--libraries=DIR", "Exit status"):
            self.assertIn(option, text)

    @unittest.skipUnless((LIBRARIES / "libcudart.so.13").exists(), "needs build/model-gpu (make cuda-run-tests)")
    def test_a_program_without_cuda_is_refused(self):
        self.assertIn("true does not use libcudart.so.13", self.run_model("true", expect=2).stderr)

    @unittest.skipUnless((LIBRARIES / "tests").exists(), "needs build/model-gpu/tests")
    def test_functions_that_use_the_default_stream(self):
        """Variables, copies of rows, fills, blocking streams: gpusim/test/test_programs.cpp."""
        result = self.call(LIBRARIES / "tests", "[legacy]", expect=None, CUDA_DEFAULT_STREAM="legacy", TEON_TEST_LOG="")
        self.assertRegex(result.stdout, r"All tests passed \(\d+ assertions in 4 test cases\)")

    @unittest.skipUnless(shutil.which("g++") and nvcc() and (LIBRARIES / "libcudart.so.13").exists(),
                         "needs nvcc and build/model-gpu")
    def test_the_three_faults_are_found_and_nothing_else(self):
        program = self.folder / "three_faults"
        self.call(*nvcc(), "-std=c++17", "-cudart", "shared", "-lineinfo", "--no-compress", "--expt-relaxed-constexpr",
                  "-gencode", "arch=compute_80,code=compute_80", "-o", program,
                  ROOT / "gpusim/examples/three_faults.cu")
        for order in ("forward", "reverse", "random:1"):
            right = self.run_model(f"--order={order}", program, "right")
            self.assertEqual(right.stdout, "4004\n")
            self.assertIn("model-gpu: 3 kernels, 3 launches, 44 blocks; checked: race, init, bounds, sync",
                          right.stderr)
            self.assertIn("model-gpu: 0 alarms, 0 notes", right.stderr)
            for fault, words, status in (
                    ("race", "a race: ", 3),
                    ("bounds", "byte 16000 of an allocation of 16000 bytes", 1),
                    ("shared", "4 bytes at byte 512 of shared memory, of which the block has 512", 1)):
                with self.subTest(fault=fault, order=order):
                    result = subprocess.run([PROGRAM, f"--libraries={LIBRARIES}", f"--order={order}", program, fault],
                                            text=True, capture_output=True, timeout=PATIENCE)
                    self.assertIn("alarm: kernel ", result.stderr)
                    self.assertIn(words, result.stderr)
                    self.assertIn("three_faults.cu:", result.stderr)
                    # The race changes the sums in some orders, and then the program ends with 1 of its own.
                    self.assertIn(result.returncode, (status, 1), result.stderr)
        unasked = subprocess.run([PROGRAM, f"--libraries={LIBRARIES}", "--sanitize=bounds,sync", program, "race"],
                                 text=True, capture_output=True, timeout=PATIENCE)
        self.assertNotIn("alarm: ", unasked.stderr)
        self.assertIn("checked: bounds, sync", unasked.stderr)
        self.assertIn("it lists some of race, init, bounds, sync",
                      self.run_model("--sanitize=rice", program, expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
