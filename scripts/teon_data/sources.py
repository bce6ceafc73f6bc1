"""The input files and their division into units of work.

A unit is a part of one input file that one worker tokenizes: whole row groups of a parquet file, record batches of an
Arrow file, the lines that begin in a byte range of a text file, or a whole text or CSV file. Units depend only on the
input and the unit size, not on the number of workers. The documents of all units in order are the documents of the
input.
"""

import contextlib
import glob
import os
import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass

from .columns import TEXT_SIZES
from .compression import COMPRESSIONS
from .documents import Unit
from .file_plan import same_content
from .files import HUB_NAME, Failure, UsageError, check_regular, counted, failing_as, first_line, hub_client
from .folders import SHOWN, Folder
from .splits import divide, split_of

KINDS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv", ".tsv": "csv",
         ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "txt"}
PARQUET_CODECS = (".gzip", ".snappy", ".zstd", ".brotli", ".lz4")  # of its pages; pandas documents .parquet.gzip
COMPRESSED_INSIDE = ("parquet", "arrow")
# Files that are read if they are named, but not looked for in folders, where they are not the text.
NAMED_KINDS = {".json": "jsonl"} | dict.fromkeys(
    (".md", ".rst", ".tex", ".html", ".htm", ".py", ".c", ".h", ".cpp", ".cu", ".js", ".java", ".rs", ".go"), "txt")
TOKEN_FILES = (".bin", ".idx", ".npy", ".ds", ".mds", ".tiktoken")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
HUB_REPOSITORIES = {"fineweb": "HuggingFaceFW/fineweb", "fineweb-edu": "HuggingFaceFW/fineweb-edu"}
HUB_SAMPLES = ("10BT", "100BT", "350BT")
CONVERTED = "refs/convert/parquet"  # the hub's own branch with each dataset as CONFIG/SPLIT/NNNN.parquet
PARALLEL_DOWNLOADS = 4


@dataclass(frozen=True)
class InputFile:
    """One input file: its path (for the hub: within the repository), and size and time to detect a change."""
    path: str
    size: int
    mtime_ns: int
    kind: str
    compression: str = ""


def kind_of(path, named=False):
    """Returns (kind, compression) by the file's name, or None for any other file. `named`: the user named the file."""
    stem, suffix = os.path.splitext(path.lower())
    if stem.endswith(".parquet") and suffix in PARQUET_CODECS:
        return "parquet", ""
    compression = COMPRESSIONS.get(suffix, "")
    ending = os.path.splitext(stem)[1] if compression else suffix
    kind = KINDS.get(ending)
    if not kind and (named or (ending == ".json" and compression)):
        kind = NAMED_KINDS.get(ending)
    return (kind, compression) if kind and not (compression and kind in COMPRESSED_INSIDE) else None


