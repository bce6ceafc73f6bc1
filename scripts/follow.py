#!/usr/bin/env python3
"""Copies a run's metrics to TensorBoard, Weights & Biases or MLflow, during the run or afterwards.

    python3 scripts/follow.py runs/NAME --to tensorboard         # into runs/NAME/tensorboard: tensorboard --logdir runs
    python3 scripts/follow.py runs/NAME --to wandb --project teon
    python3 scripts/follow.py runs/NAME --to mlflow --project teon      # MLFLOW_TRACKING_URI says where

Reads metrics.jsonl, so training never waits for it, and ends after the run's last step; with --once it copies the
existing lines and ends. Logs each step once, with all of its lines, as soon as the next step is in the file or the run
has ended. After a restart it continues where it stopped (TensorBoard's copy starts again). If it cannot reach the
service, it prints the error and tries again, first after a second, later after a minute. Needs tensorboardX, or PyTorch
with tensorboard; or wandb; or mlflow.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import importlib
import json
import os
import shutil
import sys
import time

from common.arguments import Parser, decimal
from common.run_folder import BadRun, Metrics, is_done, read_config, read_object
from common.startup import complain, printable
from common.written_files import replacing

LONGEST_WAIT = 60  # seconds between attempts to reach a service


def scalars(line):
    """Returns a line's numbers as pairs (name, value), with names such as "train/loss", "eval/val_loss" and
    "diagnose/q/0-1/left". Omits null, which stands for NaN and infinity."""
    kind = {"step": "train"}.get(line["kind"], line["kind"])
    if kind == "diagnose":
        kind = f"diagnose/{line['role']}/{'-'.join(map(str, line['layers']))}"
    return [(f"{kind}/{key}", value) for key, value in line.items() if key != "step" and type(value) in (int, float)]


def library(*names):
    """Imports the first of these modules that is installed."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    raise BadRun(f"needs a library that is not here: pip install {names[0]}")


class TensorBoard:
    def __init__(self, run, options):
        writer = library("tensorboardX", "torch.utils.tensorboard").SummaryWriter
        folder = os.path.join(run, "tensorboard")
        shutil.rmtree(folder, ignore_errors=True)  # TensorBoard would show both copies
        self.writer, self.last_step = writer(folder), 0

    def log(self, step, values):
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def flush(self):
        self.writer.flush()

    def close(self):
        self.writer.close()


class Remembered:
    """A service that continues a run of its own. NAME.json in the run's folder has its id and the last logged step."""

    def __init__(self, run, options):
        self.library = library(self.NAME)
        self.path = os.path.join(run, f"{self.NAME}.json")
        state = read_object(self.path, {"id": str, "step": int}) if os.path.exists(self.path) else None
        self.last_step = state["step"] if state else 0
        self.open(run, options, options.name or os.path.basename(os.path.abspath(run)), state and state["id"])

    def flush(self):
        with replacing(self.path, durable=False) as file:  # often; a lost state only repeats steps
            json.dump({"id": self.id(), "step": self.last_step}, file)

    def close(self):
        self.flush()
        self.finish()


class Wandb(Remembered):
    NAME = "wandb"

    def open(self, run, options, name, known):
        self.run = self.library.init(project=options.project, name=name, id=known, resume="allow",
                                     config=read_config(run), dir=run)
        self.last_step = max(self.last_step, self.run.step - 1)

    def id(self):
        return self.run.id

    def log(self, step, values):
        self.run.log(values, step=step)

    def finish(self):
        self.run.finish()


class MLflow(Remembered):
    NAME = "mlflow"

    def open(self, run, options, name, known):
        self.library.set_experiment(options.project)
        self.run = self.library.start_run(run_id=known, run_name=None if known else name)
        if not known:
            self.library.log_params(read_config(run)["options"])

    def id(self):
        return self.run.info.run_id

    def log(self, step, values):
        self.library.log_metrics(values, step=step)

    def finish(self):
        self.library.end_run()


SERVICES = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


class NewSteps(Metrics):
    """The numbers of the steps that have not been logged yet, {step: {name: value}}, besides the lines of Metrics."""

    def forget(self):
        super().forget()
        self.steps = {}

    def keep(self, line):
        super().keep(line)
        self.steps.setdefault(line["step"], {}).update(scalars(line))


def copy_new(service, metrics, whole):
    """Logs the steps after the last logged step. Unless `whole`, omits the newest, which may get further lines."""
    for step in sorted(metrics.steps) if whole else sorted(metrics.steps)[:-1]:
        if step > service.last_step:
            service.log(step, metrics.steps[step])
            service.last_step = step
        del metrics.steps[step]
    service.flush()


def wait_for_run(run):
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        complain(f"waiting for {path}")
    while not os.path.exists(path):
        time.sleep(1)


def main():
    parser = Parser(__doc__)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--to", required=True, choices=SERVICES)
    parser.add_argument("--project", default="teon",
                        help="project of Weights & Biases, experiment of MLflow (default teon)")
    parser.add_argument("--name", help="name of the run there (default: the folder's name)")
    parser.add_argument("--once", action="store_true", help="copy the existing lines and end")
    parser.add_argument("--interval", type=decimal(0.01, 86400), default=5.0, metavar="SECONDS",
                        help="time between reads (default 5)")
    options = parser.parse_args()
    if not options.once:
        wait_for_run(options.run)
    config, metrics = read_config(options.run), NewSteps(options.run)
    service, wait = None, 1.0
    try:
        while True:
            end = options.once or is_done(config, metrics)
            try:
                service = service or SERVICES[options.to](options.run, options)
                copy_new(service, metrics, whole=end)
                wait = 1.0
                if end:
                    break
            except BadRun:
                raise
            except Exception as error:  # errors of the service, of its HTTP library and of the socket
                message = (str(error).strip().splitlines() or [""])[0][:200]
                complain(f"{options.to}: {type(error).__name__}: {message}; trying again in {wait:.0f} s")
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                time.sleep(options.interval)
            metrics.update()
    except KeyboardInterrupt:
        complain("stopped; run the same command to continue")
    if service:
        service.close()
        print(printable(f"steps up to {service.last_step} of {options.run} are in {options.to}"))
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {BadRun: 1}))
