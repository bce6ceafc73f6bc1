#!/usr/bin/env python3
"""Runs a grid of training runs and compares them: python3 scripts/sweep.py --help (scripts/experiments/sweep.py)"""

if __name__ == "__main__":
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import sys

from experiments import EXIT_STATUS, sweep

if __name__ == "__main__":
    sys.exit(startup.exit_code(sweep.main, EXIT_STATUS, "stopped; run the same command to continue"))
