#!/usr/bin/env python3
"""Runs test programs and Python tests in parallel and prints as the last line: N passed, N failed, N skipped.

    dev/run_tests.py build/cpu/tests                                all test cases of the program
    dev/run_tests.py build/cpu/tests --only kernels,runtime         test cases with these prefixes
    dev/run_tests.py build/cpu/tests test/dev/test_corpus.py    and a unittest file
    dev/run_tests.py test/programs/test_train.py -k terminal        its tests with this word in their names
    dev/run_tests.py build/cuda/tests --wrap "compute-sanitizer --error-exitcode 9"

Test cases are named "folder/file: statement"; those of one file run in one process. Each process writes its results to
the file TEON_TEST_LOG (test/support/main.cpp; `unittest_main` below). A test case that crashes, hangs, or leaves the
GPU in an error that every later call would repeat, counts as failed by its name, and another process runs the others.
TEON_BUILD is the tests' build folder. Exit status: 0 if nothing failed, else 1.
"""
if __name__ == "__main__":
    from begin import startup
    from common import use_venv  # noqa: F401

import collections
import concurrent.futures
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from common.arguments import Parser, whole

Result = collections.namedtuple("Result", "name outcome detail")  # outcome: passed, failed, skipped
NO_RESULT = "no result"  # how the detail of a test that hangs begins; that of a lasting error is main.cpp's
GPU_ERROR_STAYS = "the GPU's error stays"
GPU_LIMIT = 60  # seconds for a test case on a GPU
ENDING = threading.Event()  # set: no further process is started
RUNNING = set()  # each in its own session, so that all of its child processes can be killed


def list_tests(program):
    """Returns the names of the test cases in a program that uses Catch2 version 2 or 3."""
    if not os.path.isfile(program):
        sys.exit(f"run_tests: error: {program}: no such program; build it with make {program}")

    def output(*arguments):
        return subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, timeout=60).stdout

    if "version: 2" in " ".join(output("--libidentify").split()):
        return output("--list-test-names-only").splitlines()
    return output("--list-tests", "--verbosity", "quiet").splitlines()


class Log:
    """The file to which a test process writes its results. Passes each new result to `report`."""

    def __init__(self, path, report):
        open(path, "w").close()
        self.file, self.report = open(path, encoding="utf-8", errors="replace"), report
        self.results, self.running = [], None  # the test case that has started and not ended
        self.rest, self.time = "", time.monotonic()

    def read(self):
        text = self.file.read()
        if text:
            self.time = time.monotonic()
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            outcome, name, detail = (line.split("\t", 2) + ["", ""])[:3]
            self.running = name if outcome == "started" else None
            if outcome != "started":
                self.add(Result(name, outcome, detail))

    def add(self, result):
        self.results.append(result)
        self.report(result)


def wait(process, log, timeout):
    """Returns the process's exit status, or None if it was killed after logging nothing for `timeout` seconds."""
    pause = 0.002
    while time.monotonic() - log.time < timeout:
        try:
            return process.wait(pause)
        except subprocess.TimeoutExpired:
            log.read()
            pause = min(2 * pause, 0.1)
    os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)  # the driver may keep a process whose kernel does not end
    return None


