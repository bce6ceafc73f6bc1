#!/usr/bin/env python3
"""Reproduces the Teon paper: python3 scripts/reproduce.py --help (scripts/experiments/reproduce.py)"""

if __name__ == "__main__":
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import sys

from experiments import EXIT_STATUS, reproduce

if __name__ == "__main__":
    sys.exit(startup.exit_code(reproduce.main, EXIT_STATUS, "stopped; run the same command to continue"))
