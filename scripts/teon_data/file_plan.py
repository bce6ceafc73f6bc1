"""What will be read: each file with its rows, and the files that have the same content."""

import collections
import hashlib

from .columns import arrow_batches, open_parquet
from .files import counted, sha256_file

EDGE = 1 << 16  # bytes at each end of a file that are compared before the whole


def edges(path):
    with open(path, "rb") as file:
        first = file.read(EDGE)
        file.seek(-min(EDGE, file.seek(0, 2)), 2)
        return hashlib.sha256(first + file.read()).digest()


def same_content(files):
    """Returns lists of the indices of files with the same content. Reads only files of the same size."""
    groups = [list(range(len(files)))]
    for key in (lambda file: file.size, lambda file: edges(file.path), lambda file: sha256_file(file.path)):
        finer = []
        for group in groups:
            found = collections.defaultdict(list)
            for index in group:
                found[key(files[index])].append(index)
            finer += [members for members in found.values() if len(members) > 1 and files[members[0]].size]
        groups = finer
    return groups


def rows_of(file):
    """Returns the rows that a table's file says it has; None for texts, and for a file that cannot be read."""
    try:
        if file.kind == "parquet":
            with open_parquet(file.path) as table:
                return table.metadata.num_rows
        if file.kind == "arrow":
            return sum(batch.num_rows for batch in arrow_batches(file.path))
    except Exception:  # a worker meets it again, in the order of the input
        return None
    return None


def described(source):
    """Returns each file of a source as the manifest has it."""
    files = []
    for index, file in enumerate(source.files):
        files.append({"file": file.path, "bytes": file.size})
        if source.val_files:
            files[-1]["split"] = "val" if index < source.val_files else "train"
        if source.facts["kind"] == "local" and (rows := rows_of(file)) is not None:
            files[-1]["rows"] = rows
    return files


def listing(source):
    """Yields the lines of --list."""
    files = described(source)
    for file in files:
        rows = counted(file["rows"], "row") if "rows" in file else "rows unknown"
        yield f"{file.get('split', 'all'):<6} {file['bytes']:>15,} bytes  {rows:>20}  {file['file']}"
    yield f"{counted(len(files), 'file')}, {counted(sum(file['bytes'] for file in files), 'byte')}"
