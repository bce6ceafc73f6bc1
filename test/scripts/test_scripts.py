"""Properties of all scripts: they restart in the project's .venv, and can be called by their names.

    scripts/run_tests.py test/scripts/test_scripts.py
"""

import os
import re
import sys

import ptxas_report
from testing import ROOT, SCRIPTS, Case, write_files, write_program, write_run


class ScriptsTest(Case):
    def setUp(self):
        super().setUp()
        write_files(self.folder / "scripts", {
            "use_venv.py": (SCRIPTS / "use_venv.py").read_text(),
            "script.py": "if __name__ == '__main__':\n    import use_venv\nimport sys\nprint('here', *sys.argv[1:])\n"})
        self.script = self.folder / "scripts" / "script.py"
        self.python = self.folder / ".venv" / "bin" / "python"

    def run_python(self, *words):
        environment = {k: v for k, v in os.environ.items() if k != "TEON_VENV"}
        done = self.call(sys.executable, *words, env=environment)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def test_a_script_restarts_in_the_venv(self):
        self.assertEqual(self.run_python(self.script, "a b"), "here a b\n")  # there is no .venv
        write_program(self.python, '#!/bin/sh\necho venv "$@"\n')
        self.assertEqual(self.run_python("-u", self.script, "a b"), f"venv -u {self.script} a b\n")
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # its Python seems to be another one
        self.assertEqual(self.run_python(self.script, "a b"), "here a b\n")
        self.python.write_bytes(b"\x7fELF of another machine")
        self.assertEqual(self.run_python(self.script), "here\n")

    def test_an_imported_script_does_not_restart(self):
        write_program(self.python, "#!/bin/sh\necho venv\n")
        program = (f"import runpy, sys; sys.argv = ['{self.script}']; sys.path.insert(0, '{self.script.parent}'); "
                   f"runpy.run_path('{self.script}', run_name='__main__')")
        self.assertEqual(self.run_python("-c", program), "here\n")

    def test_scripts_can_be_called_by_their_names(self):
        for script in (ROOT / "scripts").glob("*.py"):
            if script.read_text().startswith("#!"):
                self.assertTrue(os.access(script, os.X_OK), script.name)

    def test_scripts_without_torch_say_so_in_one_line(self):
        for module in ("torch", "transformers"):
            (self.folder / f"{module}.py").write_text(f'raise ImportError("No module named {module}")')
        for script in ("bench_torch.py", "teon_torch_example.py"):
            self.assertRegex(self.error_of(sys.executable, SCRIPTS / script, "README.md", PYTHONPATH=self.folder,
                                           expect=1), f"^{script}: error: .*pip install torch")

    def test_watch_guesses_the_newest_run_of_a_folder(self):
        for age, name in enumerate(("new", "old")):
            log = write_run(self.folder / "runs" / "below" / name) / "metrics.jsonl"
            os.utime(log, (1e9 - age, 1e9 - age))
        done = self.run_script("watch.py", self.folder / "runs", "--once")
        self.assertTrue(done.stdout.startswith(f"run    {self.folder}/runs/below/new\n"), done.stdout)
        (self.folder / "empty").mkdir()
        self.assertIn("empty/config.json: missing",
                      self.run_script("watch.py", self.folder / "empty", "--once", expect=1).stderr)

    def test_a_demo_of_an_unknown_model_is_refused_in_one_line(self):
        self.assertIn("MODEL=bert: no such model; the models are gpt2 llama",
                      self.error_of(SCRIPTS / "demo.sh", MODEL="bert"))


class PtxasReportTest(Case):
    def test_kernel_names_are_short_and_complete(self):
        names = {"plain": "plain", "_Z3foov": "foo", "_ZN4teon12_GLOBAL__N_13barIfEEvPT_": "bar<float>"}
        self.assertEqual(ptxas_report.short_names(names), names)


class RunTestsTest(Case):
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

    # A Catch2 program with one test case, which fails in `bad`.
    PROGRAM = f"""#!{sys.executable}
import os, sys
if "--list-tests" in sys.argv:
    print("base/x: one")
elif "--input-file" in sys.argv:
    outcome = "failed" if sys.argv[0].endswith("bad") else "passed"
    open(os.environ["TEON_TEST_LOG"], "w").write(f"started\\tbase/x: one\\n{{outcome}}\\tbase/x: one\\t0.1\\n")
"""

    def test_a_program_that_cannot_run_has_failed(self):
        good = write_program(self.folder / "good", self.PROGRAM)
        broken = write_program(self.folder / "broken", "#!/bin/sh\nexit 127\n")
        for programs in ([broken], [good, broken]):
            done = self.run_script("run_tests.py", *programs, "--only", "base/", expect=1)
            self.assertIn(f"FAILED: {broken}: lists no test case", done.stdout)
        self.assertIn("1 passed, 1 failed, 0 skipped", done.stdout)

    def test_two_programs_with_the_same_test_cases_both_run(self):
        programs = [write_program(self.folder / name, self.PROGRAM) for name in ("bad", "good")]
        done = self.run_script("run_tests.py", *programs, expect=1)
        self.assertIn("1 passed, 1 failed, 0 skipped", done.stdout)


class TestNamesTest(Case):
    def test_a_test_case_is_named_after_the_tested_file_or_its_own(self):
        for file in [*ROOT.glob("test/*/*.cpp"), *ROOT.glob("test/*/*.cu")]:
            for name in re.findall(r'TEST_CASE\(\s*"([^":]+):', file.read_text()):
                own = "test/" + name.replace("/", "/test_")
                self.assertTrue(any(ROOT.glob(f"{name}.*")) or any(ROOT.glob(f"{own}.*")), f"{file}: no {name}")
