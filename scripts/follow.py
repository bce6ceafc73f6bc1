#!/usr/bin/env python3
"""Copies a run's metrics to TensorBoard, Weights & Biases or MLflow, during the run or afterwards.

    python3 scripts/follow.py runs/NAME --to tensorboard         # into runs/NAME/tensorboard: tensorboard --logdir runs
    python3 scripts/follow.py runs/NAME --to wandb --project teon
    python3 scripts/follow.py runs/NAME --to mlflow --project teon      # MLFLOW_TRACKING_URI says where

Reads metrics.jsonl, so training never waits for it, and ends after the run's last step; with --once it copies the
existing lines and ends. Logs each step once, with all of its lines and its time, as soon as the next step is in the
file or the run has ended. After a restart, also one after a kill, it continues where it stopped; copies that are files
(TensorBoard, wandb offline) start again. If it cannot reach the service, it prints the error and tries again, first
after a second, later after a minute; with --once it gives up after --tries. An error of configuration ends it. One
process follows a run to a service. Needs tensorboardX, or PyTorch with tensorboard; or wandb; or mlflow: in the
Python that runs it, or else in .venv.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()

import errno
import fcntl
import functools
import glob
import importlib
import json
import os
import secrets
import shutil
import sys
import time

from common.arguments import Parser, decimal, whole
from common.run_folder import BadRun, Metrics, is_done, read_config, read_object
from common.startup import complain, printable
from common.written_files import UNSUPPORTED, replacing

LONGEST_WAIT = 60  # seconds between attempts to reach a service


def scalars(line):
    """Returns a line's numbers as pairs (name, value), with names such as "train/loss", "eval/val_loss" and
    "diagnose/q/0-1/left". Omits null, which stands for NaN and infinity."""
    kind = {"step": "train"}.get(line["kind"], line["kind"])
    if kind == "diagnose":
        kind = f"diagnose/{line['role']}/{'-'.join(map(str, line['layers']))}"
    return [(f"{kind}/{key}", value) for key, value in line.items()
            if key not in ("step", "time") and type(value) in (int, float)]


def library(*names):
    """Imports the first of these modules that is installed here. If none is, looks in .venv."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
        except Exception as error:
            raise BadRun(f"{name} is installed but cannot be imported: {text_of(error)}") from None
    from common import use_venv  # noqa: F401 - starts the script again, unless .venv's Python is this one
    raise BadRun(f"needs a library that is not here: pip install {names[0]}")


class TensorBoard:
    LIBRARY = ("tensorboardX", "torch.utils.tensorboard")
    VALUES_AT_ONCE = 1000

    def __init__(self, library, run, options):
        folder = os.path.join(run, "tensorboard")
        shutil.rmtree(folder, ignore_errors=True)  # TensorBoard would show both copies
        self.writer, self.last_step = library.SummaryWriter(folder), 0

    def send(self, rows):
        for step, time_of_step, values in rows:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step, walltime=time_of_step)
        self.writer.flush()

    def close(self):
        self.writer.close()


class Remembered:
    """A service that continues a run of its own. NAME.json in the run's folder has its id and the last step sent."""

    def __init__(self, library, run, options):
        self.library, self.path = library, os.path.join(run, f"{options.to}.json")
        state = read_object(self.path, {"id": str, "step": int}) if os.path.exists(self.path) else {}
        self.id, self.last_step = state.get("id"), state.get("step", 0)
        self.open(run, options, options.name or os.path.basename(os.path.abspath(run)))

    def note(self):
        with replacing(self.path, durable=False) as file:  # often
            json.dump({"id": self.id, "step": self.last_step}, file)


class Wandb(Remembered):
    """Only the service knows what has arrived: the library sends in the background, and a kill loses what it has not
    sent. Offline it writes all to one folder, which therefore starts again."""

    LIBRARY = ("wandb",)
    VALUES_AT_ONCE = 1

    def open(self, run, options, name):
        self.id = self.id or secrets.token_hex(4)
        self.note()  # before the run is made, so that a kill leaves no second one
        self.run = self.library.init(project=options.project, name=name, id=self.id, resume="allow",
                                     config=read_config(run), dir=run)
        self.last_step = max(0, self.run.step - 1)
        if self.run.offline:
            here = os.path.dirname(os.path.abspath(self.run.dir))
            for folder in glob.glob(os.path.join(glob.escape(os.path.dirname(here)), f"offline-run-*-{self.id}")):
                if folder != here:
                    shutil.rmtree(folder, ignore_errors=True)

    def send(self, rows):
        for step, time_of_step, values in rows:
            known = {} if time_of_step is None else {"_timestamp": time_of_step}
            self.run.log(values | known, step=step, commit=True)

    def close(self):
        self.note()
        self.run.finish()


