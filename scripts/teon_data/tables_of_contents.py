"""Tables of contents: what another program wrote into a folder to say which of its files are the data.

Each reader returns the paths of the data in their order, or None if what has this name is no such table.
"""

import contextlib
import glob
import importlib
import os
import re
from urllib.parse import unquote, urlparse

from .files import Failure, UsageError, first_line, read_json


def refusal(table, fault):
    return UsageError(f"{table}: {fault}, or name the files to read")


def existing(table, paths):
    missing = next((path for path in paths if not os.path.exists(path)), None)
    if missing:
        raise refusal(table, f"lists {missing}, which is missing; copy the folder again")
    return paths


def read_table(table, shape=None):
    try:
        return read_json(table, shape)
    except Failure as fault:
        raise UsageError(str(fault)) from None


# ---- The library datasets


def saved_data_set(folder):
    """Reads state.json of save_to_disk."""
    table = os.path.join(folder, "state.json")
    state = read_table(table)
    files = state.get("_data_files") if isinstance(state, dict) else None
    if not isinstance(files, list):
        return None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise refusal(table, "chooses rows by a file of indices; save it as flatten_indices().save_to_disk(FOLDER)")
    names = [file.get("filename") if isinstance(file, dict) else None for file in files]
    if not all(isinstance(name, str) for name in names):
        raise refusal(table, "a file of _data_files has no name; save it again")
    return existing(table, [os.path.join(folder, name) for name in names])


def saved_splits(folder):
    """Returns the splits that dataset_dict.json names. Each is a folder beside it."""
    table = os.path.join(folder, "dataset_dict.json")
    splits = read_table(table, {"splits": [str]})["splits"]
    existing(table, [os.path.join(folder, name) for name in splits])
    return splits


# ---- Tables with a log


@contextlib.contextmanager
def log_of(folder, kind, package):
    """Gives the package that reads this kind of table and the advice to do without. What the package raises, and its
    absence, refuses the folder."""
    copy = (f"make a plain copy: duckdb -c \"COPY (FROM {kind.lower()}_scan('{folder}')) TO 'copy.parquet'\" and "
            "prepare copy.parquet")
    try:
        yield importlib.import_module(package), copy
    except ImportError:
        raise UsageError(f"{folder}: its log says which files are rows of this {kind} table; install {package} to read "
                         f"it (.venv/bin/pip install {package}), or {copy}") from None
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{folder}: {package} cannot read this {kind} table ({first_line(error)}); {copy}") from error


def deleted_rows(folder, kind, copy):
    return UsageError(f"{folder}: this {kind} table lists deleted rows apart from their files; {copy}")


def delta_table(folder):
    """Reads _delta_log: the files that the newest version has, in the order in which they were added."""
    with log_of(folder, "Delta", "deltalake") as (deltalake, copy):
        import pyarrow as pa
        table = deltalake.DeltaTable(folder)
        if "deletionVectors" in (table.protocol().reader_features or ()) and pa.table(
                table.deletion_vectors()).num_rows:
            raise deleted_rows(folder, "Delta", copy)
        added = pa.table(table.get_add_actions(flatten=True)).select(["modification_time", "path"]).to_pylist()
    paths = [os.path.join(folder, unquote(path)) for _, path in sorted(tuple(file.values()) for file in added)]
    return existing(os.path.join(folder, "_delta_log"), paths)


class Moved:
    """Opens an Iceberg table's files where they are now: its log has the whole paths that they had at first."""

    def __init__(self, table, folder):
        self.io, self.folder = table.io, os.path.abspath(folder)
        self.home = urlparse(table.location()).path.rstrip("/") + "/"

    def path(self, location):
        path = urlparse(location).path
        return os.path.join(self.folder, path.removeprefix(self.home)) if path.startswith(self.home) else path

    def new_input(self, location):
        return self.io.new_input(self.path(location))


def iceberg_table(folder):
    """Reads the newest metadata/*.metadata.json: the files of its snapshot, in the order in which they were added."""
    versions = glob.glob(os.path.join(glob.escape(folder), "metadata", "*.metadata.json"))
    if not versions:
        return None
    newest = max(versions, key=lambda path: int(re.search("[0-9]+|$", os.path.basename(path))[0] or 0))
    with log_of(folder, "Iceberg", "pyiceberg") as (_, copy):
        from pyiceberg.manifest import ManifestContent
        from pyiceberg.table import StaticTable
        table = StaticTable.from_metadata(newest)
        files = Moved(table, folder)
        snapshot = table.current_snapshot()
        added = [(manifest.content, entry.sequence_number or 0, entry.data_file.file_path)
                 for manifest in (snapshot.manifests(files) if snapshot else ())
                 for entry in manifest.fetch_manifest_entry(files)]
        if any(content != ManifestContent.DATA for content, _, _ in added):
            raise deleted_rows(folder, "Iceberg", copy)
    return existing(newest, [files.path(path) for _, _, path in sorted(added)])
