"""Ctrl-C and SIGTERM. Python raises a signal's exception wherever it is, and loses it inside of a destructor, a
callback or a fork; the loop of prepare.py therefore asks for signals too."""

import contextlib
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
received = []  # numbers of signals


def raise_received(number=None, _=None):
    """Raises the exception of the first signal so far; a signal's handler calls it with the signal's number."""
    if number:
        received.append(number)
    if received:
        raise KeyboardInterrupt if received[0] == signal.SIGINT else SystemExit(128 + received[0])


def handle():
    received.clear()
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, raise_received)


@contextlib.contextmanager
def held():
    """Delays the signals to the end of the block, and in processes that are forked in it until they release them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent():
    """For a worker: the parent receives a terminal's Ctrl-C and ends its workers. Call it in a process that was forked
    while signals were held."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
