"""Which files of tokens a source has: their formats, their order, and the splits that their names state."""

import glob
import os
from dataclasses import dataclass

from common.run_folder import visible

from . import token_formats, token_rows
from .compression import COMPRESSIONS
from .files import UsageError
from .splits import split_of

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


def indexed_folder(folder):
    """Returns the files of a folder whose own index lists them, or None: mosaicml-streaming's, litdata's, datasets'."""
    if os.path.isfile(index := os.path.join(folder, "index.json")):
        content = token_formats.index_of(index, dict)
        found = next((name for key, name in (("shards", "mds"), ("chunks", "litdata")) if key in content), None)
        return found and [(folder, found)]
    if os.path.isfile(state := os.path.join(folder, "state.json")):
        files = token_formats.index_of(state, dict).get("_data_files")
        if isinstance(files, list):
            return [(os.path.join(folder, str(file["filename"])), "arrow") for file in files]
    return None


def below(folder, has_raw_type):
    """Yields (path, format) of the files of tokens in a folder, sorted, without hidden ones and caches."""
    found = indexed_folder(folder)
    if found is not None:
        yield from found
        return
    for name in visible(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from below(path, has_raw_type)
        elif (kind := format_of(path, has_raw_type)) and not (kind == "arrow" and name.startswith("cache-")):
            if not (name.endswith(".bin") and kind == "megatron"):  # its .idx is there
                yield path, kind


def find(paths, has_raw_type):
    """Returns the TokenFiles of named files, globs and folders, in this order. Files in folders have the split that
    their names state."""
    files = []
    for named in paths:
        matches = [named] if os.path.exists(named) else sorted(glob.glob(named, recursive=True))
        if not matches:
            raise UsageError(f"{named}: no such file or folder, and no file matches it as a pattern")
        for path in matches:
            if os.path.isdir(path):
                found = [TokenFile(file, kind, split_of(os.path.relpath(file, path))) for file, kind in
                         below(os.path.normpath(path), has_raw_type)]
                if len(kinds := sorted({file.format for file in found})) != 1:
                    raise UsageError(f"{path}: {'has files of ' + ' and '.join(kinds) if kinds else 'no tokens here'}; "
                                     "expected one of parquet, Arrow, .jsonl, Megatron's .bin and .idx, datatrove's "
                                     ".ds, MDS, litdata, or .bin and .npy with --raw; name the files")
                files += found
            elif (kind := format_of(path, has_raw_type)) is None:
                raise UsageError(f"{path}: not a known kind of file of tokens ({', '.join(ENDINGS)}); rename ids "
                                 "without a header to .bin and give --raw")
            else:
                files.append(TokenFile(path, kind))
    return list(dict.fromkeys(files))
