"""The first hour on a GPU at toy sizes:  make cuda-run-tests (on the modelled GPU)"""

import json
import os
import shutil
import sys
import unittest

from first_hour import stages
from testing import BUILD, DEV, MODELLED, ON_GPUS, ROOT, Case, missing, temporary_folder, write_program

TESTS = ("kernels/step_control", "kernels/fill", "runtime/tensor_cores/warpgroup")
PLANTED = ("support/planted: a kernel that never ends", "support/planted: a kernel that writes to an invalid address")

# Stands for ncu: runs the program and prints counters, if one of the program's kernels has the wanted name.
NCU = """#!{python}
import os, re, subprocess, sys
words = sys.argv[1:]
metrics = words[words.index("--metrics") + 1].split(",")
wanted = words[words.index("-k") + 1].removeprefix("regex:")
program = words[words.index("--launch-count") + 2:]
with open(program[0], "rb") as file:
    names = set(re.findall(rb"[0-9]([a-z][a-z0-9_]*_kernel)", file.read()))
subprocess.run(program, check=True, env={{**os.environ, "CUDA_DRY": "1"}})
if any(re.search(wanted.encode(), name) for name in names):
    print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
    for metric in metrics:
        print(f'"0","{{wanted}}","{{metric}}","' + ('ns","64,000"' if "time" in metric else '%","50.00"'))
"""


@unittest.skipUnless(MODELLED or ON_GPUS, "runs what nvcc built")
class FirstHour(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.out = cls.folder / "first"

    def first(self, *words, program=(sys.executable, DEV / "gpu_first.py"), build=("--build", BUILD), **how):
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
        self.assertEqual(set(a), {title for title, _ in stages.CAPABILITIES})
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

    def test_2_losses_and_times_stand_beside_their_limits(self):  # beside the faults of the test before, if it ran
        tools = self.folder / "tools"
        tools.mkdir()
        if MODELLED:
            write_program(tools / "ncu", NCU.format(python=sys.executable))
        self.first("c", "d", "--out", self.out, "--seconds", 900, expect=int(self.out.exists()), timeout=1200,
                   PATH=f"{tools}:{os.environ['PATH']}")
        self.assert_rows("c", ("passed",) if MODELLED and not missing("torch") else ("passed", "skipped"))
        d = self.assert_rows("d", ("passed", "skipped"))
        self.assertEqual(d["GPT-2 124M, round 1"]["outcome"], "passed")
        self.assertEqual(d["GPT-2 124M, --graphs off, round 1"]["outcome"], "passed")
        report = (self.out / "report.md").read_text()
        self.assertIn("## Whole steps", report)
        self.assertIn("| GPT-2 124M, --matmul-dtype fp8 |", report)
        self.assertIn("| GPT-2 124M, --matmul-dtype fp8 --fast-accumulation |", report)
        if MODELLED and not missing("torch"):
            self.assertIn("PyTorch flash, TFLOP/s", report)
            self.assertEqual([o["name"] for o in d["norms in PyTorch"]["operations"]],
                             ["norm forward", "norm backward"])
        if MODELLED:  # ncu's patterns match names of kernels, and launches of full size are accepted
            for name in ("attention forward", "attention backward", "AdamW"):
                self.assertEqual(d[f"ncu: {name}"]["ncu"], {"us": 64, "sm_percent": 50, "dram_percent": 50}, name)
            self.assertIn("| attention backward | 12 | 257.9 | 805 | arithmetic |", report)

    def test_3_a_bundle_runs_without_sources_compilers_and_make(self):
        archive = self.folder / "first.tar.xz"
        self.call(DEV / "gpu_bundle.sh", BUILD, archive, PRESET=0)
        self.call("tar", "xf", archive)
        first = self.folder / "gpu-first"
        tools = self.folder / "few"
        tools.mkdir()
        for name in ("bash", "cat", "dirname", "env", "grep", "ldd", "nvidia-smi", "paste", "python3", "readlink",
                     "sed", "sort", "uname"):
            if shutil.which(name):
                (tools / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or shutil.which(name))
        self.first("a", program=(first / "first.sh",), build=(), expect=0, PATH=tools)
        rows = self.rows(first / "build" / "gpu-first")
        self.assertEqual(rows["a", "a launch"]["outcome"], "passed")
        self.assertNotIn(str(ROOT), (first / "build" / "gpu-first" / "log.txt").read_text())
        self.assertTrue((first / "build" / "deps" / "include" / "fmt" / "core.h").exists())
        self.call("env", f"--chdir={first}", "build/cuda/tests", "optim/teon: ten steps*")  # reads a golden file
        (tools / "ldd").unlink()
        write_program(tools / "ldd", "#!/bin/bash\necho '  libcusolver.so.12 => not found'\n")
        self.assertIn("first: libcusolver.so.12 not found: install CUDA's libraries",
                      self.error_of(first / "first.sh", "a", env={"PATH": str(tools)}))

    def test_4_wrong_stages_and_folders_are_refused_in_one_line(self):
        for words, text in (((["z"]), "'z' is no stage"), (["a", "--build", "nowhere"], "has no programs")):
            self.assertIn(text, self.error_of(sys.executable, DEV / "gpu_first.py", *words))
