"""The files of a folder that are its text. The folder's own table of contents decides, if it has one: a data set that
was saved again, a table that was overwritten and a library's caches leave files of text that are not the data."""

import collections
import os
import re

from common.run_folder import visible

from .files import UsageError, counted
from .tables_of_contents import delta_table, iceberg_table, saved_data_set, saved_splits

SHOWN = 3  # files in a note
TABLES = {  # a name in a folder: (reader, why the folder's other files are not read; None: it has no others)
    "state.json": (saved_data_set, "not read, because state.json does not list them"),
    "_delta_log": (delta_table, "not read, because the table's log no longer lists them"),
    "metadata": (iceberg_table, "not read, because the table's log no longer lists them")}
UNLISTED = "not read, because dataset_dict.json does not list them"
OTHER_KINDS = "of other kinds not read"
CACHES = "not read: caches of the library datasets"
WORKING = "not read: names that begin with _ are other programs' working files"
CACHE = re.compile(r"cache-[0-9a-f]+.*\.arrow")
DIVISION = re.compile(r"(.*)-[0-9]{5}-of-([0-9]{5})(?:-[0-9a-f]{16})?(\..*)")


class Folder:
    """The files of text below a folder as `files`, a list of (path, the split that a table of contents gives it).

    `is_text(path)` tells the kinds of files that are read without being named. Hidden files and folders are not read;
    links are followed, and each folder is entered once.
    """

    def __init__(self, top, is_text, tables=TABLES):
        self.top, self.is_text, self.tables = top, is_text, tables
        self.entered = set()
        self.unread = collections.defaultdict(list)  # why: paths
        self.files = [file for _, files in sorted(self._walk(top, "")) for file in files]

    def notes(self):
        """Yields a line for each reason for which files are not read."""
        for why, paths in self.unread.items():
            shown = ", ".join(os.path.relpath(path, self.top) for path in paths[:SHOWN])
            more = ", ..." if len(paths) > SHOWN else ""
            yield (f"{self.top}: {counted(len(paths), 'file')} {why}: {shown}{more}; name files or a glob to read "
                   "them, too")

    def _walk(self, folder, split):
        """Yields (path, [(file, split)]): a file, or a folder with a table of contents and its files in their order."""
        names = self._enter(folder)
        for table, (read, why) in self.tables.items():
            if table in names and (listed := read(folder)) is not None:
                if why:
                    self._leave_out(why, set(self._texts_below(folder)) - set(map(os.path.normpath, listed)))
                yield folder, [(path, split) for path in listed]
                return
        if "dataset_dict.json" in names:
            splits = saved_splits(folder)
            for name in splits:
                yield from self._walk(os.path.join(folder, name), name)
            self._leave_out(UNLISTED, [path for name in set(names) - set(splits)
                                       for path in self._texts_below(os.path.join(folder, name))])
            return
        divisions = {}
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith("_") and "=" not in name:  # as Spark and pyarrow
                self._leave_out(WORKING, [path])
            elif os.path.isdir(path):
                yield from self._walk(path, split)
            elif not self.is_text(path):
                self._leave_out(OTHER_KINDS, [path])
            elif CACHE.fullmatch(name) and "dataset_info.json" in names:
                self._leave_out(CACHES, [path])
            else:
                check_division(path, name, divisions)
                yield path, [(path, split)]

    def _enter(self, folder):
        """Returns the names in a folder, none if it was entered before."""
        real = os.path.realpath(folder)
        names = [] if real in self.entered else visible(entry.name for entry in os.scandir(folder))
        self.entered.add(real)
        return names

    def _texts_below(self, folder):
        for place, below, names in os.walk(folder):
            below[:] = visible(below)
            paths = (os.path.normpath(os.path.join(place, name)) for name in visible(names))
            yield from filter(self.is_text, paths)

    def _leave_out(self, why, paths):
        if paths:
            self.unread[why] += sorted(paths)


def check_division(path, name, divisions):
    """Refuses the files of two divisions of one text, as NAME-00000-of-00001 and NAME-00000-of-00002."""
    match = DIVISION.fullmatch(name)
    first = divisions.setdefault((match[1], match[3]), (match[2], path)) if match else None
    if first and first[0] != match[2]:
        raise UsageError(f"{path}: is of another division of the same text than {os.path.basename(first[1])}; remove "
                         "the older files, or name the files to read")
