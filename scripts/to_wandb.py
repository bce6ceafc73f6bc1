#!/usr/bin/env python3
"""Copies a run's configuration and metrics to Weights & Biases.

    scripts/to_wandb.py runs/NAME --project teon     # asks for a login, or: WANDB_MODE=offline scripts/to_wandb.py ...

Needs wandb (pip install wandb).
"""

import argparse
import os
import sys

from run_metrics import open_run, records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--project", default="teon")
    parser.add_argument("--name", help="of the run there; the folder's name")
    options = parser.parse_args()
    config, metrics = open_run(options.run)
    try:
        import wandb
    except ImportError:
        sys.exit("to_wandb.py: error: needs a library that is not here: pip install wandb")
    name = options.name or os.path.basename(os.path.abspath(options.run))
    by_step = {}  # all of a step at once: steps may not go back
    for line in metrics.lines:
        by_step.setdefault(line["step"], {}).update(records(line))
    with wandb.init(project=options.project, name=name, config=config) as run:
        for step in sorted(by_step):
            run.log(by_step[step], step=step)
    print(f"{len(by_step)} steps of {name} in the project {options.project}")


if __name__ == "__main__":
    main()
