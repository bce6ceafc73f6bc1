"""Importing this continues the script in the project's .venv, which holds what `make setup` installs.

Import it first, and only where the file is the program: `if __name__ == "__main__": import use_venv`. Nothing happens
where there is no .venv, where it cannot be run, or where this is its Python already.
"""

import os
import sys

VENV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
MARK = "TEON_VENV"  # in the environment: tried already, so that no .venv can make this repeat itself

# sys.orig_argv: not where a test runs the file inside of its own process.
if (os.path.realpath(sys.prefix) != os.path.realpath(VENV) and os.access(PYTHON, os.X_OK) and MARK not in os.environ
        and sys.argv[0] in sys.orig_argv):
    os.environ[MARK] = VENV
    try:
        os.execv(PYTHON, [PYTHON, *sys.orig_argv[1:]])
    except OSError:
        pass  # a .venv of another machine: this Python goes on
