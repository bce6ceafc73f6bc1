"""scripts/follow.py beside a run that grows, with imitations of the services' libraries that record their calls:
dev/run_tests.py test/scripts/test_follow.py"""

import sys
import time

from testing import RUN_STEPS as STEPS
from testing import SCRIPTS, Case, write_run

# The functions of the libraries that follow.py uses. The file CALLS gets a line for each call. The first init and every
# 7th log fail.
TENSORBOARD = """
class SummaryWriter:
    def __init__(self, folder): pass
    def add_scalar(self, name, value, step): print(name, step)
    def flush(self): pass
    def close(self): pass
"""
WANDB = """
import os
def note(*words): print(*words, file=open(os.environ["CALLS"], "a"))
class Run:
    id, step, count = "abc", 0, 0
    def log(self, values, step):
        self.count += 1
        if self.count % 7 == 0: raise ConnectionError("cable pulled")
        note("log", step, *sorted(values))
    def finish(self): note("finish")
def init(project, name, id, resume, config, dir):
    note("init", project, name, id, resume, config["run"]["steps"])
    if sum(line.startswith("init") for line in open(os.environ["CALLS"])) == 1: raise OSError("no route")
    return Run()
"""

MLFLOW = """
import os
from types import SimpleNamespace
def note(*words): print(*words, file=open(os.environ["CALLS"], "a"))
def set_experiment(name): note("experiment", name)
def start_run(run_id, run_name):
    note("start", run_id, run_name)
    return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "xyz"))
def log_params(params): note("params", params["optimizer"])
def log_metrics(values, step): note("log", step, *sorted(values))
def end_run(): note("end")
"""


class FollowTest(Case):
    def setUp(self):
        super().setUp()
        self.calls = self.folder / "calls"
        self.libraries = self.folder / "libraries"
        self.libraries.mkdir()
        (self.libraries / "tensorboardX.py").write_text(TENSORBOARD)
        (self.libraries / "wandb.py").write_text(WANDB)
        (self.libraries / "mlflow.py").write_text(MLFLOW)
        self.whole = write_run(self.folder / "whole")

    def follow(self, run, *arguments):
        return self.start(sys.executable, SCRIPTS / "follow.py", run, "--interval", 0.05, *arguments,
                          PYTHONPATH=self.libraries, CALLS=self.calls)

    def logged(self):
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith("log")]

    def test_wandb_survives_a_broken_connection_a_resumed_run_and_a_restart(self):
        run, lines = self.folder / "run", (self.whole / "metrics.jsonl").read_text().splitlines(keepends=True)
        process = self.follow(run, "--to", "wandb", "--project", "p")  # before the run exists
        run.mkdir()
        (run / "config.json").write_text((self.whole / "config.json").read_text())
        (run / "metrics.jsonl").write_text("".join(lines[:8]) + lines[8][:10])

        def until(step):
            for _ in range(600):
                if step in self.logged():
                    return
                time.sleep(0.05)
            process.kill()
            self.fail(f"step {step} was not logged: {process.communicate()}")

        until(5)
        self.assertNotIn(6, self.logged())  # its line is the newest: an evaluation may follow
        (run / "metrics.jsonl").write_text("".join(lines[:4]))  # resumed from an earlier checkpoint
        time.sleep(0.2)
        (run / "metrics.jsonl").write_text("".join(lines[:13]))
        until(9)
        process.terminate()
        process.communicate()
        process = self.follow(run, "--to", "wandb", "--project", "p")
        (run / "metrics.jsonl").write_text("".join(lines))
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(self.logged(), list(range(1, STEPS + 1)))
        calls = self.calls.read_text().splitlines()
        self.assertEqual(calls[:2], [f"init p run None allow {STEPS}"] * 2)
        self.assertIn(f"init p run abc allow {STEPS}", calls)  # the restarted script continues the same run
        self.assertEqual(calls[-1], "finish")
        self.assertIn("eval/val_loss", next(call for call in calls if call.startswith("log 5 ")))
        self.assertIn("cable pulled; trying again", errors)

    def test_mlflow_gets_every_step_once_and_a_run_is_continued(self):
        metrics = self.whole / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join(lines[:7]))
        for text in (None, "".join(lines)):
            if text:
                metrics.write_text(text)
            process = self.follow(self.whole, "--to", "mlflow", "--once", "--project", "p")
            output, errors = process.communicate(timeout=60)
            self.assertEqual(errors, "")
        self.assertEqual(self.logged(), list(range(1, STEPS + 1)))
        calls = [call for call in self.calls.read_text().splitlines() if not call.startswith("log")]
        self.assertEqual(calls, ["experiment p", "start None whole", "params adamw", "end",
                                 "experiment p", "start xyz None", "end"])

    def test_tensorboard_gets_every_number_once(self):
        output, errors = self.follow(self.whole, "--to", "tensorboard", "--once").communicate(timeout=60)
        lines = output.splitlines()[:-1]
        self.assertEqual(errors, "")
        self.assertEqual(len(lines), len(set(lines)))
        for name, count in (("train/loss", STEPS), ("eval/val_loss", STEPS // 5), ("diagnose/q/0-1/left", STEPS // 5)):
            self.assertEqual(sum(line.split()[0] == name for line in lines), count, name)
        self.assertFalse(any("kind" in line for line in lines))

    def test_a_missing_library_is_named(self):
        for module in ("tensorboardX", "torch", "wandb", "mlflow"):  # cannot be imported, even if installed
            (self.libraries / f"{module}.py").write_text("raise ImportError")
        for service, library in (("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")):
            process = self.follow(self.whole, "--to", service)
            self.assertEqual(process.communicate(timeout=60)[1],
                             f"follow.py: error: needs a library that is not here: pip install {library}\n")
            self.assertEqual(process.returncode, 1)
