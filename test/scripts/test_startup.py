"""What all scripts share: their first second, bad arguments, odd terminals, and what they may not write over.

    dev/run_tests.py test/scripts/test_startup.py
"""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time

import testing
from testing import SCRIPTS, Case, missing, write_run

MANY_DIGITS = "7" * 5000
NO_NUMBERS = ("nan", "inf", "-inf", "1e999", "٣", "1_0", " 1", "", "1e", MANY_DIGITS + "x", "0x10")
NO_WHOLE_NUMBERS = (*NO_NUMBERS, MANY_DIGITS, "1.9", "1e3", "-1")


def benchmarks():
    """Returns what developers start, in bench/ and dev/."""
    return sorted(path for folder in ("bench", "dev") for path in (testing.ROOT / folder).glob("*.py")
                  if path.name not in ("begin.py", "starts.py"))


def programs():
    """Returns the scripts that people start, by their path below scripts/."""
    return sorted(str(path.relative_to(SCRIPTS)) for path in [*SCRIPTS.glob("*.py"), *SCRIPTS.glob("launch/*.py")]
                  if re.search(r"^    sys\.exit\(|^        sys\.exit\(startup", path.read_text(), re.MULTILINE))


class StartupTest(Case):
    def test_every_script_begins_with_the_guard_and_ends_with_it(self):
        self.assertGreater(len(programs()), 12)
        for name in programs():
            with self.subTest(name):
                text = (SCRIPTS / name).read_text()
                code = re.sub(r'^#!.*\n|^"""(.|\n)*?"""\n', "", re.sub(r"^#!.*\n", "", text)).lstrip()
                self.assertRegex(code, r'^if __name__ == "__main__":\n    (from common )?import ')
                first = code[:code.index("startup.begin()")]
                self.assertLessEqual({*re.findall(r"import (\w+)", first)}, {"os", "sys", "startup"})
                self.assertTrue("exit_code(" in text, "does not end with startup.exit_code()")

    def test_benchmarks_begin_with_the_guard_and_end_with_a_line(self):
        modules = self.folder / "modules"
        modules.mkdir()
        (modules / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
        not_json = self.folder / "counts.json"
        not_json.write_text("{")
        for path in benchmarks():
            with self.subTest(path.name):
                code = re.sub(r'^#!.*\n"""(.|\n)*?"""\n', "", path.read_text()).lstrip()
                self.assertTrue(code.startswith('if __name__ == "__main__":\n    from begin import startup\n'))
                self.assertRegex(code, r"    sys\.exit\(startup\.exit_code\(main[,)]")
                if re.search(r"^import argparse", path.read_text(), re.MULTILINE):
                    result = self.call(sys.executable, path, expect=-signal.SIGINT, PYTHONPATH=modules, TEON_VENV=1)
                    self.assertEqual(result.stderr, f"{path.name}: stopped\n")
                result = self.call(sys.executable, path, "--no-such-flag", expect=None)
                self.assertNotIn("Traceback", result.stderr)
        for counts in (self.folder / "none", not_json):
            self.assertIn("error: ", self.error_of(sys.executable, testing.ROOT / "bench" / "memory_accesses.py",
                                                   counts, expect=1))

    def interrupt(self, name, delay, *words):
        """Starts a script and interrupts it after `delay` seconds. Returns (exit status, standard error)."""
        process = subprocess.Popen([sys.executable, SCRIPTS / name, *map(str, words)], cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=testing.PATIENCE)[1]
        return process.returncode, errors

    def is_before_the_guard(self, name, errors):
        """Returns whether a traceback comes from Python's own start or from the first lines of the script and of
        of scripts/common/, which nothing can guard: a few milliseconds."""
        guard = (SCRIPTS / name).read_text().split("startup.begin()")[0].count("\n") + 1
        frames = re.findall(rf'File "{re.escape(str(SCRIPTS))}/([^"]+)", line (\d+), in (\S+)', errors)
        return all(place == "<module>" and (file.startswith("common/") or file == name and int(line) < guard)
                   for file, line, place in frames)

    def check_interrupt(self, name, delay, *words):  # for the soak
        status, errors = self.interrupt(name, delay, *words)
        if "Traceback" in errors and self.is_before_the_guard(name, errors):
            return
        self.assertIn(status, (0, 1, 2, 130, -signal.SIGINT), errors)
        self.assertNotIn("Traceback", errors)
        self.assertNotIn("Exception ignored", errors)

    def test_ctrl_c_during_an_import_is_a_line(self):
        """The import sends the signal itself, so that it arrives for certain."""
        modules = self.folder / "modules"
        modules.mkdir()
        for name in ("json", "numpy", "statistics", "tempfile"):
            (modules / f"{name}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
        for name in programs():
            if missing("numpy") and name == "hellaswag.py":
                continue
            with self.subTest(name):
                result = self.run_script(name, expect=None, PYTHONPATH=modules, TEON_VENV=1)
                self.assertNotIn("Traceback", result.stderr)
                if re.search(r"^import (json|statistics|tempfile)$", (SCRIPTS / name).read_text(), re.MULTILINE):
                    self.assertEqual(result.returncode, -signal.SIGINT, result.stderr)
                    self.assertEqual(result.stderr, f"{pathlib.Path(name).name}: stopped\n")

    # ---- arguments

    def numbers(self):
        """Returns (script, words before the number, whether it is a whole number)."""
        run = write_run(self.folder / "run")
        return [("watch.py", [run, "--once", "--interval"], False),
                ("follow.py", [run, "--to", "wandb", "--interval"], False),
                ("compare.py", [run, "--target"], False), ("reproduce.py", ["list", "--tflops"], False),
                ("sweep.py", ["--jobs"], True), ("sweep.py", ["--extend-grid"], True),
                ("launch/local.py", ["true", "-n"], True), ("run_tests.py", ["x.py", "--jobs"], True),
                ("run_tests.py", ["x.py", "--timeout"], True)]

    def test_a_number_is_finite_short_and_of_ascii_digits(self):
        for script, words, whole in self.numbers():
            for text in NO_WHOLE_NUMBERS if whole else NO_NUMBERS:
                with self.subTest(script, flag=words[-1], text=text[:20]):
                    error = self.error_of(sys.executable, testing.script_path(script), *words[:-1],
                                          f"{words[-1]}={text}")
                    self.assertIn(words[-1], error)
                    self.assertLess(len(error), 400)
        for text in ("-1", "1e300", "0"):
            for script in ("watch.py", "follow.py"):
                words = [self.folder / "run", "--to", "wandb"][:1 if script == "watch.py" else 3]
                self.assertIn("--interval", self.error_of(sys.executable, SCRIPTS / script, *words,
                                                          f"--interval={text}"))

    def test_an_argument_of_5000_characters_is_shortened(self):
        for name in programs():
            with self.subTest(name):
                result = self.run_script(name, "--" + "x" * 5000, expect=None)
                self.assertNotIn("Traceback", result.stderr)
                self.assertLess(max(map(len, result.stderr.splitlines() or [""])), 2100)

    # ---- output

    def test_a_terminal_that_knows_only_ascii(self):
        run = write_run(self.folder / "läuft")
        for script, words in (("watch.py", [run, "--once"]), ("compare.py", [run, "--out", self.folder / "out"]),
                              ("watch.py", [self.folder / "fehlt-ä"]), ("compare.py", ["--ä"])):
            with self.subTest(script, words=words):
                result = self.run_script(script, *words, expect=None, PYTHONIOENCODING="ascii")
                self.assertNotIn("Traceback", result.stderr)
                self.assertEqual(result.returncode, {"fehlt-ä": 1}.get(pathlib.Path(words[0]).name,
                                                                       2 if words == ["--ä"] else 0), result.stderr)

    def test_full_and_closed_output(self):
        run = write_run(self.folder / "run")
        for target in ("/dev/full", "&-"):
            for streams, expect in ((f">{target}", 1), (f"2>{target}", 0), (f">{target} 2>{target}", 1)):
                with self.subTest(streams):
                    result = self.call("bash", "-c", f'exec "$@" {streams}', "bash", sys.executable,
                                       SCRIPTS / "watch.py", run, "--once", expect=expect)
                    self.assertNotIn("Traceback", result.stderr)
                    self.assertNotIn("Exception ignored", result.stderr)
                    self.assertLessEqual(result.stderr.count("\n"), 1, result.stderr)
            self.call("bash", "-c", f'exec "$@" 2>{target}', "bash", sys.executable, SCRIPTS / "watch.py",
                      self.folder / "none", expect=1)

    @testing.needs("matplotlib")
    def test_help_fits_a_terminal(self):
        commands = [[name] for name in programs() if name != "fetch_model.py"]  # which ./train_gpt2 starts
        for command in [*commands, *(["prepare.py", word] for word in ("fetch", "tokens", "verify"))]:
            with self.subTest(command):
                lines = self.run_script(*command, "--help", COLUMNS="80").stdout.splitlines()
                self.assertEqual([line for line in lines if len(line) > 80], [])

    def test_a_name_with_dollars_is_drawn(self):
        data = {"train": [{"path": "a$_$b/t_train_000000.bin", "tokens": 100}],
                "val": [{"path": "a$_$b/t_val_000000.bin", "tokens": 10}]}
        runs = [write_run(self.folder / f"r$_{i}$^x", data=data, optimizer="a$_$b", seed=i) for i in (1, 2)]
        self.run_script("compare.py", *runs, "--out", self.folder / "$out$_")
        self.assertTrue((self.folder / "$out$_" / "loss.png").stat().st_size > 1000)

    # ---- files

    def test_no_writer_replaces_what_is_not_a_file(self):
        from common import written_files
        pipe, folder = self.folder / "pipe", self.folder / "folder"
        os.mkfifo(pipe)
        folder.mkdir()
        link = self.folder / "link"
        link.symlink_to("/dev/null")
        for target in ("/dev/null", "/dev/full", "/dev/stdout", str(pipe), str(folder), str(link)):
            with self.subTest(target):
                kind = stat.S_IFMT(os.stat(target).st_mode) if target != "/dev/stdout" else None
                if kind is None and stat.S_ISREG(os.stat(target).st_mode):
                    continue
                with self.assertRaisesRegex(written_files.NotAFile, "not a file that can be written"):
                    with written_files.replacing(target) as file:
                        file.write("x")
                if kind is not None:
                    self.assertEqual(stat.S_IFMT(os.stat(target).st_mode), kind)
        self.assertTrue(link.is_symlink())

    def test_a_link_keeps_its_name_and_a_failed_block_the_content(self):
        from common import written_files
        real, link = self.folder / "real", self.folder / "link"
        real.write_text("old")
        link.symlink_to(real)
        with written_files.replacing(link) as file:
            file.write("new")
        self.assertTrue(link.is_symlink())
        self.assertEqual(real.read_text(), "new")
        with self.assertRaises(KeyError):
            with written_files.replacing(real) as file:
                file.write("half")
                raise KeyError
        self.assertEqual(real.read_text(), "new")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["link", "real"])

    def test_every_script_writes_through_the_shared_functions(self):
        """os.replace and open(..., "w") of a file that a user names appear nowhere else."""
        own = {"common/written_files.py", "teon_data/files.py", "teon_data/tokenizer_folder.py",
               "teon_data/shards.py", "teon_data/progress.py", "common/startup.py"}
        for path in SCRIPTS.rglob("*.py"):
            name = path.relative_to(SCRIPTS).as_posix()
            if name not in own:
                self.assertNotRegex(path.read_text(), r"os\.replace\(|open\([^)\n]*, \"w|\.write_text\(", name)

    @testing.needs("numpy")
    def test_hellaswag_and_reports_refuse_devices_and_names_that_are_too_long_before_work(self):
        questions = self.folder / "q.jsonl"
        questions.write_text(json.dumps({"ctx": "a", "endings": ["b", "c"], "label": 0}) + "\n")
        for out in ("/dev/null", "n" * 250, "missing/x.bin"):
            with self.subTest(out[:12]):
                error = self.error_of(sys.executable, SCRIPTS / "hellaswag.py", questions, "--out", out,
                                      "--data", self.folder / "none", expect=1)
                self.assertNotIn("description.json", error)
                self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_a_sweeps_plan_that_is_a_pipe_is_refused(self):
        pipe = self.folder / "plan.toml"
        os.mkfifo(pipe)
        self.assertIn("not a file", self.error_of(sys.executable, SCRIPTS / "sweep.py", pipe))
