"""Properties of all scripts: they restart in the project's .venv, and can be called by their names.

    dev/run_tests.py test/scripts/test_scripts.py
"""

import os
import re
import sys

import ptxas_report
from testing import ROOT, SCRIPTS, Case, script_path, write_files, write_program, write_run


class ScriptsTest(Case):
    def setUp(self):
        super().setUp()
        write_files(self.folder / "scripts", {
            "common/use_venv.py": (SCRIPTS / "common" / "use_venv.py").read_text(),
            "script.py": "if __name__ == '__main__':\n    from common import use_venv\n"
                         "import sys\nprint('here', *sys.argv[1:])\n"})
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
        for script in [*SCRIPTS.glob("*.py"), *(ROOT / "dev").glob("*.py")]:
            if script.read_text().startswith("#!"):
                self.assertTrue(os.access(script, os.X_OK), script.name)

    def test_scripts_without_torch_say_so_in_one_line(self):
        for module in ("torch", "transformers"):
            (self.folder / f"{module}.py").write_text(f'raise ImportError("No module named {module}")')
        for script in ("bench_torch.py", "teon_torch_example.py"):
            self.assertRegex(self.error_of(sys.executable, script_path(script), "README.md", PYTHONPATH=self.folder,
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

    def test_a_spill_that_is_not_permitted_fails(self):
        log = ("ptxas info    : Compiling entry function '_Z3addv' for 'sm_80'\n"
               "    8 bytes stack frame, {} bytes spill stores, {} bytes spill loads\n"
               "ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cmem[0]\n")
        report = (sys.executable, ROOT / "dev" / "ptxas_report.py", self.folder)
        write_files(self.folder, {"add.cu.o.log": log.format(0, 0)})
        self.assertIn("1 kernels, 0 with spills", self.call(*report).stdout)
        write_files(self.folder, {"add.cu.o.log": log.format(4, 8)})
        failed = self.call(*report, expect=1)
        self.assertRegex(failed.stdout, r"add +255 .* 12 .*spills\n")
        self.assertIn("error: 1 kernels spill registers; use fewer", failed.stderr)


class TestNamesTest(Case):
    def test_a_test_case_is_named_after_the_tested_file_or_its_own(self):
        for file in [*ROOT.glob("test/*/*.cpp"), *ROOT.glob("test/*/*.cu")]:
            for name in re.findall(r'TEST_CASE\(\s*"([^":]+):', file.read_text()):
                own = "test/" + name.replace("/", "/test_")
                self.assertTrue(any(ROOT.glob(f"{name}.*")) or any(ROOT.glob(f"{own}.*")), f"{file}: no {name}")
