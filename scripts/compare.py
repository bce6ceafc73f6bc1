#!/usr/bin/env python3
"""Compares training runs: python3 scripts/compare.py --help (scripts/experiments/compare.py)"""

if __name__ == "__main__":
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import sys

from experiments import EXIT_STATUS, compare

if __name__ == "__main__":
    sys.exit(startup.exit_code(compare.main, EXIT_STATUS))
