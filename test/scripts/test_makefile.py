"""The Makefile's number of compilers:  scripts/run_tests.py test/scripts/test_makefile.py"""

import os
import shutil
import unittest

from testing import ROOT, Case

# Stands for the compiler: notes how many run at once, and makes the object.
COMPILER = """#!/bin/bash
for word; do [ "$earlier" = -o ] && out=$word; earlier=$word; done
[ -n "$out" ] || exit 0
touch "$NOTES/running.$$"
ls "$NOTES" | grep -c running >>"$NOTES/counts"
sleep 0.05
rm "$NOTES/running.$$"
touch "$out"
"""


@unittest.skipUnless(shutil.which("make"), "needs make")
class JobsTest(Case):
    def most_at_once(self, *words):
        """Returns how many compilers `make WORDS` runs at once for the objects of two folders, and how many in all."""
        notes = self.folder / f"notes{len(list(self.folder.glob('notes*')))}"
        notes.mkdir()
        compiler = notes / "compiler"
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
        here = notes / "checkout"
        here.mkdir()
        for path in ("Makefile", "scripts", "base", "data", "CHANGELOG.md"):
            (here / path).symlink_to(ROOT / path)
        goals = [f"build/cpu/{path.relative_to(ROOT)}.o" for part in ("base", "data")
                 for path in sorted((ROOT / part).glob("*.cpp"))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        self.call("make", "-C", here, *words, "SETUP=0", "BACKEND=cpu", f"CXX={compiler}", *goals,
                  env=environment | {"NOTES": str(notes)})
        counts = [int(line) for line in (notes / "counts").read_text().split()]
        return max(counts), len(counts), len(goals)

    def test_an_unlimited_j_starts_no_more_compilers_than_jobs(self):
        for words in (["-j", "JOBS=2"], ["--jobs", "JOBS=3"], ["JOBS=2"]):
            most, runs, goals = self.most_at_once(*words)
            self.assertEqual(runs, goals)
            self.assertLessEqual(most, int(words[-1][-1]), words)

    def test_jobs_are_at_least_one_and_at_most_one_per_core(self):
        listed = self.call("make", "-C", ROOT, "-pn", "help", "SETUP=0", expect=None).stdout
        jobs = [line.split()[-1] for line in listed.splitlines() if line.startswith("JOBS :=")]
        self.assertTrue(jobs and 1 <= int(jobs[0]) <= os.cpu_count(), jobs)
