"""dev/run_tests.py with an imitation of a test program:  dev/run_tests.py test/dev/test_run_tests.py"""

import sys
import time

import run_tests
from testing import Case, write_files, write_program

# Stands for a program that uses Catch2. What a test case does is its name's last word.
PROGRAM = """#!{python} -SE
import os, sys, time
NAMES = {names}
if "--libidentify" in sys.argv:
    sys.exit(print("description:\\tA Catch2 test executable\\nversion: 3"))
if "--list-tests" in sys.argv:
    sys.exit(print("\\n".join(NAMES)))
log = open(os.environ["TEON_TEST_LOG"], "w")
for name in open(sys.argv[sys.argv.index("--input-file") + 1]).read().splitlines():
    write = lambda outcome, detail="": print(outcome, name, detail, sep="\\t", file=log, flush=True)
    write("started")
    if name.endswith("hangs"):
        time.sleep(600)
    if name.endswith("crashes"):
        os.abort()
    if name.endswith("stays"):
        write("failed", "the GPU's error stays: an illegal memory access")
        os._exit(1)
    write("passed", "0.1")
"""
LIMIT = 5  # seconds for a test case; the others need a hundredth
NAMES = ["kernels/a: one", "kernels/a: a kernel hangs", "kernels/a: two", "kernels/a: an error stays",
         "kernels/a: three", "kernels/a: it crashes", "kernels/a: four"]


class RunTestsTest(Case):
    def program(self, path="cuda/tests", names=NAMES):
        return write_program(self.folder / path, PROGRAM.format(python=sys.executable, names=names))

    def test_a_hang_an_error_that_stays_and_a_crash_lose_no_other_test(self):
        result = self.run_script("run_tests.py", self.program(), "--timeout", LIMIT, expect=1)
        failures = [line for line in result.stdout.splitlines() if line.startswith("FAILED: ")]
        self.assertEqual(failures, [
            f"FAILED: kernels/a: a kernel hangs: no result for {LIMIT} s",
            "FAILED: kernels/a: an error stays: the GPU's error stays: an illegal memory access",
            "FAILED: kernels/a: it crashes: killed by SIGABRT"])
        self.assertEqual(result.stdout.splitlines()[-1], "4 passed, 3 failed, 0 skipped")

    def test_a_result_is_reported_before_the_next_test_ends(self):
        times = {}
        run_tests.run_group(str(self.program()), [], NAMES[:2], LIMIT,
                            lambda r: times.setdefault(r.name, time.monotonic()))
        self.assertGreater(times[NAMES[1]] - times[NAMES[0]], 1)

    def test_a_test_on_a_gpu_has_a_minute(self):
        self.assertEqual(run_tests.limit_of(str(self.program())), 60)
        self.assertEqual(run_tests.limit_of("build/cuda-model/tests"), 900)

    def test_a_file_in_which_no_test_ran_has_failed(self):
        test, begin = "    def test_a(self): pass\n", "import unittest\nclass A(unittest.TestCase):\n"
        write_files(self.folder, {
            "test_good.py": begin + test, "test_empty.py": "",
            "test_bad.py": f"{begin}    @classmethod\n    def setUpClass(cls): raise ValueError('why')\n{test}"})
        for name, said in (("missing", "no such file"), ("empty", "no test in it"), ("bad", "why")):
            done = self.run_script("run_tests.py", "test_good.py", f"test_{name}.py", expect=1)
            self.assertRegex(done.stdout, f"FAILED: test_{name}.py.*{said}\n(.*\n)*1 passed, 1 failed, 0 skipped\n$")
        self.run_script("run_tests.py", "test_good.py", "test_empty.py", "-k", "test_a")  # only one has it
        self.run_script("run_tests.py", "test_good.py", "no/test_missing.py", "-k", "test_a", expect=1)

    def test_a_program_that_cannot_run_has_failed(self):
        good = self.program("good", ["base/x: one"])
        broken = write_program(self.folder / "broken", "#!/bin/sh\nexit 127\n")
        for programs in ([broken], [good, broken]):
            done = self.run_script("run_tests.py", *programs, "--only", "base/", expect=1)
            self.assertIn(f"FAILED: {broken}: lists no test case", done.stdout)
        self.assertIn("1 passed, 1 failed, 0 skipped", done.stdout)

    def test_two_programs_with_the_same_test_cases_both_run(self):
        done = self.run_script("run_tests.py", *(self.program(name, ["base/x: it crashes"]) for name in "ab"), expect=1)
        self.assertIn("0 passed, 2 failed, 0 skipped", done.stdout)
