#!/usr/bin/env python3
"""Copies a run's metrics to TensorBoard's format.

    scripts/to_tensorboard.py runs/NAME              # to runs/NAME/tensorboard
    tensorboard --logdir runs

Needs tensorboardX, or PyTorch with tensorboard. Run again after more steps, it starts the copy over.
"""

import argparse
import os
import shutil
import sys

from run_metrics import open_run, records


def summary_writer():
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            sys.exit("to_tensorboard.py: error: needs a library that is not here: pip install tensorboardX")
    return SummaryWriter


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--out", metavar="FOLDER", help="instead of RUN/tensorboard; not removed first")
    options = parser.parse_args()
    _, metrics = open_run(options.run)
    writer_class = summary_writer()
    folder = options.out or os.path.join(options.run, "tensorboard")
    if not options.out:
        shutil.rmtree(folder, ignore_errors=True)  # two copies would be drawn over each other
    count = 0
    with writer_class(folder) as writer:
        for line in metrics.lines:
            for name, value in records(line):
                writer.add_scalar(name, value, line["step"])
                count += 1
    print(f"{count} values in {folder}")


if __name__ == "__main__":
    main()
