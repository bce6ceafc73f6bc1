"""Which files of tokens a source has: their formats, their order, and the splits that their names state."""

import glob
import os
from dataclasses import dataclass

from . import folders, token_formats, token_rows
from .compression import COMPRESSIONS
from .files import UsageError
from .splits import split_of
from .tables_of_contents import read_table

ENDINGS = {".idx": "megatron", ".ds": "datatrove", ".parquet": "parquet", ".arrow": "arrow", ".jsonl": "jsonl",
           ".ndjson": "jsonl", ".bin": "raw", ".npy": "raw"}
OF_ROWS = ("parquet", "arrow", "jsonl", "mds", "litdata")  # whose rows are documents or parts of a stream


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens, or a folder of them with an index."""
    path: str
    format: str
    split: str = ""

    def size(self):
        """Returns the bytes of its tokens, to find that it has changed."""
        if os.path.isdir(self.path):
            return sum(os.path.getsize(os.path.join(self.path, name)) for name in os.listdir(self.path))
        return os.path.getsize(self.path)

    def blocks(self, job, vocab_size, delimiter):
        """Yields (path, ids, begins); see token_formats.py."""
        if self.format in ("megatron", "datatrove"):
            return getattr(token_formats, self.format)(self.path)
        if self.format == "raw":
            return token_formats.raw(self.path, job.raw, vocab_size, delimiter)
        if self.format == "mds":
            return token_rows.mds(self.path, job.field, token_formats.RAW_TYPES.get(job.raw))
        if self.format == "litdata":
            return token_rows.litdata(self.path)
        if self.format == "jsonl":
            return token_rows.jsonl(self.path, COMPRESSIONS.get(os.path.splitext(self.path)[1].lower(), ""), job.field)
        return token_rows.table(self.path, job.field, self.format == "parquet")


def format_of(path, has_raw_type):
    """Returns the format of a file by its name, or None."""
    stem, ending = os.path.splitext(path.lower())
    if ending in COMPRESSIONS:
        ending = os.path.splitext(stem)[1]
        return ENDINGS.get(ending) if ENDINGS.get(ending) == "jsonl" else None
    if ending == ".bin" and not has_raw_type and os.path.isfile(path[:-4] + ".idx"):
        return "megatron"
    if ending == ".ds" and has_raw_type:
        return "raw"
    return ENDINGS.get(ending)


def is_tokens(path, has_raw_type):
    kind = format_of(path, has_raw_type)
    return kind and not (kind == "megatron" and path.lower().endswith(".bin"))  # its .idx stands for both


def format_of_folder(folder):
    """Returns whose index.json a folder has, mosaicml-streaming's or litdata's, or None."""
    content = read_table(os.path.join(folder, "index.json"), dict)
    return next((name for key, name in (("shards", "mds"), ("chunks", "litdata")) if key in content), None)


# Beside the tables of contents that folders of texts have: a folder that its index makes one source.
TABLES = {"index.json": (lambda folder: [folder] if format_of_folder(folder) else None, None)} | folders.TABLES


def files_of(top, has_raw_type, notes):
    """Returns the TokenFiles of a folder, with the splits that its own files or their names state. Adds to `notes` what
    is not read."""
    folder = folders.Folder(os.path.normpath(top), lambda path: is_tokens(path, has_raw_type), TABLES)
    folder.unread.pop(folders.OTHER_KINDS, None)  # indices, and texts beside them
    notes += folder.notes()
    files = [TokenFile(path, format_of_folder(path) if os.path.isdir(path) else format_of(path, has_raw_type),
                       split or split_of(os.path.relpath(path, top))) for path, split in folder.files]
    if len(kinds := sorted({file.format for file in files})) != 1:
        raise UsageError(f"{top}: {'has files of ' + ' and '.join(kinds) if kinds else 'no tokens here'}; expected one "
                         "of parquet, Arrow, .jsonl, Megatron's .bin and .idx, datatrove's .ds, MDS, litdata, or .bin "
                         "and .npy with --raw; name the files")
    return files


def find(paths, has_raw_type, notes):
    """Returns the TokenFiles of named files, globs and folders, in this order. Adds to `notes` what is not read."""
    files = []
    for named in paths:
        matches = [named] if os.path.exists(named) else sorted(glob.glob(named, recursive=True))
        if not matches:
            raise UsageError(f"{named}: no such file or folder, and no file matches it as a pattern")
        for path in matches:
            if os.path.isdir(path):
                files += files_of(path, has_raw_type, notes)
            elif (kind := format_of(path, has_raw_type)) is None:
                raise UsageError(f"{path}: not a known kind of file of tokens ({', '.join(ENDINGS)}); rename ids "
                                 "without a header to .bin and give --raw")
            else:
                files.append(TokenFile(path, kind))
    return list(dict.fromkeys(files))
