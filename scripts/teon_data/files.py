"""Errors, quantities, and functions that write files which are complete or absent after a crash."""

import contextlib
import hashlib
import importlib
import json
import os
import re
import stat

from common.written_files import replacing, sync_folder, target_of

HUB_NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?P<rest>(?::[\w.-]+)*)")


class Failure(Exception):
    """A fault of the data or the machine: one line, exit status 1."""


class WrongOption(Failure):
    """The input needs another option. The unfinished output is removed, so that the command can be corrected."""


class UsageError(Exception):
    """A wrong command line: one line, exit status 2."""


def first_line(error):
    """Returns the first line of an exception's message, or the exception's type if the message is empty."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip()[:200]


INSTALL = "`make setup` installs it into .venv"


def need(module, purpose):
    """Imports a package that only some inputs need. Raises a Failure that states how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise Failure(f"{purpose} needs the Python package {package} ({first_line(error)}): {INSTALL}") from error


@contextlib.contextmanager
def failing_as(what, hint):
    """Turns every exception into the Failure "cannot WHAT ...": a hub's client raises those of its HTTP library and of
    the socket."""
    try:
        yield
    except Exception as error:
        raise Failure(f"cannot {what} ({type(error).__name__}: {first_line(error)}){hint}") from error


def hub_client(purpose):
    """Returns the package huggingface_hub with its output to the terminal turned off."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return need("huggingface_hub", purpose)


SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def quantity(text):
    """Parses a count such as 524288, 1e9, 100M or 512Ki. Raises ValueError for anything else, fractions included."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)([a-z]*)", text.strip().lower())
    if not match or match[2] not in SUFFIXES:
        raise ValueError(f"'{text}' is not a count (examples: 524288, 1e9, 100M, 512Ki)")
    value = float(match[1]) * SUFFIXES[match[2]]
    if not value <= 2**53 or value != int(value):
        raise ValueError(f"'{text}' is not a whole number below 2^53")
    return int(value)


def sync_and_rename(file, staged, final):
    """Syncs the finished, still open `file` to disk and then gives it its final name."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(staged, target_of(final))


def write_json(path, value):
    """Replaces the file `path` by `value` as JSON. After a crash the file has the old or the new contents."""
    with replacing(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")
    sync_folder(os.path.dirname(path) or ".")


def counted(n, noun):
    """Returns the number with its noun: "1 document", "2,000 documents"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def check_regular(path):
    """Raises a Failure unless `path` is a regular file: reading a pipe or a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise Failure(f"{path}: is a {kind_of_mode(mode)}, not a regular file")


def kind_of_mode(mode):
    kinds = {stat.S_ISFIFO: "pipe", stat.S_ISDIR: "folder", stat.S_ISSOCK: "socket"}
    return next((name for test, name in kinds.items() if test(mode)), "device")


def read_json(path, shape=None):
    """Parses a JSON file and checks its shape (check_shape). A Failure names the damage."""
    check_regular(path)
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: nested too deep
        raise Failure(f"{path}: cannot be read as JSON ({first_line(error)})") from error
    check_shape(value, shape, path)
    return value


def check_shape(value, shape, path, name=""):
    """Raises a Failure naming the first part of `value` that differs from `shape`: a type; a dict of required keys and
    their shapes; [shape] for a list; {str: shape} for any keys; None for anything."""
    kind = type(shape) if isinstance(shape, (dict, list)) else shape
    if kind and type(value) is not kind:
        words = {int: "a whole number", str: "a text", dict: "an object", list: "a list"}
        raise Failure(f"{path}: is damaged: {name + ' ' if name else ''}must be {words[kind]}; restore the file, or "
                      f"remove its folder and prepare again")
    if isinstance(shape, list):
        for i, item in enumerate(value):
            check_shape(item, shape[0], path, f"{name}[{i}]")
    elif isinstance(shape, dict):
        for key, wanted in dict.fromkeys(value, shape[str]).items() if str in shape else shape.items():
            check_shape(value.get(key), wanted, path, f"{name}.{key}".lstrip("."))


def sha256_file(path):
    check_regular(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
