#!/usr/bin/env python3
"""Starts ranks on this machine, one per GPU. Like torchrun, but needs only Python.

    python3 scripts/launch/local.py -n 8 ./train_gpt2 --data datasets/fineweb10B --optimizer teon ...

Ranks connect at a free port of this machine. The script forwards the signals at which a run saves and ends (SIGTERM,
SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU) to all ranks, except those that it was started to ignore (nohup). A second
Ctrl-C kills the ranks. If a rank fails, ranks that are still running after a few seconds are killed. The exit status is
that of the first rank that failed, or 0.
"""
if __name__ == "__main__":
    import os
    import sys

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from common import startup

    startup.begin()

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

from common import stopping
from common.arguments import Parser, whole

GRACE = 5  # seconds, after the first failure


def describe(status):
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def main():
    parser = Parser(__doc__)
    parser.add_argument("-n", "-np", type=whole(1, 4096), required=True, metavar="RANKS", dest="ranks")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("a number of ranks and a command are needed")

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {"TEON_LAUNCHER": "local.py", "WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": options.ranks,
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks, signals = [], []  # signals: received, not yet sent to the ranks
    stopping.catch(signals)
    for rank in range(options.ranks):
        variables = {**common, "RANK": rank, "LOCAL_RANK": rank}
        try:
            ranks.append(subprocess.Popen(options.command, start_new_session=True,  # a terminal's signals arrive once
                                          env={**os.environ, **{k: str(v) for k, v in variables.items()}}))
        except OSError as error:
            parser.error(f"cannot run {options.command[0]}: {error.strerror}")

    failed, deadline, interrupts = None, None, 0
    while any(r.poll() is None for r in ranks):
        time.sleep(0.05)
        while signals:
            signum = signals.pop(0)
            interrupts += signum == signal.SIGINT
            for r in ranks:
                r.send_signal(signum if interrupts < 2 else signal.SIGKILL)
        if failed is None:
            failed = next((i for i, r in enumerate(ranks) if r.returncode), None)
            if failed is not None:
                deadline = time.monotonic() + GRACE
        elif time.monotonic() > deadline:
            for r in ranks:
                if r.poll() is None:
                    r.kill()
    if failed is None:
        failed = next((i for i, r in enumerate(ranks) if r.returncode), None)
    if failed is None:
        return 0
    status = ranks[failed].returncode
    if status == -signal.SIGINT:  # end by the same signal, so that a shell's loop stops
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    print(f"{sys.argv[0]}: rank {failed} (pid {ranks[failed].pid}) {describe(status)}", file=sys.stderr)
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