def run_process(command, timeout, report):
    """Runs one process; returns (its log, output, how it ended)."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "log")
        log = Log(path, report)
        with log.file, open(os.path.join(folder, "output"), "w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env={**os.environ, "TEON_TEST_LOG": path}, start_new_session=True)
            RUNNING.add(process)
            status = wait(process, log, timeout)
            end = f"{NO_RESULT} for {timeout} s" if status is None else f"exit status {status}" if status else ""
            if status and status < 0:
                end = f"killed by {signal.Signals(-status).name}"
            RUNNING.discard(process)
            log.read()
            output.seek(0)
            return log, output.read(), end


def run_group(program, wrap, names, timeout, report=lambda result: None):
    """Runs the test cases of one file; after a crash, a hang or a lasting error of the GPU, continues with the
    remaining ones in another process. `report` gets each result at once."""
    results, outputs, left = [], [], list(names)
    while left and not ENDING.is_set():
        with tempfile.NamedTemporaryFile("w", suffix=".names") as file:
            file.write("".join(re.sub(r'([\\[,"])', r"\\\1", name) + "\n" for name in left))
            file.flush()
            log, output, end = run_process([*wrap, program, "--input-file", file.name], timeout, report)
        if log.running or (end and not any(r.outcome == "failed" for r in log.results)):
            log.add(Result(log.running or left[0], "failed", end or "ended early"))
        elif not log.results:
            log.add(Result(left[0], "failed", "did not run"))
        results += log.results
        outputs.append(output)
        ran = {r.name for r in log.results}
        left = [name for name in left if name not in ran]
    return results, "".join(outputs)


def run_python(path, word, timeout, report=lambda result: None):
    if not os.path.isfile(path):
        return [Result(path, "failed", "no such file")], ""
    log, output, end = run_process([sys.executable, __file__, "--unittest", path, word], timeout, report)
    if log.running or (end and not any(r.outcome == "failed" for r in log.results)):
        log.add(Result(log.running or path, "failed", end))
    if not log.results and not word:
        log.add(Result(path, "failed", "no test in it"))
    return log.results, output


def unittest_main(path, word):
    """Runs one unittest file; the main function of a child process."""
    log = open(os.environ["TEON_TEST_LOG"], "w", encoding="utf-8")
    folder, file = os.path.split(path)
    module = file.removesuffix(".py")

    class Reporter(unittest.TextTestResult):
        def name(self, test):
            return f"{path}: {test.id().removeprefix(module + '.')}"

        def write(self, outcome, test, detail=""):
            print(outcome, self.name(test), " ".join(str(detail).split()), sep="\t", file=log, flush=True)

        def startTest(self, test):
            super().startTest(test)
            self.before, self.skip, self.start = len(self.failures + self.errors), None, time.monotonic()
            self.write("started", test)

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self.skip = reason
            if isinstance(test, unittest.suite._ErrorHolder):  # a whole class, before any of its tests started
                self.write("skipped", test, reason)

        def addError(self, test, error):
            super().addError(test, error)
            if isinstance(test, unittest.suite._ErrorHolder):
                self.write("failed", test, error[1])

        def stopTest(self, test):
            super().stopTest(test)
            if len(self.failures + self.errors) > self.before or test in self.unexpectedSuccesses:
                self.write("failed", test)
            elif self.skip is not None:
                self.write("skipped", test, self.skip)
            else:
                self.write("passed", test, f"{time.monotonic() - self.start:.6f}")

    sys.path.insert(0, os.path.abspath("test/support"))
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*"]
    suite = loader.discover(folder, file, top_level_dir=folder)
    return not unittest.TextTestRunner(resultclass=Reporter).run(suite).wasSuccessful()


def limit_of(program):
    """The default limit for one test case, in seconds."""
    return GPU_LIMIT if os.path.basename(os.path.dirname(os.path.abspath(program))) == "cuda" else 900


def stop(number, _):
    for process in list(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(128 + number)


def main():
    # A shell's background jobs ignore SIGINT, and nohup ignores SIGHUP. Test programs would inherit this; a handler
    # here gives them the default action.
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    parser = Parser(__doc__)
    parser.add_argument("tests", nargs="+", help="Catch2 programs and unittest files")
    parser.add_argument("--only", default="", metavar="PREFIX,...",
                        help="run only test cases whose names begin with one of these")
    parser.add_argument("-k", dest="word", default="", metavar="WORD",
                        help="run only tests of unittest files whose names contain this")
    parser.add_argument("--wrap", default="", metavar="COMMAND", help="run each program under this command")
    parser.add_argument("--jobs", type=whole(1, 4096), default=os.cpu_count(),
                        help="parallel processes (default: one per core)")
    parser.add_argument("--timeout", type=whole(1, 10**6), metavar="SECONDS",
                        help=f"limit for one test (default: 900; for a program in build/cuda {GPU_LIMIT})")
    options = parser.parse_args()
    prefixes = tuple(options.only.split(",")) if options.only else ("",)

    os.environ.setdefault("TEON_BUILD",
                          next((os.path.dirname(t) for t in options.tests if not t.endswith(".py")), "build/cpu"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    groups, results = {}, []  # groups: (program, file of the test cases) -> how to run them
    for tests in options.tests:
        if tests.endswith(".py"):
            groups[tests, tests] = (run_python, tests, options.word, options.timeout or 900)
            continue
        by_file, listed = collections.defaultdict(list), list_tests(tests)
        if not listed:
            results.append(Result(tests, "failed", "lists no test case; it cannot run here, or has none"))
        for name in listed:
            if name.startswith(prefixes):
                by_file[name.split(":")[0]].append(name)
        for file, names in by_file.items():
            limit = options.timeout or limit_of(tests)
            groups[tests, file] = (run_group, tests, shlex.split(options.wrap), names, limit)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        start = time.monotonic()
        futures = {pool.submit(*how): file for (_, file), how in groups.items()}
        for future in concurrent.futures.as_completed(futures):
            done, output = future.result()
            results += done
            failed = [r for r in done if r.outcome == "failed"]
            if failed:
                print(output)
            seconds = sum(float(r.detail) for r in done if r.outcome == "passed")
            print(f"  {'FAILED' if failed else 'ok':6} {len(done):4} tests {seconds:7.1f} s  {futures[future]}",
                  flush=True)

    of = {outcome: [r for r in results if r.outcome == outcome] for outcome in ("passed", "failed", "skipped")}
    for r in of["skipped"]:
        print(f"SKIPPED: {r.name}: {r.detail}")
    for r in of["failed"]:
        how = "" if r.detail.replace(".", "").isdigit() else r.detail  # a number: the test's seconds
        print(f"FAILED: {r.name}{how and ': ' + how}")
    if not results:
        print("FAILED: no test ran")
    print(f"  {time.monotonic() - start:.0f} s")
    print(f"{len(of['passed'])} passed, {len(of['failed']) + (not results)} failed, {len(of['skipped'])} skipped",
          flush=True)
    return 0 if results and not of["failed"] else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--unittest"]:
        sys.exit(startup.exit_code(lambda: unittest_main(*sys.argv[2:])))
    sys.exit(startup.exit_code(main))
