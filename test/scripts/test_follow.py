"""scripts/follow.py beside a run that grows, with imitations of the services' libraries that record their calls, and
with MLflow where it is installed: dev/run_tests.py test/scripts/test_follow.py"""

import collections
import json
import os
import shutil
import signal
import sys
import time

from testing import RUN_STEPS as STEPS
from testing import SCRIPTS, Case, change_json, needs, read_json, write_program, write_run

# The functions of the libraries that follow.py uses. The file CALLS, which stands for the service, gets a line for each
# call. KILL_AT ends the process within the call of this number, as kill -9 does.
COMMON = """
import os
def note(*words): print(*words, file=open(os.environ["CALLS"], "a"))
def lines(): return open(os.environ["CALLS"]).read().splitlines() if os.path.exists(os.environ["CALLS"]) else []
calls = 0
def called():
    global calls
    calls += 1
    if str(calls) == os.environ.get("KILL_AT"): os._exit(9)
"""
TENSORBOARD = """
class SummaryWriter:
    def __init__(self, folder): pass
    def add_scalar(self, name, value, step, walltime): print(name, step, walltime)
    def flush(self): pass
    def close(self): pass
"""
# The first init and every 7th log fail. As the library does, it sends in the background, here three steps at a time, so
# that a kill loses some; offline it writes to a folder at the end. Steps that the service has are dropped.
WANDB = COMMON + """
class Run:
    def __init__(self, id, folder):
        self.id, self.count, self.unsent = id, 0, []
        self.offline = os.environ.get("WANDB_MODE") == "offline"
        self.step = 0 if self.offline else max((int(x.split()[1]) + 1 for x in lines() if x[:3] == "log"), default=0)
        begun = len(os.listdir(folder + "/wandb")) if os.path.exists(folder + "/wandb") else 0
        self.dir = f"{folder}/wandb/{'offline-' * self.offline}run-{begun}-{id}/files"
        os.makedirs(self.dir)
    def log(self, values, step, commit):
        self.count += 1
        if self.count % 7 == 0: raise ConnectionError("cable pulled")
        called()
        self.unsent.append((step, values.get("_timestamp"), *sorted(values)))
        if len(self.unsent) == 3 and not self.offline: self.send()
    def send(self):
        for row in self.unsent: note("log", *row)
        self.unsent = []
    def finish(self):
        if self.offline: print(*(row[0] for row in self.unsent), file=open(self.dir + "/steps", "w"))
        else: self.send()
        note("finish")
def init(project, name, id, resume, config, dir):
    note("init", project, name, id, resume, config["run"]["steps"])
    if sum(line.startswith("init") for line in lines()) == 1: raise OSError("no route")
    return Run(id, dir)
"""
MLFLOW = COMMON + """
import collections, json, types
class MlflowException(Exception):
    def get_http_status_code(self): return 400
if os.environ.get("FAULT") == "configuration": FAULT = MlflowException("in\\nmaintenance; " + 300 * "so " + "end")
elif os.environ.get("FAULT"): FAULT = ConnectionError("Max retries exceeded")
else: FAULT = None
Metric = collections.namedtuple("Metric", "key value timestamp step")
entities = types.SimpleNamespace(Metric=Metric)
def set_experiment(name):
    note("experiment", name)
    if FAULT: raise FAULT
def start_run(run_id, run_name):
    note("start", run_id, run_name)
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "xyz", start_time=5000))
def log_params(params): note("params", params["optimizer"])
class MlflowClient:
    def log_batch(self, run_id, metrics):
        note("batch", run_id, len(metrics))
        known = set(lines())
        for metric in metrics:
            text = f"log {metric.step} {json.dumps(metric)}"
            if text not in known: note(text)
        called()
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

    def follow(self, run, *arguments, script=SCRIPTS / "follow.py", **variables):
        return self.start(sys.executable, script, run, "--interval", 0.05, *arguments,
                          PYTHONPATH=self.libraries, CALLS=self.calls, **variables)

    def end_of(self, process, expect=0):
        output, errors = process.communicate(timeout=600)
        self.assertEqual(process.returncode, expect, output + errors)
        return output, errors

    def noted(self, kind):
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(kind)]

    def logged(self):
        return [int(line.split()[1]) for line in self.noted("log")]

    def values(self):
        """Returns how often MLflow has each value that metrics.jsonl of self.whole has: (name, step, value)."""
        return collections.Counter((name, step, value) for name, value, _, step in
                                   (json.loads(line.split(" ", 2)[2]) for line in self.noted("log")))

    def wanted(self):
        values = []
        for line in map(json.loads, (self.whole / "metrics.jsonl").read_text().splitlines()):
            name = {"step": "train", "diagnose": "diagnose/q/0-1"}.get(line["kind"], line["kind"])
            values += [(f"{name}/{key}", line["step"], value) for key, value in line.items()
                       if key not in ("kind", "step", "time", "role", "layers")]
        return collections.Counter(values)

    def lengthen(self, steps, time=None):
        """Gives the run this many steps without evaluations, and each line a time if one is given."""
        config, path = read_json(self.whole / "config.json"), self.whole / "metrics.jsonl"
        change_json(self.whole / "config.json", run=config["run"] | {"steps": steps}, data=config["data"] | {"val": []})
        line = json.loads(path.read_text().splitlines()[0])
        path.write_text("".join(
            json.dumps(line | {"step": step} | ({} if time is None else {"time": time + step / 8})) + "\n"
            for step in range(1, steps + 1)))

    def until(self, condition, process):
        for _ in range(12000):
            if condition():
                return
            if process.poll() is not None:
                break
            time.sleep(0.05)
        process.kill()
        self.fail(f"not reached: {process.communicate()}")

    def test_wandb_survives_a_broken_connection_a_resumed_run_and_a_restart(self):
        run, lines = self.folder / "run", (self.whole / "metrics.jsonl").read_text().splitlines(keepends=True)
        process = self.follow(run, "--to", "wandb", "--project", "p")  # before the run exists
        run.mkdir()
        (run / "config.json").write_text((self.whole / "config.json").read_text())
        (run / "metrics.jsonl").write_text("".join(lines[:10]) + lines[10][:10])  # to step 8
        self.until(lambda: 6 in self.logged(), process)
        self.assertNotIn(8, self.logged())  # its line is the newest: an evaluation may follow
        (run / "metrics.jsonl").write_text("".join(lines[:4]))  # resumed from an earlier checkpoint
        time.sleep(0.2)
        (run / "metrics.jsonl").write_text("".join(lines[:16]))
        self.until(lambda: 9 in self.logged(), process)
        process.terminate()
        process.communicate()
        process = self.follow(run, "--to", "wandb", "--project", "p")
        (run / "metrics.jsonl").write_text("".join(lines))
        _, errors = self.end_of(process)
        self.assertEqual(self.logged(), list(range(1, STEPS + 1)))
        known = read_json(run / "wandb.json")["id"]
        # The failed first init, the second and the restarted script name one run.
        self.assertEqual(self.noted("init"), [f"init p run {known} allow {STEPS}"] * 3)
        self.assertEqual(self.noted("")[-1], "finish")
        self.assertIn("eval/val_loss", next(call for call in self.noted("log") if call.startswith("log 5 ")))
        self.assertIn("cable pulled; trying again", errors)

    def test_wandb_gets_what_a_kill_lost(self):
        self.end_of(self.follow(self.whole, "--to", "wandb", KILL_AT=5), expect=9)
        self.assertEqual(self.logged(), [1, 2, 3])  # step 4 was lost
        self.end_of(self.follow(self.whole, "--to", "wandb"))
        self.assertEqual(self.logged(), list(range(1, STEPS + 1)))

    def test_wandb_offline_starts_again_after_a_kill(self):
        self.end_of(self.follow(self.whole, "--to", "wandb", KILL_AT=5, WANDB_MODE="offline"), expect=9)
        other = self.whole / "wandb/offline-run-9-other"
        other.mkdir()
        self.end_of(self.follow(self.whole, "--to", "wandb", WANDB_MODE="offline"))
        folders = set((self.whole / "wandb").iterdir()) - {other}
        self.assertEqual(len(folders), 1)
        self.assertEqual((folders.pop() / "files/steps").read_text().split(), [str(i + 1) for i in range(STEPS)])
        self.assertTrue(other.exists())

    def test_mlflow_gets_every_step_once_and_a_run_is_continued(self):
        metrics = self.whole / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join(lines[:7]))
        for text in (None, "".join(lines)):
            if text:
                metrics.write_text(text)
            self.assertEqual(self.end_of(self.follow(self.whole, "--to", "mlflow", "--once", "--project", "p"))[1], "")
        self.assertEqual(self.values(), self.wanted())
        calls = [call for call in self.noted("") if not call.startswith(("log", "batch"))]
        self.assertEqual(calls, ["experiment p", "start None whole", "params adamw", "end",
                                 "experiment p", "start xyz None", "end"])

    def test_mlflow_gets_whole_steps_in_few_batches_and_a_kill_repeats_none(self):
        for begin in (None, 1.7e9):  # without times, as in logs of version 0.2.0, and with them
            with self.subTest(begin=begin):
                self.lengthen(500, begin)
                self.end_of(self.follow(self.whole, "--to", "mlflow", KILL_AT=2), expect=9)
                self.end_of(self.follow(self.whole, "--to", "mlflow"))
                self.assertEqual(self.values(), self.wanted())
                sizes = [int(line.split()[2]) for line in self.noted("batch")]
                self.assertLessEqual(max(sizes), 1000)  # the service's limit
                self.assertLessEqual(len(sizes), 5)
                self.assertTrue(all(size % 6 == 0 for size in sizes), sizes)
                self.calls.unlink()
                (self.whole / "mlflow.json").unlink()

    def test_services_get_the_times_of_the_log(self):
        self.lengthen(STEPS, 1.7e9)
        output, _ = self.end_of(self.follow(self.whole, "--to", "tensorboard"))
        self.assertIn("train/loss 3 1700000000.375\n", output)
        self.end_of(self.follow(self.whole, "--to", "wandb"))
        self.assertTrue(self.noted("log 3 1700000000.375 "))
        self.calls.unlink()
        self.end_of(self.follow(self.whole, "--to", "mlflow"))
        self.assertIn('log 3 ["train/tokens", 100, 1700000000375, 3]', self.noted("log"))

    def test_tensorboard_gets_every_number_once(self):
        output, errors = self.end_of(self.follow(self.whole, "--to", "tensorboard", "--once"))
        lines = output.splitlines()[:-1]
        self.assertEqual(errors, "")
        self.assertEqual(len(lines), len(set(lines)))
        for name, count in (("train/loss", STEPS), ("eval/val_loss", STEPS // 5), ("diagnose/q/0-1/left", STEPS // 5)):
            self.assertEqual(sum(line.split()[0] == name for line in lines), count, name)
        self.assertFalse(any("kind" in line for line in lines))

    def test_errors_of_configuration_end_it_with_the_whole_message(self):
        errors = self.end_of(self.follow(self.whole, "--to", "mlflow", FAULT="configuration"), expect=1)[1]
        self.assertEqual(errors, "follow.py: error: mlflow: MlflowException: in maintenance; "
                         + 300 * "so " + "end\n")

    def test_once_gives_up(self):
        process = self.follow(self.whole, "--to", "mlflow", "--once", "--tries", 2, FAULT="connection")
        fault = "mlflow: ConnectionError: Max retries exceeded; "
        self.assertEqual(self.end_of(process, expect=1)[1].splitlines(), [
            f"follow.py: {fault}trying again in 1 s", f"follow.py: error: {fault}gave up after 2 tries"])

    def test_one_process_follows_a_run_to_a_service(self):
        metrics = self.whole / "metrics.jsonl"
        text = metrics.read_text()
        metrics.write_text("".join(text.splitlines(keepends=True)[:9]))
        first = self.follow(self.whole, "--to", "mlflow")
        self.until(self.logged, first)
        self.assertEqual(self.end_of(self.follow(self.whole, "--to", "mlflow", "--once"), expect=1)[1],
                         f"follow.py: error: {self.whole}: another follow.py copies it to mlflow\n")
        self.end_of(self.follow(self.whole, "--to", "tensorboard", "--once"))
        first.send_signal(signal.SIGKILL)
        first.wait()
        metrics.write_text(text)
        self.end_of(self.follow(self.whole, "--to", "mlflow"))
        self.assertEqual(self.values(), self.wanted())

    def test_it_stays_in_the_environment_it_was_started_in_if_the_library_is_there(self):
        checkout = self.folder / "checkout"
        shutil.copytree(SCRIPTS / "common", checkout / "scripts/common")
        shutil.copy(SCRIPTS / "follow.py", checkout / "scripts")
        write_program(checkout / ".venv/bin/python", "#!/bin/sh\necho in .venv: $*\n")
        environment = {name: value for name, value in os.environ.items() if name != "TEON_VENV"}
        command = [self.whole, "--to", "mlflow", "--once"]
        for hidden, says in (("", f"steps up to {STEPS} of {self.whole} are in mlflow\n"),
                             ("raise ModuleNotFoundError", f"in .venv: {checkout / 'scripts/follow.py'} ")):
            (self.libraries / "mlflow.py").write_text(hidden or MLFLOW)
            process = self.follow(*command, script=checkout / "scripts/follow.py", env=environment)
            self.assertTrue(self.end_of(process)[0].startswith(says))

    def test_a_library_that_is_missing_or_broken_is_named(self):
        def fault(service):
            return self.end_of(self.follow(self.whole, "--to", service), expect=1)[1]

        for module in ("tensorboardX", "torch", "wandb", "mlflow"):  # cannot be imported, even if installed
            (self.libraries / f"{module}.py").write_text("raise ModuleNotFoundError")
        for service, library in (("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")):
            self.assertEqual(fault(service),
                             f"follow.py: error: needs a library that is not here: pip install {library}\n")
        (self.libraries / "wandb.py").write_text("raise TypeError('Descriptors cannot be created')")
        self.assertEqual(fault("wandb"), "follow.py: error: wandb is installed but cannot be imported: TypeError: "
                         "Descriptors cannot be created\n")

    @needs("mlflow", "sqlalchemy")
    def test_a_batch_that_a_kill_repeats_is_in_the_database_once(self):
        import mlflow
        (self.libraries / "mlflow.py").unlink()
        (self.libraries / "sitecustomize.py").write_text(
            "import os, mlflow\nbatch = mlflow.MlflowClient.log_batch\n"
            "def log_batch(*given, **named): batch(*given, **named); os._exit(9)\n"
            "if 'KILL' in os.environ: mlflow.MlflowClient.log_batch = log_batch\n")
        self.lengthen(300, 1.7e9)
        database = f"sqlite:///{self.folder}/runs.db"
        self.end_of(self.follow(self.whole, "--to", "mlflow", KILL=1, MLFLOW_TRACKING_URI=database), expect=9)
        self.end_of(self.follow(self.whole, "--to", "mlflow", MLFLOW_TRACKING_URI=database))
        client, run = mlflow.MlflowClient(database), read_json(self.whole / "mlflow.json")["id"]
        names = {name for name, _, _ in self.wanted()}
        self.assertEqual(self.wanted(), collections.Counter(
            (m.key, m.step, m.value) for name in names for m in client.get_metric_history(run, name)))
