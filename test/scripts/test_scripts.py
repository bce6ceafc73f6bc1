"""What all scripts have in common: they use the project's .venv by themselves, and can be called by their names.

    python3 test/scripts/test_scripts.py
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "scripts").mkdir()
        (self.folder / "scripts" / "use_venv.py").write_text((ROOT / "scripts" / "use_venv.py").read_text())
        self.script = self.folder / "scripts" / "script.py"
        self.script.write_text("if __name__ == '__main__':\n    import use_venv\n"
                               "import sys\nprint('here', *sys.argv[1:])\n")
        self.python = self.folder / ".venv" / "bin" / "python"
        self.python.parent.mkdir(parents=True)

    def run_python(self, *words):
        environment = {k: v for k, v in os.environ.items() if k != "TEON_VENV"}
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_a_script_goes_on_in_the_venv(self):
        self.assertEqual(self.run_python(self.script, "a b"), "here a b\n")  # there is none
        self.python.write_text('#!/bin/sh\necho venv "$@"\n')
        self.python.chmod(0o755)
        self.assertEqual(self.run_python("-u", self.script, "a b"), f"venv -u {self.script} a b\n")
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # whose Python says that it is another
        self.assertEqual(self.run_python(self.script, "a b"), "here a b\n")
        self.python.write_bytes(b"\x7fELF of another machine")
        self.assertEqual(self.run_python(self.script), "here\n")

    def test_a_script_inside_of_another_process_stays_there(self):
        self.python.write_text("#!/bin/sh\necho venv\n")
        self.python.chmod(0o755)
        program = (f"import runpy, sys; sys.argv = ['{self.script}']; sys.path.insert(0, '{self.script.parent}'); "
                   f"runpy.run_path('{self.script}', run_name='__main__')")
        self.assertEqual(self.run_python("-c", program), "here\n")

    def test_scripts_can_be_called_by_their_names(self):
        for script in (ROOT / "scripts").glob("*.py"):
            if script.read_text().startswith("#!"):
                self.assertTrue(os.access(script, os.X_OK), script.name)

    def test_a_demo_of_a_model_that_is_not_there_is_one_line(self):
        done = subprocess.run([ROOT / "scripts" / "demo.sh"], capture_output=True, text=True,
                              env={**os.environ, "MODEL": "bert"})
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
        self.assertIn("MODEL=bert: no such model; the models are gpt2 llama", done.stderr)


if __name__ == "__main__":
    unittest.main()
