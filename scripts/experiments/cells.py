"""Cells of a grid: training runs, each in a folder that is named after its flags, with a record beside it of how it
began."""

import contextlib
import fcntl
import glob
import hashlib
import json
import math
import os
import re
import shutil
import sys

from common.run_folder import BadRun, Unfinished, open_run, read_config, read_object, read_text
from common.written_files import replacing

from experiments import Fault, groups, processes, runs

NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")


def as_flag_value(value):
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(as_flag_value, value))
    return str(value)


def name_of(cell):
    return " ".join(f"{k}={v}" for k, v in cell.items())


def folder_of(out, cell):
    name = "-".join(f"{k}_{v}" for k, v in cell.items())
    return os.path.join(out, "".join(c if c.isalnum() or c in "._-+=" else "_" for c in name))


def loss_of(folder):
    """Returns the final validation loss of a finished run, infinity if the run diverged (also if the engine ended it
    early for that), or None if it is not finished. Raises a Fault if it finished without a validation loss."""
    try:
        opened = open_run(folder)
    except BadRun:
        return None  # not begun or damaged: it starts again, or --resume reports the fault
    try:
        return runs.checked(folder, *opened).loss
    except Unfinished:
        return None
    except runs.Diverged:
        return math.inf
    except BadRun as fault:
        raise Fault(str(fault)) from None


def is_finished(folder):
    return loss_of(folder) is not None


def state_of(folder):
    loss = loss_of(folder)
    return "to run" if loss is None else "finished" if math.isfinite(loss) else "diverged"


def next_rate(losses):
    """Returns the next rate beyond the best of {rate: loss} if that is the lowest or highest rate, at the same factor
    as between its neighbour and it. Otherwise, or if a loss is None, returns None. If all diverged, the lowest rate
    counts as the best."""
    rates = sorted(losses)
    if len(rates) < 2 or None in losses.values():
        return None
    best = min(rates, key=losses.get)
    if best not in (rates[0], rates[-1]):
        return None
    inner = rates[1] if best == rates[0] else rates[-2]
    return float(f"{best * best / inner:.4g}") if best and inner else None  # no factor leads to or from 0


@contextlib.contextmanager
def locked(folder):
    """Holds the locks that the engine holds while it writes a run (train/run_folder.cpp): on the folder and on the file
    `lock` in it. Raises a Fault if another process holds one, such as an engine that outlived its killed sweep."""
    with contextlib.ExitStack() as held:
        for path, mode in ((folder, os.O_RDONLY), (os.path.join(folder, "lock"), os.O_RDWR)):
            if not os.path.exists(path):
                continue
            held.callback(os.close, descriptor := os.open(path, mode))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Fault(f"{folder}: another process is writing it; wait for its end or end it") from None
            except OSError:
                pass  # a file system without locks
        yield


def words_of(command, cell, folder):
    """Returns the command of a cell. It resumes a run that has a checkpoint; a run without one is removed here."""
    words = command + [word for k, v in cell.items() for word in (f"--{k}", v)] + ["--out", folder]
    if os.path.isdir(folder):
        with locked(folder):
            if glob.glob(os.path.join(glob.escape(folder), "step_*[0-9]")):
                words.append("--resume")
            else:
                shutil.rmtree(folder)
    return words


def run_cell(command, cell, folder):
    """Runs one cell and returns its exit status. A Ctrl-C lets it save and then raises KeyboardInterrupt."""
    ((_, status, errors),) = processes.run_all([(folder, words_of(command, cell, folder))])
    print(errors, end="", file=sys.stderr)
    return status


def flags_of(words):
    """Returns {flag: value as text} of a command's words; several words after a flag are joined with commas."""
    flags, last = {}, None
    for word in words:
        if word.startswith("--"):
            last, equals, value = word[2:].partition("=")
            flags[last] = value if equals else ""
        elif last is not None:
            flags[last] += ("," if flags[last] else "") + word
    return flags


def write_record(folder, record):
    """Stores a record of how a cell begins beside its folder."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with replacing(folder + ".json") as file:
        json.dump(record, file)


def record_of(command, cell):
    """Returns the record of a cell of sweep.py: program, flags and the hash of --config's file."""
    begin = next((i for i, word in enumerate(command) if word.startswith("--")), len(command))
    flags = flags_of(command) | cell
    try:
        config = hashlib.sha256(read_text(flags.get("config", "")).encode()).hexdigest()
    except BadRun:
        config = ""  # no --config, or a file that the program will refuse
    return {"program": os.path.basename(command[max(0, begin - 1)]), "flags": flags, "config": config}


def is_value(text, value):
    """Returns whether a flag's text can mean a value of config.json."""
    if isinstance(value, bool):
        return value == (text not in ("off", "false"))
    number = re.fullmatch(rf"({NUMBER.pattern})([kmgb]?)(i?)", text.lower())
    if number and type(value) in (int, float):
        suffix, binary = number.groups()[-2:]
        power = " kmg".find(suffix.replace("b", "g") or " ")
        return math.isclose(float(number[1]) * (1024 if binary else 1000) ** power, value, rel_tol=1e-6)
    return text == groups.text_of(value) or text == "auto" and value is None


def stale(folder, now):
    """Returns the differences between the cell in the folder and the record `now`, as "--steps 10, now 20", or ""."""
    try:
        options = read_config(folder)["options"]
    except BadRun:
        return ""  # not begun or damaged: it starts again, or --resume reports the fault
    try:
        record = read_object(folder + ".json", {"flags": dict, "program?": str, "config?": str})
    except BadRun:
        record = {"flags": {}}  # made by an earlier version
    begun, flags = record["flags"], now["flags"]
    unrelated = runs.IGNORED - {"data", "val-data", "seed", "steps", "tokens", "epochs"}

    def is_unchanged(flag, text):
        # "auto" is the default of each flag that has it; config.json may have what it chose.
        return begun.get(flag, "auto" if text == "auto" else None) == text or is_value(text, options[flag])

    changes = [f"--{k} {begun.get(k) or groups.text_of(options[k])}, now {v or 'on'}" for k, v in flags.items()
               if k in options and k not in unrelated and not is_unchanged(k, v)]
    changes += [f"--{k} {v}, now without" for k, v in begun.items() if k not in flags and k not in unrelated]
    if "config" in flags and record.get("config", now["config"]) != now["config"]:
        changes.append(f"--config {flags['config']} has other content")
    if record.get("program", now["program"]) != now["program"]:
        changes.append(f"{record['program']}, now {now['program']}")
    return "; ".join(changes)
