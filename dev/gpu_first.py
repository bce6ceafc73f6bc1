#!/usr/bin/env python3
"""The first hour on a GPU, in stages that can be started one by one:  make gpu-first STAGES="a b"

    a   1 minute     what works: a launch, a graph, each kind of product, ...: a table of yes and no
    b   3 minutes    correctness: every test, Hopper's kernels last; 12 steps run in eleven ways, with the same bits
    c   2 minutes    ten steps of GPT-2 124M beside PyTorch, from the same weights and tokens
    d   15 minutes   the time of steps, attention and kernels, with each switch and beside PyTorch; ncu's counters
    e   seconds      the report: each figure beside its limit, what falls furthest short first
    s   8 minutes    kernel tests under compute-sanitizer; only if named

Leaves three files in --out: rows.jsonl, a row for each check as it ends, log.txt, what the programs printed, and
report.md. A test has 60 seconds; one that hangs, or after which the GPU's error stays, is a row with its name, and the
others go on. A call ends after --seconds, of which the build is a part under make; the next one with the same --out
goes on behind it. The report is written after each stage. If a kernel of Hopper fails in a or b, the later stages run
with --kernels portable. Without PyTorch its rows are skipped by name. Exit status: 1 if a row of this GPU and commit is
bad.
"""
if __name__ == "__main__":
    from begin import startup

import os
import pathlib
import signal
import sys

import run_tests
from common.arguments import Parser, python_with_torch, whole
from first_hour.report import report
from first_hour.rows import BAD, Rows, fault_of_driver, machine_facts
from first_hour.running import Call
from first_hour.speed import speed
from first_hour.stages import SIZES, capabilities, correctness, parity, sanitizers

STAGES = {"a": capabilities, "b": correctness, "c": parity, "d": speed, "e": report, "s": sanitizers}


def parse():
    parser = Parser(__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="a b c d e s (default: a b c d e)")
    parser.add_argument("--build", default="build/cuda", help="folder of the programs (default build/cuda)")
    parser.add_argument("--out", default="build/gpu-first", type=pathlib.Path, help="(default build/gpu-first)")
    parser.add_argument("--seconds", type=whole(10, 10**6), default=520, help="limit of this call (default 520)")
    parser.add_argument("--began", type=whole(0), default=0, metavar="TIME",
                        help="seconds since 1970 at which the call began (default: now)")
    parser.add_argument("--size", choices=SIZES, default="full", help="toy: seconds on a CPU or a modelled GPU")
    parser.add_argument("--again", action="store_true", help="repeat rows that failed")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PREFIX,...",
                        help="stage b: only tests whose names begin with one of these")
    parser.add_argument("--limit", type=whole(1, 3600), default=run_tests.GPU_LIMIT,
                        help=f"seconds for a test (default {run_tests.GPU_LIMIT})")
    parser.add_argument("--jobs", type=whole(1, 64), default=8, help="processes of tests at a time (default 8)")
    parser.add_argument("--python", help="interpreter with PyTorch (default: the first that has it)")
    parser.add_argument("--plant", action="store_true", help="also run a kernel that hangs and one that fails")
    options = parser.parse_args()
    unknown = [stage for stage in options.stages if stage not in STAGES]
    if unknown:
        parser.error(f"{unknown[0]!r} is no stage; there are {' '.join(STAGES)}")
    if not (pathlib.Path(options.build) / "tests").exists():
        parser.error(f"{options.build} has no programs; build them with make gpu-first")
    options.build = str(pathlib.Path(options.build).resolve())
    options.python = options.python or python_with_torch() or sys.executable
    return options


def main():
    options = parse()
    os.environ.pop("TEON_TEST_LOG", None)  # of a test that runs this program: its children have logs of their own
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, run_tests.stop)
    facts = machine_facts(f"{options.build}/train_gpt2")
    if fault := fault_of_driver(facts):
        print(f"gpu_first.py: error: {fault}", file=sys.stderr)
        return 2
    rows = Rows(options.out, facts, options.again)
    call = Call(rows, options)
    call.close_in_time()
    print(rows.facts, flush=True)
    for stage in options.stages or "abcde":
        if stage != "e":
            STAGES[stage](call)
        report(call)  # now, because whoever limits this process may end it in the next stage
    open_stages = " (its time ended; call it again to go on)" if rows.closed else ""
    bad = [row for row in rows.mine() if row["outcome"] in BAD]
    print(f"{len(rows.mine())} rows, {len(bad)} bad: {options.out}/report.md{open_stages}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
