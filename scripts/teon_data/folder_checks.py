"""Checks of an output folder before work begins: that it is free, and that options and input are those of its state."""

import fcntl
import os
import time

from .files import Failure, UsageError
from .sources import open_source

MOST_UNITS, MOST_SHARDS = 100_000, 10_000
BYTES_OF_TOKEN = 4  # about, of text
LOCK_PATIENCE = 10  # seconds until the workers of a killed run must have ended


def check_counts(job, source):
    """Refuses options that divide the input into so many units or shards that it would take days, before any work, and
    those that only a validation text of its own has, or has not."""
    files = source.files
    if source.val_files and job.val_tokens is not None:
        raise UsageError(f"--val-tokens {job.val_tokens}: the validation text is {source.files[0].path}"
                         f"{', ...' if source.val_files > 1 else ''}, all of it; leave the option out, or choose the "
                         "training text alone with --split")
    if job.drop_validation_duplicates and not source.val_files:
        raise UsageError("--drop-validation-duplicates: needs a validation text of its own; name it with --val-from")
    text = sum(file.size for file in files if file.kind in ("txt", "jsonl"))  # units of tables have a part at least
    if text > MOST_UNITS * job.unit_bytes:
        raise UsageError(f"--unit-bytes {job.unit_bytes}: divides this input into {text // job.unit_bytes:,} units; "
                         f"use at least {-(-text // MOST_UNITS)}, or leave it out")
    tokens = sum(file.size for file in files) // BYTES_OF_TOKEN
    tokens = tokens if job.max_tokens is None else min(tokens, job.max_tokens)
    if tokens > MOST_SHARDS * job.shard_tokens:
        raise UsageError(f"--shard-tokens {job.shard_tokens}: divides about {tokens:,} tokens into "
                         f"{tokens // job.shard_tokens:,} shards; use at least {-(-tokens // MOST_SHARDS)}, or leave "
                         "it out")


def compare_options(job, recorded, what):
    """Refuses other options than those with which the folder was begun."""
    wanted = job.identity()
    if not isinstance(recorded, dict):
        raise UsageError(f"{job.out} contains {what} of another tool; choose another --out")
    key = next((key for key in wanted if recorded.get(key) != wanted[key]), None)
    if key:
        raise UsageError(f"{job.out} contains {what} made with other options ({key}: {recorded.get(key)}, now "
                         f"{wanted[key]}); use the same options, remove the folder or choose another --out")


def compare_files(job, recorded):
    """Refuses local files that have changed since the folder was completed. Missing files are accepted."""
    try:
        found = [(file.path, file.size) for file in open_source(job).files]
    except UsageError:
        return
    compare_list(job, [file["file"] for file in recorded], [path for path, _ in found])
    for file, (path, size) in zip(recorded, found):
        if file["bytes"] != size:
            raise changed(job, path)


def compare_list(job, recorded, paths):
    """Refuses another list of input files."""
    if recorded != paths:
        raise UsageError(f"the list of input files has changed since {job.out} was begun; give the same files, remove "
                         "the folder or choose another --out")


def changed(job, path):
    """Returns the Failure for a file that has changed."""
    return Failure(f"{path} has changed since its first part was tokenized; remove {job.out} to start again")


def accept_inputs(job, state, files, parts_folder):
    """Accepts changes since the last run in files of which no token was used, and refuses all others."""
    recorded = state["files"]
    compare_list(job, [file[0] for file in recorded], [file[0] for file in files])
    file, unit, skip = state["frontier"]
    begun = file + 1 if unit or skip else file
    for index, (old, new) in enumerate(zip(recorded, files)):
        if old != new and index < begun:
            raise changed(job, new[0])
        if old != new:
            for name in os.listdir(parts_folder):
                if name.startswith(f"{index:06d}_"):
                    os.remove(os.path.join(parts_folder, name))
    state["files"] = files


def check_folder(job, folder):
    """Refuses an output folder with shards of another tool; `folder` is the work folder in it."""
    if os.path.exists(job.out) and not os.path.isdir(job.out):
        raise UsageError(f"--out {job.out}: not a folder")
    if os.path.isdir(job.out) and not os.path.isdir(folder) and any(
            name.endswith(".bin") for name in os.listdir(job.out)):
        raise UsageError(f"{job.out} contains .bin files of another tool; choose another --out")


def lock(job, folder):
    """Locks the work folder. The workers inherit the lock, so it is free when all workers of a killed run have ended.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(LOCK_PATIENCE * 10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return descriptor
    raise Failure(f"{job.out}: another prepare is at work in this folder")