def check_name(path):
    """Refuses a name that the manifest, and so the engine, could not hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path}: its name is not UTF-8; rename it, as in: mv 'OLD' NEW") from None


def check_content(path, size):
    """Refuses a file that stands for another one."""
    if size < 1024:  # as every pointer
        with open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise UsageError(f"{path}: is a pointer of Git LFS, not the file itself; fetch it: git lfs pull")


def unknown_kind(path):
    if path.lower().endswith(TOKEN_FILES):
        return UsageError(f"{path}: has tokens, not text. A training program reads shards of llm.c's layout as --data; "
                          "prepare.py tokens makes them of nanoGPT's, Megatron's and others' files")
    return UsageError(f"{path}: unknown kind of file; use .parquet, .arrow, .csv, .jsonl, .json or a text such as "
                      ".txt, .md or .py, all but the first two also with .gz, .zst, .bz2 or .xz")


def found_files(item, notes):
    """Returns [(path, split)] of a file, a folder or a glob. Adds to `notes` what is not read."""
    if os.path.isdir(item):
        folder = Folder(item, kind_of)
        notes += folder.notes()
        if not folder.files:
            raise UsageError(f"{item}: no {', '.join(KINDS)} or .json.gz file in this folder; other kinds must be "
                             "named")
        found, top = folder.files, item
    elif os.path.exists(item):
        found, top = [(item, "")], os.path.dirname(item)
    else:
        paths = sorted(path for path in glob.glob(item, recursive=True) if os.path.isfile(path))
        if not paths:
            raise UsageError(f"{item}: no such file, and no file matches it as a pattern")
        found, top = [(path, "") for path in paths], os.path.dirname(re.split(r"[*?\[]", item)[0])
    return [(path, split or split_of(os.path.relpath(path, top or ".")) or split_of(os.path.basename(top)))
            for path, split in found]


class LocalSource:
    """Files, folders (Folder) and globs (sorted), in the given order. The first `val_files` of `files` are a validation
    text of its own: a split of the input, or `val_from`."""

    def __init__(self, inputs, split=None, val_from=(), drop_duplicates=False):
        self.notes = []  # for the user
        found = [file for item in inputs for file in found_files(item, self.notes)]
        training, validation, line = divide(found, split, val_from)
        self.notes += [line] if line else []
        if val_from:
            validation = [path for item in val_from for path, _ in found_files(item, self.notes)]
            training = self._without(validation, training)
        if not training:
            raise UsageError(f"--val-from has every file of {' '.join(inputs)}, none is left for training")
        self.files = [self._describe(path) for path in validation + training]
        self.val_files = len(validation)
        self._name_equal_files(drop_duplicates)
        self.description = " ".join(inputs)
        self.facts = {"kind": "local", "description": self.description}

    def _without(self, validation, training):
        held_out = set(map(os.path.realpath, validation))
        rest = [path for path in training if os.path.realpath(path) not in held_out]
        if len(rest) < len(training):
            self.notes.append(f"{counted(len(training) - len(rest), 'file')} of the input are in --val-from, and so "
                              "not trained on")
        return rest

    def _name_equal_files(self, drop_duplicates):
        dropped = set()
        for group in same_content(self.files):
            twins = [i for i in group if i >= self.val_files > group[0]] if drop_duplicates else []
            dropped.update(twins)
            names = ", ".join(self.files[i].path for i in group[:SHOWN])
            self.notes.append(f"{counted(len(group), 'file')} have the same content: {names}"
                              f"{', ...' if len(group) > SHOWN else ''}; " +
                              ("only the one for validation is read" if twins else "each is read"))
        self.files = [file for i, file in enumerate(self.files) if i not in dropped]

    @staticmethod
    def _describe(path):
        check_name(path)
        kind = kind_of(path, named=True)
        if not kind:
            raise unknown_kind(path)
        try:
            check_regular(path)
        except Failure as fault:
            raise UsageError(f"{fault}; give a file") from None
        status = os.stat(path)
        check_content(path, status.st_size)
        return InputFile(path, status.st_size, status.st_mtime_ns, *kind)

    def local_path(self, index):
        return self.files[index].path

    def release(self, count):
        pass


@dataclass(frozen=True)
class HubData:
    """Parquet files of a dataset on the Hugging Face Hub: of a folder in a branch, or of a split."""
    repository: str
    branch: str | None         # None: main
    folder: str | None = None
    config: str | None = None  # None: the only configuration, or "default"
    split: str | None = None

    def choose(self, paths):
        """Returns the selected files of a repository."""
        if self.folder is not None:
            return [path for path in paths if path.startswith(self.folder + "/")]
        found = sorted({tuple(path.split("/")[:2]) for path in paths if path.count("/") == 2})
        configs = sorted({config for config, _ in found})
        config = self.config or (configs[0] if len(configs) == 1 else "default")
        splits = [split for name, split in found if name == config]
        if not splits:
            fault = f"no configuration '{config}'" if self.config else "several configurations"
            raise UsageError(f"hf:{self.repository}: {fault}; write hf:{self.repository}:CONFIG:{self.split}, where "
                             f"CONFIG is one of {', '.join(configs)}")
        if f"partial-{self.split}" in splits:
            raise UsageError(f"hf:{self.repository}: the hub has only the beginning of {config}/{self.split} as "
                             "parquet; download the dataset's own files and use them: "
                             "prepare.py 'FOLDER/*.parquet' --out ...")
        if self.split not in splits:
            raise UsageError(f"hf:{self.repository}: no split '{self.split}' in {config}; its splits are "
                             f"{', '.join(splits)}")
        return [path for path in paths if path.startswith(f"{config}/{self.split}/")]

    def __str__(self):
        inside = self.folder if self.folder is not None else ":".join(filter(None, (self.config, self.split)))
        return f"{self.repository} {inside}"


class HubSource:
    """Parquet files of a dataset on the Hugging Face Hub, downloaded one by one ahead of their use.

    `revision` is the commit to read, None for the newest. `facts` records it, so that a resumed run reads the same
    commit. Files are stored in the hub's own cache, or in `download_folder`, from which they are removed after use.
    """

    def __init__(self, data, revision=None, download_folder=None):
        self.hub = hub_client(data.repository)
        self.repository, self.download_folder = data.repository, download_folder
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        self.hint = (f"; without a network, download {data}/*.parquet on another machine and give "
                     "the local files instead: prepare.py 'FOLDER/*.parquet' --out ...")
        with failing_as(f"list the dataset {data} at {endpoint}", self.hint):
            api = self.hub.HfApi()
            revision = revision or api.repo_info(data.repository, repo_type="dataset", revision=data.branch).sha
            entries = list(api.list_repo_tree(data.repository, data.folder, recursive=True, revision=revision,
                                              repo_type="dataset"))
        if any(type(getattr(entry, "path", None)) is not str for entry in entries):
            raise Failure(f"cannot list the dataset {data} at {endpoint}: an entry has no text as its path{self.hint}")
        size_of = {entry.path: entry.size for entry in entries if entry.path.endswith(".parquet")}
        if not size_of:
            raise Failure(f"the dataset {data} has no parquet files at revision {revision}")
        if not all(type(size) is int and size >= 0 for size in size_of.values()):
            raise Failure(f"cannot list the dataset {data} at {endpoint}: a file has no number as its size{self.hint}")
        self.files = [InputFile(path, size_of[path], 0, "parquet") for path in data.choose(sorted(size_of))]
        self.revision = revision
        self.notes = []
        self.val_files = 0
        self.description = str(data)
        self.facts = {"kind": "hub", "description": self.description, "repository": data.repository,
                      "revision": revision}
        self.downloads = {}

    def local_path(self, index):
        """Returns the local path of a file, or None during its download. Starts downloads of the next files."""
        for ahead in range(index, min(index + PARALLEL_DOWNLOADS, len(self.files))):
            if ahead not in self.downloads:
                self.downloads[ahead] = Future()
                # The process ends without waiting for daemon threads; the next run continues their downloads.
                threading.Thread(target=self._download, args=(self.files[ahead].path, self.downloads[ahead]),
                                 daemon=True).start()
        return self.downloads[index].result() if self.downloads[index].done() else None

    def _download(self, path, future):
        attempts = 3
        for attempt in range(1, attempts + 1):  # the client continues a partial download
            try:
                return future.set_result(self.hub.hf_hub_download(
                    self.repository, path, repo_type="dataset", revision=self.revision, local_dir=self.download_folder))
            except Exception as error:
                if attempt == attempts:
                    future.set_exception(Failure(
                        f"cannot download {path} of {self.repository} in {attempts} attempts ({type(error).__name__}: "
                        f"{first_line(error)}); run the same command to continue{self.hint}"))

    def release(self, count):
        """Called when every token of the first `count` files is in a finished shard."""
        for file in self.files[:count] if self.download_folder else ():
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(self.download_folder, file.path))


def hub_data(name):
    """Returns the HubData of fineweb, fineweb:100BT, fineweb-edu:10BT, hf:OWNER/NAME:SPLIT, ..., or None for files."""
    if name.startswith("hf:"):
        match = HUB_NAME.fullmatch(name)
        words = match["rest"].split(":")[1:] if match else []
        if not match or len(words) > 2:
            raise UsageError(f"{name}: expected hf:OWNER/NAME, hf:OWNER/NAME:SPLIT or hf:OWNER/NAME:CONFIG:SPLIT")
        return HubData(match["repository"], CONVERTED, config=words[0] if len(words) == 2 else None,
                       split=words[-1] if words else "train")
    base, _, sample = name.partition(":")
    if base not in HUB_REPOSITORIES:
        return None
    if base == "fineweb" and sample == "edu":
        base, sample = "fineweb-edu", ""
    sample = sample or HUB_SAMPLES[0]
    if sample not in HUB_SAMPLES:
        raise UsageError(f"{name}: unknown sample; known are {', '.join(f'{base}:{s}' for s in HUB_SAMPLES)}")
    return HubData(HUB_REPOSITORIES[base], None, folder=f"sample/{sample}")


def open_source(job, revision=None, download_folder=None):
    """Returns the source of a job: one dataset of the hub, or local files."""
    datasets = [hub_data(item) for item in job.inputs]
    if not any(datasets):
        return LocalSource(job.inputs, job.split, job.val_from or (), job.drop_validation_duplicates)
    if len(job.inputs) > 1:
        raise UsageError("a dataset of the hub cannot be mixed with other inputs")
    if job.split or job.val_from:
        raise UsageError(f"--split and --val-from are for local files; {job.inputs[0]} names its split itself")
    return HubSource(datasets[0], revision, download_folder)


def units(index, path, file, options):
    """Yields the units of an input file in order, endlessly for a compressed file, whose length is unknown."""
    if file.kind in TEXT_SIZES:
        yield from table_units(index, path, file, options)
    elif file.kind == "csv" or file.kind == "txt" and not options.txt_lines and (
            file.compression or not options.cuttable):
        yield Unit(index, 0, path, file.kind, file.compression, 0, None, file.size, True)
    elif file.compression:
        unit = 0
        while True:
            begin = unit * options.unit_bytes
            yield Unit(index, unit, path, file.kind, file.compression, begin, begin + options.unit_bytes, None, None)
            unit += 1
    else:
        for unit, begin in enumerate(range(0, max(file.size, 1), options.unit_bytes)):
            end = min(begin + options.unit_bytes, file.size)
            yield Unit(index, unit, path, file.kind, "", begin, end, end - begin, end == file.size)


def table_units(index, path, file, options):
    """Yields units of consecutive row groups or record batches, as many as reach the unit size."""
    parts = TEXT_SIZES[file.kind](path, options.text_field)
    total = sum(stored for stored, _ in parts) or 1
    unit = begin = text = stored = 0
    for end, (part_stored, part_text) in enumerate(parts, 1):
        stored += part_stored
        text += part_text
        last = end == len(parts)
        if text >= options.unit_bytes or last:
            yield Unit(index, unit, path, file.kind, "", begin, end, file.size * stored // total, last)
            unit, begin, text, stored = unit + 1, end, 0, 0
    if not parts:
        yield Unit(index, 0, path, file.kind, "", 0, 0, file.size, True)