class MLflow(Remembered):
    """Its servers keep a value once if it is sent twice with one time, so that a batch may be repeated after a kill."""

    LIBRARY = ("mlflow",)
    VALUES_AT_ONCE = 1000  # the service's limit

    def open(self, run, options, name):
        self.library.set_experiment(options.project)
        self.run = self.library.start_run(run_id=self.id, run_name=None if self.id else name)
        if not self.id:
            self.library.log_params(read_config(run)["options"])
        self.id = self.run.info.run_id
        self.note()

    def send(self, rows):
        metric = self.library.entities.Metric
        self.library.MlflowClient().log_batch(self.id, [
            metric(name, value, self.run.info.start_time if time_of_step is None else round(1000 * time_of_step), step)
            for step, time_of_step, values in rows for name, value in values.items()])
        self.last_step = rows[-1][0]
        self.note()

    def close(self):
        self.library.end_run()


SERVICES = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


class NewSteps(Metrics):
    """The steps that have not been sent yet, {step: (time of its first line or None, {name: value})}, besides the lines
    of Metrics."""

    def forget(self):
        super().forget()
        self.steps = {}

    def keep(self, line):
        super().keep(line)
        self.steps.setdefault(line["step"], (line.get("time"), {}))[1].update(scalars(line))


def batches(rows, most):
    """Yields the rows in order in lists of at most `most` values, or of one row that has more."""
    batch, count = [], 0
    for row in rows:
        if batch and count + len(row[2]) > most:
            yield batch
            batch, count = [], 0
        batch.append(row)
        count += len(row[2])
    if batch:
        yield batch


def copy_new(service, metrics, whole):
    """Sends the steps after the last one sent. Unless `whole`, omits the newest, which may get further lines."""
    steps = sorted(metrics.steps) if whole else sorted(metrics.steps)[:-1]
    rows = [(step, *metrics.steps[step]) for step in steps if step > service.last_step and metrics.steps[step][1]]
    for batch in batches(rows, service.VALUES_AT_ONCE):
        service.send(batch)
        service.last_step = batch[-1][0]
    for step in steps:
        del metrics.steps[step]


def wait_for_run(run):
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        complain(f"waiting for {path}")
    while not os.path.exists(path):
        time.sleep(1)


def lock(run, service):
    """Returns an open file whose lock says until this process ends that it copies the run to the service."""
    file = open(os.path.join(run, f"{service}.lock"), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRun(f"{run}: another follow.py copies it to {service}") from None
    except OSError as error:
        if error.errno not in (*UNSUPPORTED, errno.ENOLCK):
            raise
    return file


def text_of(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def is_permanent(error):
    """Returns whether trying again is useless: whether the error is one of configuration, not of a connection."""
    if hasattr(error, "get_http_status_code"):  # MLflow's
        return 400 <= error.get_http_status_code() < 500 and error.get_http_status_code() not in (408, 429)
    if isinstance(error, OSError):  # also those of sockets and of HTTP libraries
        return isinstance(error, (FileNotFoundError, NotADirectoryError, PermissionError))
    return (type(error).__name__ in ("UsageError", "AuthenticationError")  # wandb's
            or isinstance(error, (AttributeError, LookupError, TypeError, ValueError)))


def follow(options, config, metrics, service):
    """Copies until the run's end, with --once until the file's. service(): opens it at the first call."""
    failures = 0
    while True:
        end = options.once or is_done(config, metrics)
        try:
            copy_new(service(), metrics, whole=end)
            failures = 0
            if end:
                return service().close()
        except BadRun:
            raise
        except Exception as error:  # of the service's library, or of those that it uses
            message, failures = f"{options.to}: {text_of(error)}", failures + 1
            if is_permanent(error):
                raise BadRun(message) from None
            if options.once and failures >= options.tries:
                raise BadRun(f"{message}; gave up after {failures} tries") from None
            wait = min(2 ** min(failures - 1, 10), LONGEST_WAIT)
            complain(f"{message}; trying again in {wait} s")
            time.sleep(wait)
        else:
            time.sleep(options.interval)
        metrics.update()


def main():
    parser = Parser(__doc__)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--to", required=True, choices=SERVICES)
    parser.add_argument("--project", default="teon",
                        help="project of Weights & Biases, experiment of MLflow (default teon)")
    parser.add_argument("--name", help="name of the run there (default: the folder's name)")
    parser.add_argument("--once", action="store_true", help="copy the existing lines and end")
    parser.add_argument("--tries", type=whole(1, 1000), default=5, metavar="N",
                        help="with --once, attempts to reach the service before it ends with status 1 (default 5)")
    parser.add_argument("--interval", type=decimal(0.01, 86400), default=5.0, metavar="SECONDS",
                        help="time between reads (default 5)")
    options = parser.parse_args()
    if not options.once:
        wait_for_run(options.run)
    config, metrics = read_config(options.run), NewSteps(options.run)  # a fault of the run comes first
    module = library(*SERVICES[options.to].LIBRARY)
    locked = lock(options.run, options.to)
    service = functools.cache(lambda: SERVICES[options.to](module, options.run, options))
    try:
        follow(options, config, metrics, service)
    except KeyboardInterrupt:
        complain("stopped; run the same command to continue")
        if service.cache_info().currsize:
            try:
                service().close()
            except Exception as error:
                complain(f"{options.to}: {text_of(error)}")
    if service.cache_info().currsize:
        print(printable(f"steps up to {service().last_step} of {options.run} are in {options.to}"))
    locked.close()
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1}))
