"""Runs training programs in parallel. A Ctrl-C lets them save before they end."""

import dataclasses
import os
import signal
import subprocess
import tempfile
import time

from common.startup import complain as say
from common.stopping import SIGNALS, catch

from experiments import Fault

LOOK = 0.1    # seconds between checks of the programs
DRAW = 1.0    # seconds between updates of the display
# The exit statuses of a program that one of these signals has ended.
INTERRUPTED = tuple(status for number in SIGNALS for status in (-number, 128 + number))


@dataclasses.dataclass
class Program:
    """A running command, in its own session, so that it gets the terminal's signals only from this process."""
    key: object
    slot: int
    process: subprocess.Popen
    errors: object  # the file of its standard error
    began: float

    def send(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


def start(key, slot, words, environment):
    errors = tempfile.TemporaryFile()
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                                   start_new_session=True, env={**os.environ, **environment})
    except OSError as error:
        raise Fault(f"cannot run {words[0]}: {error.strerror}") from None
    return Program(key, slot, process, errors, time.monotonic())


def run_all(todo, jobs=1, show=lambda running: None, environments=({},)):
    """Runs the programs of `todo`, pairs of a key and a command's words, at most `jobs` at a time. Yields each program
    after its end, with its exit status and its standard error.

    Calls `show(running)` about once per second. A program in slot n of the `jobs` slots gets
    environments[n % len(environments)].

    After one of SIGNALS the programs get the same signal, save and end; a second SIGINT (Ctrl-C) kills them. Schedulers
    repeat the others. Then raises KeyboardInterrupt, also if another process has interrupted a program.
    """
    todo, running, slots, told, drawn = iter(todo), [], list(range(jobs)), False, -DRAW
    signals = []  # received ones
    before = catch(signals)
    try:
        while True:
            while slots and not signals and (task := next(todo, None)):
                slot = slots.pop(0)
                running.append(start(task[0], slot, task[1], environments[slot % len(environments)]))
            if not running:
                break
            if signals and not told:
                told = True
                again = " again" if signals[0] == signal.SIGINT else " twice"
                say(f"{len(running)} running: they save, then end; Ctrl-C{again} kills them")
                for program in running:
                    program.send(signals[0])
            if signals.count(signal.SIGINT) > 1:
                for program in running:
                    program.send(signal.SIGKILL)
            for program in [p for p in running if p.process.poll() is not None]:
                running.remove(program)
                slots.append(program.slot)
                status = program.process.returncode
                if status in INTERRUPTED and not signals:  # another process sent the signal: all programs end
                    signals.append(signal.SIGINT)
                program.errors.seek(0)
                yield program, status, program.errors.read().decode(errors="replace")
            if time.monotonic() - drawn >= DRAW:
                show(running)
                drawn = time.monotonic()
            if running:
                time.sleep(LOOK)
    finally:
        for program in running:  # after an exception
            program.send(signal.SIGINT)
        for program in running:
            program.process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise KeyboardInterrupt
