#!/usr/bin/env python3
"""Interrupts and damages training runs for a given time and prints a table of tries and failures (`make soak`).

    MINUTES=3 make soak
    python3 test/programs/soak.py --minutes 30 --fuzz build/cpu-asan/tests --markdown docs/checkpoints.md

Each part repeats its attack at other moments and with other inputs until its share of the time is over. One part per
core runs at a time. A try fails if it does not end as docs/checkpoints.md promises: with the bits of an undisturbed
run, or with one line of error, never with a crash. The programs are those in the folder TEON_BUILD (build/cpu). Exit
status: 0 if nothing failed, else 1; a part that cannot run here is skipped by name.
"""
import argparse
import concurrent.futures
import datetime
import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

TEST = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TEST / "support"), str(TEST / "scripts")]
import test_best
import test_failures
import test_interrupted
import test_rank_failures
import test_signals
import test_startup
import testing

# (description, share of the time on two cores, a generator of (number of tries, failure or None, total tries or None))
PARTS = []


def part(what, share):
    def add(generator):
        PARTS.append((what, share, generator))
        return generator
    return add


def prepared(test_class, method):
    """Returns a test case of the class with its folder set up, so that its helpers can be called."""
    test_class.setUpClass()
    case = test_class(method)
    case.setUp()
    return case


def outcome(attempt, *arguments):
    """Runs the attempt. Returns None, or the reason for its failure."""
    try:
        attempt(*arguments)
    except Exception:
        return f"{attempt.__name__}{arguments}\n{traceback.format_exc()}"


@part("SIGKILL at a random moment, with and without a window; resumed to the same bits", 0.2)
def kills(_):
    case = prepared(test_interrupted.InterruptedTest, "kill_and_resume")
    for seed in range(10**9):
        optimizer = ("adamw", "muon", "teon")[seed % 3]
        window = ["--window", 1 + seed % 16] if seed % 2 else []
        failed = outcome(lambda: case.kill_and_resume(optimizer, *window, kills=4, seed=str(seed)))
        yield 4, failed, None
        if failed:  # its runs are still there
            subprocess.run(["rm", "-rf", case.folder / "whole", case.folder / "killed"])


@part("SIGKILL of a run with --keep-best, also on disks that refuse links or to sync folders; "
      "resumed to the same bits, the best checkpoint kept", 0.15)
def best(_):
    case, rng = prepared(test_best.BestTest, "kill_and_keep_best"), random.Random(8)
    disks = [{}, case.refusing("symlink", errno.EPERM), case.refusing("symlink", errno.ENOTSUP),
             *(case.refusing("fsync_folder", code) for code in test_interrupted.InterruptedTest.NOT_SUPPORTED)]
    for _ in range(10**9):
        disk, window = rng.choice(disks), rng.choice([[], ["--window", rng.randrange(1, 17)]])
        failed = outcome(lambda: case.kill_and_keep_best(rng, *window, times=1, kills=4, **disk))
        yield 4, failed, None
        if failed:
            subprocess.run(["rm", "-rf", case.folder / "whole", case.folder / "killed"])


@part("What schedulers send, up to three signals in a second; right status.json and exit status (--exit-when-stopped), "
      "resumed after each to the same bits", 0.15)
