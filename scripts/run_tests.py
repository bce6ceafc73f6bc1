#!/usr/bin/env python3
"""Runs test programs and Python tests in parallel and prints as the last line: N passed, N failed, N skipped.

    scripts/run_tests.py build/cpu/tests                                all test cases of the program
    scripts/run_tests.py build/cpu/tests --only kernels,runtime         test cases with these prefixes
    scripts/run_tests.py build/cpu/tests test/scripts/test_corpus.py    and a unittest file
    scripts/run_tests.py test/programs/test_train.py -k terminal        its tests with this word in their names
    scripts/run_tests.py build/cuda/tests --wrap "compute-sanitizer --error-exitcode 9"

Test cases are named "folder/file: statement"; those of one file run in one process. Each process writes its results to
the file TEON_TEST_LOG (test/support/main.cpp; `unittest_main` below), so a crash counts as a failure of the test case
that was running, and the others still run. TEON_BUILD is the tests' build folder. Exit status: 0 if nothing failed,
else 1.
"""
if __name__ == "__main__":
    import startup

    startup.begin()
    import use_venv  # noqa: F401

import collections
import concurrent.futures
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from arguments import Parser, whole

Result = collections.namedtuple("Result", "name outcome detail")  # outcome: passed, failed, skipped
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


def read_log(path):
    """Returns a process's results, and the test case that was running when the process ended (or None)."""
    running, results = None, []
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            outcome, name, detail = (line.rstrip("\n").split("\t", 2) + ["", ""])[:3]
            if outcome == "started":
                running = name
            else:
                results.append(Result(name, outcome, detail))
                running = None
    return results, running


def wait(process, log, timeout):
    """Returns the process's exit status, or None if it was killed after logging nothing for `timeout` seconds."""
    while (left := timeout - (time.time() - os.path.getmtime(log))) > 0:
        try:
            return process.wait(left)
        except subprocess.TimeoutExpired:
            pass
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None


def run_process(command, timeout):
    """Runs one process; returns (results, the test case in which it died or None, output, how it ended)."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        open(log, "w").close()
        with open(os.path.join(folder, "output"), "w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env={**os.environ, "TEON_TEST_LOG": log}, start_new_session=True)
            RUNNING.add(process)
            status = wait(process, log, timeout)
            end = f"no result for {timeout} s" if status is None else f"exit status {status}" if status else ""
            if status and status < 0:
                end = f"killed by {signal.Signals(-status).name}"
            RUNNING.discard(process)
            output.seek(0)
            return (*read_log(log), output.read(), end)


def run_group(program, wrap, names, timeout):
    """Runs the test cases of one file; after a crash, continues with the remaining ones."""
    results, outputs, left = [], [], list(names)
    while left:
        with tempfile.NamedTemporaryFile("w", suffix=".names") as file:
            file.write("".join(re.sub(r'([\\[,"])', r"\\\1", name) + "\n" for name in left))
            file.flush()
            done, running, output, end = run_process([*wrap, program, "--input-file", file.name], timeout)
        if running or (end and not any(r.outcome == "failed" for r in done)):
            done.append(Result(running or left[0], "failed", end or "ended early"))
        elif not done:
            done.append(Result(left[0], "failed", "did not run"))
        results += done
        outputs.append(output)
        ran = {r.name for r in done}
        left = [name for name in left if name not in ran]
    return results, "".join(outputs)


def run_python(path, word, timeout):
    if not os.path.isfile(path):
        return [Result(path, "failed", "no such file")], ""
    done, running, output, end = run_process([sys.executable, __file__, "--unittest", path, word], timeout)
    if running or (end and not any(r.outcome == "failed" for r in done)):
        done.append(Result(running or path, "failed", end))
    if not done and not word:
        done.append(Result(path, "failed", "no test in it"))
    return done, output


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
    parser.add_argument("--timeout", type=whole(1, 10**6), default=900, metavar="SECONDS",
                        help="limit for one test (default: 900)")
    options = parser.parse_args()
    prefixes = tuple(options.only.split(",")) if options.only else ("",)

    os.environ.setdefault("TEON_BUILD",
                          next((os.path.dirname(t) for t in options.tests if not t.endswith(".py")), "build/cpu"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    groups, results = {}, []  # groups: (program, file of the test cases) -> how to run them
    for tests in options.tests:
        if tests.endswith(".py"):
            groups[tests, tests] = (run_python, tests, options.word, options.timeout)
            continue
        by_file, listed = collections.defaultdict(list), list_tests(tests)
        if not listed:
            results.append(Result(tests, "failed", "lists no test case; it cannot run here, or has none"))
        for name in listed:
            if name.startswith(prefixes):
                by_file[name.split(":")[0]].append(name)
        for file, names in by_file.items():
            groups[tests, file] = (run_group, tests, shlex.split(options.wrap), names, options.timeout)

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
