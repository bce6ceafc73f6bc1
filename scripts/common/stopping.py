"""The signals that let a training program save and end (train/stop.h), for scripts that start such programs."""

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


def catch(received):
    """Appends the signals to the list `received` from now on, except those that the script was started to ignore
    (nohup). Returns {signal: its handler before}."""
    return {number: signal.signal(number, lambda number, _: received.append(number)) for number in SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN}
