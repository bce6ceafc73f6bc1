"""Runs programs under limits: a program that hangs is killed with all its children and becomes a row with its name."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import threading
import time

import run_tests

PAUSE = 0.05


def seconds_left(seconds, build):
    """What a call of `seconds` has left after a build of `build` seconds; all of it if the build outlasted the call,
    because then nobody ends calls after so long."""
    return seconds - build if 0 <= build <= seconds - 60 else seconds


class Call:
    """One call of gpu_first.py: its rows, its options and its time."""

    def __init__(self, rows, options):
        self.rows, self.options = rows, options
        self.end = time.monotonic() + seconds_left(options.seconds, options.began and time.time() - options.began)

    def left(self):
        return self.end - time.monotonic()

    def program(self, name):
        return os.path.join(self.options.build, name)

    def close(self):
        with self.rows.lock:
            self.rows.closed = True
        run_tests.ENDING.set()
        for process in list(run_tests.RUNNING):
            kill(process)

    def close_in_time(self):
        """Ends whatever still runs when this call's time is over, so that its rows stay open for the next call."""
        timer = threading.Timer(max(0.0, self.left()), self.close)
        timer.daemon = True
        timer.start()


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(call, name, words, limit, env=None):
    """Runs a command for at most `limit` seconds. Its output goes to the log as it is written. Returns (outcome,
    seconds, output, the last line)."""
    log = call.rows.folder / "log.txt"
    words = [str(word) for word in words]
    call.rows.write_log(f"\n== {name}: {' '.join(words)}\n")
    begin = log.stat().st_size
    start = time.monotonic()
    try:
        process = subprocess.Popen(words, stdout=call.rows.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True, env={**os.environ, **(env or {})})
    except OSError as error:
        return "failed", 0.0, "", f"{words[0]}: {error.strerror}"
    run_tests.RUNNING.add(process)
    while process.poll() is None and time.monotonic() - start < limit:
        time.sleep(PAUSE)
    hangs = process.poll() is None
    if hangs and call.left() < 2:
        call.close()
    if hangs:
        kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    run_tests.RUNNING.discard(process)
    with open(log, "rb") as file:
        file.seek(begin)
        output = file.read().decode(errors="replace")
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
    seconds = time.monotonic() - start
    if hangs:
        return "hang", seconds, output, f"no end within {limit:.0f} s; its last line: {last}"
    return ("failed" if process.returncode else "passed"), seconds, output, last


def outcome_of(result):
    """(outcome, detail) of a result of run_tests."""
    if result.outcome != "failed":
        return result.outcome, "" if result.outcome == "passed" else result.detail
    if result.detail.startswith(run_tests.NO_RESULT):
        return "hang", result.detail
    if result.detail.startswith(run_tests.GPU_ERROR_STAYS):
        return "error stays", result.detail
    return "failed", "" if is_number(result.detail) else result.detail


def timed_outcome(result):
    """(outcome, seconds, detail) of a result of run_tests."""
    outcome, detail = outcome_of(result)
    return outcome, float(result.detail) if is_number(result.detail) else 0.0, detail


def is_number(text):
    return text.replace(".", "").isdigit()


def run_named(call, stage, program, groups, jobs, limit, add=None, wrap=()):
    """Runs named test cases, or operations of a benchmark with the same protocol: a process for each group, `jobs` at a
    time. add(result): adds the row of a result (default: its outcome and seconds)."""
    def add_test(result):
        call.rows.add(stage, result.name, *timed_outcome(result))

    def run_one(names):
        failed, output = run_tests.run_group(program, list(wrap), names, limit, add or add_test)
        if any(r.outcome == "failed" for r in failed):
            call.rows.write_log(f"\n== {stage}: {names[0]}, ...\n{output}\n")

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_one, [names for names in groups if names]))
