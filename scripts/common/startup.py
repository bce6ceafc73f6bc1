"""The first and the last moment of every script:

    if __name__ == "__main__":
        from common import startup

        startup.begin()
    ...
    if __name__ == "__main__":
        sys.exit(startup.exit_code(main))

Import it before all other modules, and only in the main program. From then on Ctrl-C ends the script with one line,
also during slow imports and at the end, when Python itself would print a traceback. Characters that the output's
encoding lacks are printed as escapes. A closed standard stream gets a descriptor that cannot be written, so that no
file of the script gets its number.
"""

import _signal as signal  # built in: the module signal first imports others, during which a Ctrl-C would be a traceback
import os
import sys

MOST_IN_WORD, MOST_IN_TEXT = 400, 2000  # characters


def without_middle(text, most):
    return text if len(text) <= most else f"{text[:most * 2 // 3]}...{text[-(most // 4):]}"


def printable(text):
    """Returns the text as one line that cannot control a terminal: control characters become escapes such as \\x1b, and
    very long names, which may come from hostile files, lose their middle."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return without_middle(" ".join(without_middle(word, MOST_IN_WORD) for word in line.split(" ")), MOST_IN_TEXT)


def program():
    return os.path.basename(sys.argv[0])


def complain(text, name=None):
    """Prints a line on standard error, after the program's name."""
    _print_error(printable(f"{name or program()}: {text}"))


def _print_error(text):
    """If standard error is full or closed, nobody is left to tell; the exit status stays."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        pass
    except OSError:
        _discard(sys.stderr)


def text_of_error(error):
    """Returns an OSError's file and reason in one line."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _end_by_interrupt(number, _):
    complain("stopped")
    signal.signal(number, signal.SIG_DFL)  # so that a shell ends its loop too
    os.kill(os.getpid(), number)


def _set_interrupt(handler):
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # nohup, a shell's background job
        signal.signal(signal.SIGINT, handler)


def _open_closed_streams():
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the smallest number that is free
            if descriptor > 0:
                setattr(sys, name, open(descriptor, "w", closefd=False))


def _finish_output(status):
    """Writes what is still buffered. Returns the exit status: 0 if nobody reads it (`| head`), 1 if it is full."""
    try:
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        status = 0
    except OSError as error:
        complain(f"error: standard output cannot be written: {error.strerror}")
        status = 1
    _discard(sys.stdout)
    return status


def _discard(stream):
    """Lets Python write the rest of a full stream to nowhere when it ends; otherwise the exit status would be 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_code(main, faults=None, stopped="stopped", name=None):
    """Runs a script's main() and returns its exit status. An exception of `faults`, {class: exit status}, an OSError
    (1) or a MemoryError (1) is printed as one line; Ctrl-C (130) as the line `stopped`. The lines begin with
    the program's `name`."""
    before = signal.getsignal(signal.SIGINT)
    _set_interrupt(signal.default_int_handler)
    try:
        status = main()
        _set_interrupt(before)  # here, so that a Ctrl-C after main() is a line too
    except SystemExit as end:  # of sys.exit() and argparse
        status = end.code
        if isinstance(status, str):
            _print_error(status)
            status = 1
    except KeyboardInterrupt:
        complain(stopped, name)
        status = 130
    except BrokenPipeError:
        status = 0
    except MemoryError:
        complain("error: out of memory", name)
        status = 1
    except tuple(faults or ()) as fault:
        complain(f"error: {fault}", name)
        status = next(status for kind, status in faults.items() if isinstance(fault, kind))
    except OSError as error:
        complain(f"error: {text_of_error(error)}", name)
        status = 1
    _set_interrupt(before)
    return _finish_output(status)


def begin():
    if sys.argv[0] not in sys.orig_argv:  # a test runs the file within its own process
        return
    _set_interrupt(_end_by_interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # use_venv blocks it while Python starts again
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")

