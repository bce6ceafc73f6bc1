"""Importing this module restarts the script with the Python of the project's .venv, made by `make setup`.

Import it after startup, which receives a Ctrl-C of the restart, and only in the main program. It does nothing if there
is no .venv, if the .venv cannot run, or if its Python is already running.
"""

import os
import signal
import sys

VENV = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
MARK = "TEON_VENV"  # set in the environment before the restart, to restart only once

# sys.orig_argv: do not restart if a test runs the file within its own process.
if (os.path.realpath(sys.prefix) != os.path.realpath(VENV) and os.access(PYTHON, os.X_OK) and MARK not in os.environ
        and sys.argv[0] in sys.orig_argv):
    os.environ[MARK] = VENV
    # While Python starts, Ctrl-C would print a traceback: it waits until startup.begin().
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.execv(PYTHON, [PYTHON, *sys.orig_argv[1:]])
    except OSError:  # a .venv of another machine: continue with this Python
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
