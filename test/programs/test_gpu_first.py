"""The first hour on a GPU at toy sizes:  make cuda-run-tests (on the modelled GPU)"""

import json
import shutil
import sys
import unittest

from testing import BUILD, MODELLED, ON_GPUS, ROOT, SCRIPTS, Case, missing, temporary_folder

TESTS = ("kernels/step_control", "kernels/fill", "runtime/warpgroup")
PLANTED = ("support/planted: a kernel that never ends", "support/planted: a kernel that writes to an invalid address")


@unittest.skipUnless(MODELLED or ON_GPUS, "runs what nvcc built")
class FirstHour(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.out = cls.folder / "first"

    def first(self, *words, program=(sys.executable, SCRIPTS / "gpu_first.py"), build=("--build", BUILD), **how):
        python = sys.executable if MODELLED else shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        return self.call(*program, *words, *build, "--size", "toy", "--jobs", 2, "--limit", 20, "--only",
                         ",".join(TESTS), "--python", python, **how)

    def rows(self, out=None):
        lines = ((out or self.out) / "rows.jsonl").read_text().splitlines()
        return {(row["stage"], row["name"]): row for row in map(json.loads, lines)}

    def assert_rows(self, stage, outcomes, except_for=()):
        rows = {name: row for (of, name), row in self.rows().items() if of == stage}
        self.assertTrue(rows)
        for name, row in rows.items():
            if name not in except_for:
                self.assertIn(row["outcome"], outcomes, (name, row["detail"]))
        return rows

    def test_1_a_hang_and_an_error_lose_no_row_and_a_second_call_goes_on(self):
        result = self.first("a", "b", "--plant", "--seconds", 14, "--out", self.out, expect=None)
        self.assertIn("its time ended; call it again to go on", result.stdout)
        before = self.rows()
        self.first("a", "b", "--plant", "--out", self.out, expect=1)
        lines = (self.out / "rows.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), len(self.rows()))  # no row was measured twice
        self.assertLess(len(before), len(lines))
        a = self.assert_rows("a", ("passed",) if MODELLED else ("passed", "skipped"))  # an A100 lacks some
        self.assertEqual(len(a), 16)
        b = self.assert_rows("b", ("passed", "skipped"), PLANTED)
        self.assertEqual(b[PLANTED[0]]["outcome"], "hang")
        self.assertEqual(b[PLANTED[1]]["outcome"], "error stays")
        for prefix in TESTS:
            self.assertTrue(any(name.startswith(prefix) for name in b), prefix)
        self.assertGreater(sum(name.startswith("same bits: ") for name in b), 10)
        report = (self.out / "report.md").read_text()
        for name in PLANTED:
            self.assertIn(name, report)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), ["log.txt", "report.md", "rows.jsonl"])

    def test_2_losses_and_times_stand_beside_their_limits(self):
        self.first("c", "d", "--out", self.out, "--seconds", 900, expect=1)
        self.assert_rows("c", ("passed",) if MODELLED and not missing("torch") else ("passed", "skipped"))
        d = self.assert_rows("d", ("passed", "skipped"))
        self.assertEqual(d["GPT-2 124M, round 1"]["outcome"], "passed")
        self.assertEqual(d["GPT-2 124M, --graphs off, round 1"]["outcome"], "passed")
        report = (self.out / "report.md").read_text()
        self.assertIn("## Whole steps", report)
        self.assertIn("| GPT-2 124M, --matmul-dtype fp8 |", report)
        if MODELLED:  # launches of full size are accepted
            self.assertIn("| attention backward | 12 | 257.9 | 805 | arithmetic |", report)

    def test_3_a_bundle_runs_without_the_sources(self):
        archive = self.folder / "first.tar.xz"
        self.call(SCRIPTS / "gpu_bundle.sh", BUILD, archive, PRESET=0)
        self.call("tar", "xf", archive)
        self.first("a", program=(self.folder / "gpu-first" / "first.sh",), build=(), expect=0)
        rows = self.rows(self.folder / "gpu-first" / "build" / "gpu-first")
        self.assertEqual(rows["a", "a launch"]["outcome"], "passed")
        self.assertNotIn(str(ROOT), (self.folder / "gpu-first" / "build" / "gpu-first" / "log.txt").read_text())

    def test_4_wrong_stages_and_folders_are_refused_in_one_line(self):
        for words, text in (((["z"]), "'z' is no stage"), (["a", "--build", "nowhere"], "has no programs")):
            self.assertIn(text, self.error_of(sys.executable, SCRIPTS / "gpu_first.py", *words))