def schedulers(_):
    case, rng = prepared(test_interrupted.InterruptedTest, "stop_again_and_again"), random.Random(9)
    for i in range(10**9):
        counted, flags = [], ["--keep-best"] * (i % 2) + ["--window", 5] * (i // 2 % 2)
        failed = outcome(lambda: counted.append(case.stop_again_and_again(rng, *flags)))
        yield counted[0] if counted else 1, failed, None
        subprocess.run(["rm", "-rf", case.folder / "whole", case.folder / "run"])


@part("SIGKILL of one of two or four ranks at a random moment; resumed to the same bits, the four on fewer ranks", 0.15)
def kills_of_ranks(_):
    for seed in range(10**9):
        case = prepared(test_rank_failures.Failures, "kill_and_resume")
        which = ((2,), (4, "gradients"), (4, "all"))[seed % 3]
        yield 3, outcome(case.kill_and_resume, 3, seed, *which), None
        case.doCleanups()


@part("Signals that stop a run while the stack pointer is outside the stack, one or two ranks; "
      "saved, right exit status", 0.15)
def signals(_):
    case, rng = prepared(test_signals.Signals, "stop_by_signal"), random.Random(1)
    several = testing.missing_for_ranks() is None
    for i in range(10**9):
        number = rng.choice(list(test_signals.ENDINGS))
        attempt = case.stop_one_of_two_ranks if several and i % 4 == 3 else case.stop_by_signal
        yield 1, outcome(attempt, number, rng.randrange(3000), f"soak-{i}"), None
        subprocess.run(["rm", "-rf", case.folder / f"soak-{i}"])


@part("SIGPROF of a profiler while the stack pointer is outside the stack; the same bits", 0.05)
def profiles(_):
    case = prepared(test_signals.Signals, "profile")
    for i in range(10**9):
        counted = []
        failed = outcome(lambda: counted.append(case.profile(f"soak-{i}", 100)))
        yield counted[0] if counted else 1, failed, None
        subprocess.run(["rm", "-rf", case.folder / f"soak-{i}"])


@part("One file operation fails (EIO, ENOSPC once or from then on, half done, SIGKILL); resumed to the same bits", 0.6)
def faults(_):
    case = prepared(test_interrupted.InterruptedTest, "survive_fault")
    tries = [(resumes, at, how, code) for resumes, count in case.prepare_faults().items() for at in range(count)
             for how, code in case.FAULTS]
    random.Random(2).shuffle(tries)
    for arguments in tries:
        yield 1, outcome(case.survive_fault, *arguments), len(tries)


@part("A limit of file sizes (ulimit -f) or of address space (ulimit -v); one line, the last checkpoint whole, "
      "continued without the limit to the same bits", 0.1)
def limits(_):
    case, rng = prepared(test_failures.Failures, "limit_files"), random.Random(3)
    for i in range(10**9):
        if i % 2:
            yield 1, outcome(case.limit_files, rng.randrange(1, 500), f"soak-{i}"), None
        else:
            yield 1, outcome(case.limit_address_space, rng.randrange(60, 800), f"soak-{i}"), None
        subprocess.run(["rm", "-rf", case.folder / f"soak-{i}"])


@part("Standard input, output and error closed or full, programs and scripts; the documented status", 0.1)
def streams(_):
    case, rng = prepared(test_failures.Failures, "misuse_streams"), random.Random(4)
    for _ in range(10**9):
        yield 1, outcome(case.misuse_streams, rng), None
        subprocess.run(["rm", "-rf", *case.folder.glob("streams-*")])


@part("A device, pipe, folder or link in the place of a run's file; refused by name, what was there stays", 0.05)
def places(_):
    case, rng = prepared(test_failures.Failures, "replace_file"), random.Random(5)
    for _ in range(10**9):
        name = rng.choice(["config.json", "metrics.jsonl", "lock"])
        yield 1, outcome(case.replace_file, name, rng), None
        subprocess.run(["rm", "-rf", *case.folder.glob("replaced-*")])


@part("Ctrl-C in the first second of each script, signals while prepare.py's workers start; a line, never lost", 0.1)
def first_seconds(_):
    rng = random.Random(6)
    startup, prepare = prepared(test_startup.StartupTest, "check_interrupt"), None
    if not testing.missing("numpy", "pyarrow", "tqdm"):
        import test_prepare_odd
        prepare = prepared(test_prepare_odd.OddTest, "stop_while_workers_start")
        prepare.write_many()
    names = test_startup.programs()
    for i in range(10**9):
        if prepare and i % 8 == 0:
            number, delay = rng.choice([signal.SIGINT, signal.SIGTERM]), rng.uniform(0, 0.15)
            yield 1, outcome(prepare.stop_while_workers_start, number, delay), None
            subprocess.run(["rm", "-rf", *prepare.folder.glob("stopped-*")])
        else:
            yield 1, outcome(startup.check_interrupt, rng.choice(names), rng.uniform(0.01, 0.6), "--help"), None


@part("Token ids of a tokenizer around and beyond what the engine reads; refused by name or written", 0.05)
def token_ids(_):
    if absent := testing.missing("numpy", "pyarrow", "tqdm", "tokenizers"):
        raise unittest.SkipTest(f"needs {', '.join(absent)}")
    import test_prepare_odd
    case, rng = prepared(test_prepare_odd.OddTest, "refuse_ids"), random.Random(7)
    for i in range(10**9):
        top = rng.choice([rng.randrange(3, 10**5), rng.randrange(2**22 - 2, 2**22 + 2), rng.randrange(2**22, 2**32)])
        yield 1, outcome(case.refuse_ids, (0, 1, 2, top), i), None
        subprocess.run(["rm", "-rf", *case.folder.glob(f"ids-{i}*")])


@part("Damaged checkpoints, weights, JSON, TOML, tokenizers, shards, command lines, control groups; "
      "refused in one line or read", 0.15)
def fuzz(options):
    for seed in range(1, 10**9):
        with tempfile.TemporaryDirectory() as folder:
            count = pathlib.Path(folder) / "count"
            result = testing.Case().call(os.path.abspath(options.fuzz), "*(fuzz)", expect=None, timeout=None,
                                         TEON_FUZZ_SEED=seed, TEON_FUZZ_COUNT=count)
            tries = sum(map(int, count.read_text().split())) if count.exists() else 1
        failed = f"TEON_FUZZ_SEED={seed}\n{result.stdout[-4000:]}{result.stderr[-4000:]}" if result.returncode else None
        yield tries, failed, None


class Row:
    """Runs one part and holds its result."""

    def __init__(self, what, generator, options, seconds):
        self.what, self.tries, self.failures, self.all, self.skipped = what, 0, 0, None, ""
        deadline = time.monotonic() + seconds
        try:
            for tries, failed, self.all in generator(options):
                self.tries += tries
                if failed:
                    self.failures += 1
                    print(f"FAILED: {what}: {failed}", flush=True)
                if time.monotonic() > deadline:
                    break
        except unittest.SkipTest as reason:
            self.skipped = str(reason)
        except Exception:
            self.tries, self.failures = self.tries + 1, self.failures + 1
            print(f"FAILED: {what}: {traceback.format_exc()}", flush=True)

    def cells(self):
        tries = f"{self.tries:,}" + (f" of {self.all:,}" if self.all and self.tries < self.all else "")
        return (self.what, *(("skipped", self.skipped) if self.skipped else (tries, f"{self.failures:,}")))


def stop(number, _):
    """Kills all processes that this one has started, and ends this one."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has ended
            continue
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    for pid in mine - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)
    os._exit(128 + number)


def machine():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core{'s' * (cores > 1)} of {names[0] if names else 'a CPU'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--fuzz", default="build/cpu-asan/tests", metavar="PROGRAM",
                        help="the test program that reads damaged files (default: build/cpu-asan/tests)")
    parser.add_argument("--markdown", metavar="FILE", help="write the table there, too, with the date and the machine")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # otherwise programs inherit ignored signals
        signal.signal(number, stop)
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    begin = time.monotonic()
    jobs = min(len(os.sched_getaffinity(0)), len(PARTS))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {}
        for what, share, generator in sorted(PARTS, key=lambda p: -p[1]):
            seconds = 60 * options.minutes * min(1, share * jobs / 2)
            futures[what] = pool.submit(Row, what, generator, options, seconds)
        rows = [futures[what].result() for what, _, _ in PARTS]
    minutes = (time.monotonic() - begin) / 60
    table = [("what", "tries", "failures"), *(row.cells() for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(3)]
    for row in table:
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}")
    failures = sum(row.failures for row in rows)
    print(f"{minutes:.0f} minutes, {failures} failures")
    if options.markdown:
        version = subprocess.run([testing.BUILD / "train_gpt2", "--version"], capture_output=True, text=True).stdout
        lines = ["| " + " | ".join(row) + " |" for row in table]
        lines.insert(1, "|---|---:|---:|")
        head = f"{datetime.date.today()}, version {version.strip()}, {minutes:.0f} minutes on {machine()}: "
        write_markdown(options.markdown, head + f"{failures} failures.\n\n" + "\n".join(lines) + "\n")
    return 1 if failures else 0


def write_markdown(path, text):
    """Replaces the text under the last heading, or makes the file."""
    path = pathlib.Path(path)
    before = path.read_text() if path.exists() else "# Soak\n\n## Result\n"
    heading = before.rindex("## Result\n") + len("## Result\n")
    path.write_text(before[:heading] + "\n" + text)


if __name__ == "__main__":
    sys.exit(main())
