"""scripts/run_tests.py with an imitation of a test program:  scripts/run_tests.py test/scripts/test_run_tests.py"""

import sys
import time

import run_tests
from testing import Case, write_program

# Stands for a program that uses Catch2. What a test case does is its name's last word.
PROGRAM = """#!{python}
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
NAMES = ["kernels/a: one", "kernels/a: a kernel hangs", "kernels/a: two", "kernels/a: an error stays",
         "kernels/a: three", "kernels/a: it crashes", "kernels/a: four"]


class Faults(Case):
    def setUp(self):
        super().setUp()
        self.program = write_program(self.folder / "cuda" / "tests", PROGRAM.format(python=sys.executable, names=NAMES))

    def test_a_hang_an_error_that_stays_and_a_crash_lose_no_other_test(self):
        result = self.run_script("run_tests.py", self.program, "--timeout", 2, expect=1)
        failures = [line for line in result.stdout.splitlines() if line.startswith("FAILED: ")]
        self.assertEqual(failures, [
            "FAILED: kernels/a: a kernel hangs: no result for 2 s",
            "FAILED: kernels/a: an error stays: the GPU's error stays: an illegal memory access",
            "FAILED: kernels/a: it crashes: killed by SIGABRT"])
        self.assertEqual(result.stdout.splitlines()[-1], "4 passed, 3 failed, 0 skipped")

    def test_a_result_is_reported_before_the_next_test_ends(self):
        times = {}
        run_tests.run_group(str(self.program), [], NAMES[:2], 2, lambda r: times.setdefault(r.name, time.monotonic()))
        self.assertGreater(times[NAMES[1]] - times[NAMES[0]], 1)

    def test_a_test_on_a_gpu_has_a_minute(self):
        self.assertEqual(run_tests.limit_of(str(self.program)), 60)
        self.assertEqual(run_tests.limit_of("build/cuda-model/tests"), 900)
