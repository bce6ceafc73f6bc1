#!/usr/bin/env python3
"""Compares what `make bench` printed with what it printed before on the same machine:

    python3 bench/compare_output.py build/bench.txt

bench/measured/ has a file for each machine, named after its CPU and the number of its cores. Names each row that is
more than 10% slower now. Machines drift: run the row's program again before you look for the cause. To keep a new
output, copy it over the file.
"""

if __name__ == "__main__":
    from begin import startup

import os
import pathlib
import re
import sys

from common.arguments import Parser

MEASURED = pathlib.Path(__file__).resolve().parent / "measured"
ALLOWED = 0.1
# Headers of columns that are compared, and whether more is better. Of a table with rates by processor time, which other
# work on the machine distorts less, only these.
PROCESSOR = {"of a core": True, "Mtokens/s/core": True, "G elements": True, "cpu s/step": False}
CLOCK = {"GFLOP/s": True, "tokens/s": True, "ms": False, "ms/step": False}
OTHERS = ("median us", "of it optimizer")  # measured, too, so a row's name ends before them


def columns_of(line):
    """Returns {header: its right end} of the measured columns if the line heads a table: it has no numbers."""
    if re.search(r"(?<!\S)\d", line):
        return {}
    matches = {header: re.search(rf"(?<!\S){re.escape(header)}(?!\S)", line)
               for header in (*PROCESSOR, *CLOCK, *OTHERS)}
    return {header: match.end() for header, match in matches.items() if match}


def number_ending_at(line, end):
    """Returns (number, its beginning) if a number's last digit is at `end`, else None."""
    match = re.search(r"(?<!\S)\d+(?:\.\d+)?$", line[:end])
    return (float(match.group()), match.start()) if match and line[end:end + 1] in ("", " ") else None


def rows_of(text):
    """Returns {(program, table, row, header): number} of the tables that benchmarks printed."""
    rows, columns, program, title, table = {}, {}, "", "", ""
    for line in map(str.rstrip, text.splitlines()):
        if re.fullmatch(r"\S+/bench_\w+(\.py)?", line):
            program, title, columns = os.path.basename(line), "", {}
        elif headers := columns_of(line):
            columns, table = headers, title
        else:
            numbers = {header: number_ending_at(line, end) for header, end in columns.items()}
            if columns and all(numbers.values()):
                key = " ".join(line[:min(begin for _, begin in numbers.values())].split())
                for header in PROCESSOR.keys() & numbers.keys() or CLOCK.keys() & numbers.keys():
                    rows[program, table, key, header] = numbers[header][0]
            else:
                title = re.sub(r", load [\d.]+", "", line)
    return rows


def slower(before, now):
    """Returns a line for each row of both that is slower now by more than ALLOWED."""
    lines = []
    for key in before.keys() & now.keys():
        more_is_better = (PROCESSOR | CLOCK)[key[3]]
        ratio = now[key] / before[key] if more_is_better else before[key] / now[key]
        if ratio < 1 - ALLOWED:
            lines.append(f"{key[0]}: {key[1]}: {key[2]}: {now[key]:g} {key[3]}, {before[key]:g} before")
    return sorted(lines)


def machine():
    """Returns the name of this machine's file: its CPU, which a name alone may not tell, and its number of cores."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    words = {key: re.search(rf"^{key}\s*: (.*)", text, re.MULTILINE) for key in ("model name", "cpu family", "model")}
    model = "-".join(f"{key}-{match[1]}" if key != "model name" else match[1] for key, match in words.items() if match)
    return re.sub(r"\W+", "-", f"{model or os.uname().machine} {os.cpu_count()} cores").strip("-").lower()


def main():
    parser = Parser(__doc__)
    parser.add_argument("output", type=pathlib.Path, help="what make bench printed")
    output, stored = parser.parse_args().output, MEASURED / f"{machine()}.txt"
    if not stored.exists():
        print(f"bench: nothing to compare with: copy {output} to {os.path.relpath(stored)} to keep it")
        return 0
    before, now = (rows_of(path.read_text(encoding="utf-8")) for path in (stored, output))
    lines = slower(before, now)
    for line in lines:
        print(f"slower: {line}")
    print(f"bench: {len(before.keys() & now.keys())} rows compared with {os.path.relpath(stored)}, {len(lines)} slower")
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
