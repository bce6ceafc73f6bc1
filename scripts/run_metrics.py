"""Reading a run's folder: metrics.jsonl as it grows, and config.json."""

import json
import os
import sys


class Metrics:
    """The lines of a run's metrics.jsonl. update() reads what was appended since; a line still being written waits.

    A run that resumes cuts off what came after its checkpoint; then everything is read again.
    """

    def __init__(self, run):
        self.path = os.path.join(run, "metrics.jsonl")
        self.position = 0
        self.lines = []

    def update(self):
        """Returns the new lines, and keeps all of them in `lines`."""
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self.position:
                self.position, self.lines = 0, []
            file.seek(self.position)
            data = file.read()
        whole = data[:data.rfind(b"\n") + 1]
        self.position += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        return new


def read_config(run):
    with open(os.path.join(run, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def numbers(line):
    """{name: value} of a line's numbers, without the step. NaN and infinity are null in the file and left out."""
    return {key: value for key, value in line.items()
            if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)}


def records(line):
    """The scalars of a line as (name, value): "train/loss", "eval/val_loss", "diagnose/q/0-1/left"."""
    kind = {"step": "train"}.get(line["kind"], line["kind"])
    if kind == "diagnose":
        kind = f"diagnose/{line['role']}/{'-'.join(map(str, line['layers']))}"
    return [(f"{kind}/{key}", value) for key, value in numbers(line).items()]


def open_run(run):
    """(config, metrics), or exits with one line."""
    try:
        config = read_config(run)
        metrics = Metrics(run)
        metrics.update()
    except (OSError, ValueError) as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: error: {run} is not a run's folder: {error}")
    return config, metrics
