"""The binary layout of token shards, parts (tokenized units of work) and shards on disk, verify and info.

A shard is 256 little-endian int32 (magic, version, token count, zeros), followed by the tokens: uint16 with magic
20240520 and version 1, or uint32 with magic 20240801 and version 7. llm.c and modded-nanogpt use the same layout.
"""

import hashlib
import os
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from common.run_folder import visible
from common.written_files import sync_folder, writing

from .files import Failure, check_regular, counted, first_line, read_json, sha256_file, sync_and_rename
from .source_bytes import CORRECTION, clipped, write_corrections

HEADER_BYTES = 1024
FORMATS = {2: (20240520, 1), 4: (20240801, 7)}  # bytes per token: (magic, version)
COPY_TOKENS = 1 << 20                           # tokens per block when shards are written or checked
BAD_REASONS = ("null", "not text", "invalid UTF-8", "not JSON", "array", "NUL bytes", "special token", "not tokenized")
ROW_COUNTS = ("good", *BAD_REASONS, "in validation")
SHARD = {"file": str, "split": str, "tokens": int, "documents": int, "sha256": str}
MANIFEST = {"source": {"description": str}, "vocab_size": int, "delimiter": int, "token_bytes": int, "tokens": int,
            "documents": int, "bad_rows": {str: int}, "shards": [SHARD],
            "tokenizer": {"name": str, "delimiter_text": str, "library": str, "files": {str: str}}}  # see check_shape


def token_dtype(vocab_size):
    """Returns uint16 if every id fits, otherwise uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_header(tokens, width):
    return np.array([*FORMATS[width], tokens], "<i4").tobytes().ljust(HEADER_BYTES, b"\0")


def read_shard_header(path):
    """Returns (tokens, bytes per token) of a shard. Raises a Failure that names the file and the fault unless the
    header and the size agree."""
    check_regular(path)
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or first_line(error)}") from error
    if len(header) < HEADER_BYTES:
        raise Failure(f"{path}: {size} bytes, shorter than the header of {HEADER_BYTES}")
    magic, version, tokens = struct.unpack("<3i", header[:12])
    widths = [width for width, known in FORMATS.items() if known == (magic, version)]
    if not widths:
        raise Failure(f"{path}: not a token shard (magic {magic}, version {version})")
    if tokens < 0 or size != HEADER_BYTES + tokens * widths[0]:
        raise Failure(f"{path}: the header says {tokens} tokens of {widths[0]} bytes, which is "
                      f"{HEADER_BYTES + tokens * widths[0]} bytes; the file has {size}")
    return tokens, widths[0]


@dataclass(frozen=True)
class Part:
    """A tokenized unit of work: unit `unit` of input file `file`. Its tokens follow a header in `path`."""
    file: int
    unit: int
    path: str
    tokens: int
    documents: int
    consumed: int   # bytes of the input file in the unit, for the progress bar
    last: bool      # whether this is the last unit of the input file
    rows: tuple     # one count per ROW_COUNTS
    corrections: int  # after the tokens (source_bytes.py)

    HEADER = struct.Struct(f"<8s{5 + len(ROW_COUNTS)}q")
    MAGIC = b"teonpar6"

    @staticmethod
    def name(file, unit):
        return f"{file:06d}_{unit:08d}.part"

    def pack(self):
        return self.HEADER.pack(self.MAGIC, self.tokens, self.documents, self.consumed, self.last, *self.rows,
                                self.corrections)

    @classmethod
    def read(cls, path, width):
        """Reads the part in `path`. Returns None unless it is complete and has tokens of `width` bytes."""
        match = re.fullmatch(r"(\d{6})_(\d{8})\.part", os.path.basename(path))
        with open(path, "rb") as file:
            header = file.read(cls.HEADER.size)
            size = os.fstat(file.fileno()).st_size
        if not match or len(header) < cls.HEADER.size:
            return None
        magic, tokens, documents, consumed, last, *rows, corrections = cls.HEADER.unpack(header)
        if magic != cls.MAGIC or size != cls.HEADER.size + tokens * width + corrections * CORRECTION.itemsize:
            return None
        return cls(int(match[1]), int(match[2]), path, tokens, documents, consumed, bool(last), tuple(rows),
                   corrections)

    def read_corrections(self, width):
        with open(self.path, "rb") as file:
            file.seek(self.HEADER.size + self.tokens * width)
            return np.fromfile(file, CORRECTION, self.corrections)


def write_part(folder, file, unit, tokenized, rows, extent):
    """Writes a part from `tokenized`, an iterator of Batches (workers.py), and returns the part.

    `rows` is the Counter that the iterator fills; `extent()` returns (consumed, last) after the iterator has ended. The
    part gets its name only when it is complete and on disk.
    """
    path = os.path.join(folder, Part.name(file, unit))
    staged = f"{path}.{os.getpid()}.staged"
    tokens = documents = 0
    corrections = [np.empty(0, CORRECTION)]
    with writing(staged, "wb") as out:
        out.write(b"\0" * Part.HEADER.size)
        for batch in tokenized:
            out.write(batch.tokens)
            batch.corrections["first"] += tokens
            corrections.append(batch.corrections)
            tokens += batch.tokens.size
            documents += batch.documents
        corrections = np.concatenate(corrections)
        out.write(corrections)
        consumed, last = extent()
        part = Part(file, unit, path, tokens, documents, consumed, last, tuple(rows[name] for name in ROW_COUNTS),
                    corrections.size)
        out.seek(0)
        out.write(part.pack())
        sync_and_rename(out, staged, path)
    return part


def corrections_path(shard):
    return shard.removesuffix(".bin") + ".bytes"


def write_shard(path, staged, pieces, tokens, dtype, lengths, hashes):
    """Joins `pieces`, a list of (part, first token, tokens), into a shard of `tokens` tokens. Its corrections, if any,
    go to a file beside it.

    Returns its manifest entry without the split. `hashes` gets its tokens (DocumentHashes). Copies in blocks, so that
    memory does not depend on the shard's size.
    """
    digest = hashlib.sha256()
    documents = text_bytes = written = 0
    corrections = []
    previous = None  # the token before the block
    with writing(staged, "wb") as out:
        header = shard_header(tokens, dtype.itemsize)
        out.write(header)
        digest.update(header)
        for part, first, count in pieces:
            if part.corrections:
                corrections.append(clipped(part.read_corrections(dtype.itemsize), first, first + count,
                                           written - first))
            written += count
            with open(part.path, "rb") as source:
                source.seek(Part.HEADER.size + max(first - 1, 0) * dtype.itemsize)
                if first:
                    previous = int(np.fromfile(source, dtype, 1)[0])
                while count:
                    block = np.fromfile(source, dtype, min(count, COPY_TOKENS))
                    if not block.size:
                        raise Failure(f"{part.path}: shorter than when it was written; remove it and run again")
                    count -= block.size
                    documents += int(np.count_nonzero(block == lengths.delimiter))
                    text_bytes += int(lengths(block, previous).sum())
                    previous = int(block[-1])
                    digest.update(block)
                    hashes.tokens(block)
                    out.write(block)
        entry = {"file": os.path.basename(path), "tokens": tokens, "documents": documents,
                 "bytes": HEADER_BYTES + tokens * dtype.itemsize, "text_bytes": text_bytes,
                 "sha256": digest.hexdigest()}
        corrections = np.concatenate(corrections) if corrections else np.empty(0, CORRECTION)
        if corrections.size:
            with writing(staged + ".bytes", "wb") as beside:
                write_corrections(beside, corrections)
                sync_and_rename(beside, staged + ".bytes", corrections_path(path))
            entry["text_bytes"] += int(corrections["difference"].sum())
            entry["corrections"] = sha256_file(corrections_path(path))
        sync_and_rename(out, staged, path)
    sync_folder(os.path.dirname(path))
    return entry


def check_shard(folder, entry, vocab_size, delimiter, width):
    """Compares a shard with its manifest entry; returns the faults as a list of lines."""
    path = os.path.join(folder, entry["file"])
    try:
        tokens, found_width = read_shard_header(path)
        if found_width != width:
            return [f"{path}: tokens of {found_width} bytes; the manifest says {width}"]
        if tokens != entry["tokens"]:
            return [f"{path}: {tokens} tokens; the manifest says {entry['tokens']}"]
        digest = hashlib.sha256()
        documents = largest = 0
        with open(path, "rb") as file:
            digest.update(file.read(HEADER_BYTES))
            while (block := np.fromfile(file, f"<u{width}", COPY_TOKENS)).size:
                digest.update(block)
                documents += int(np.count_nonzero(block == delimiter))
                largest = max(largest, int(block.max()))
    except (Failure, OSError) as error:
        return [str(error) if isinstance(error, Failure) else f"{path}: {first_line(error)}"]
    faults = []
    if largest >= vocab_size:
        faults.append(f"{path}: token {largest} is outside the vocabulary of {vocab_size}")
    if documents != entry["documents"]:
        faults.append(f"{path}: {documents} documents; the manifest says {entry['documents']}")
    if "corrections" in entry:
        faults += check_file(corrections_path(path), entry["corrections"])
    if digest.hexdigest() != entry["sha256"]:
        faults.append(f"{path}: contents differ from the manifest (SHA-256 {digest.hexdigest()[:16]}..., "
                      f"expected {entry['sha256'][:16]}...)")
    return faults


def check_file(path, digest):
    """Compares a file's SHA-256; returns the fault as a list of lines."""
    try:
        return [] if sha256_file(path) == digest else [f"{path}: contents differ from the manifest"]
    except (Failure, OSError) as error:
        return [str(error) if isinstance(error, Failure) else f"{path}: {first_line(error)}"]


def read_manifest(folder):
    path = os.path.join(folder, "manifest.json")
    if not os.path.isdir(folder):
        raise Failure(f"{folder}: no such folder")
    if not os.path.exists(path):
        unfinished = os.path.isdir(os.path.join(folder, ".prepare"))
        raise Failure(f"{folder}: " + ("preparation is unfinished; run the same prepare command again to complete it"
                                       if unfinished else "no manifest.json: not made by prepare.py, nothing to check"))
    return read_json(path, MANIFEST)


def verify(folder, threads):
    """Compares a folder with its manifest: every shard, every tokenizer file, missing and additional shards.

    Returns (manifest, list of faults).
    """
    manifest = read_manifest(folder)
    width, vocab_size, delimiter = manifest["token_bytes"], manifest["vocab_size"], manifest["delimiter"]
    with ThreadPoolExecutor(threads) as pool:  # hashing and counting release the interpreter's lock
        checks = [pool.submit(check_shard, folder, entry, vocab_size, delimiter, width)
                  for entry in manifest["shards"]]
        faults = [fault for check in checks for fault in check.result()]
    listed = {entry["file"] for entry in manifest["shards"]}
    faults += [f"{os.path.join(folder, name)}: not in the manifest"
               for name in visible(os.listdir(folder)) if name.endswith(".bin") and name not in listed]
    for name, digest in manifest["tokenizer"]["files"].items():
        faults += check_file(os.path.join(folder, "tokenizer", name), digest)
    return manifest, faults


def info(folder):
    """Returns lines that describe a folder of shards, from its manifest or, without one, from the shards' headers."""
    if os.path.exists(os.path.join(folder, "manifest.json")):
        manifest = read_manifest(folder)
        tokenizer = manifest["tokenizer"]
        bad = sum(manifest["bad_rows"].values())
        yield f"source      {manifest['source']['description']}"
        yield (f"tokenizer   {tokenizer['name']}, {manifest['vocab_size']:,} ids, delimiter {manifest['delimiter']} "
               f"({tokenizer['delimiter_text']}), {tokenizer['library']}")
        yield (f"contents    {counted(manifest['tokens'], 'token')} of {manifest['token_bytes']} bytes, "
               f"{counted(manifest['documents'], 'document')}, {counted(bad, 'bad row')}")
        for entry in manifest["shards"]:
            yield (f"{entry['split']:<11} {entry['file']}  {counted(entry['tokens'], 'token')}, "
                   f"{counted(entry['documents'], 'document')}")
        return
    names = [name for name in visible(os.listdir(folder)) if name.endswith(".bin")] if os.path.isdir(folder) else []
    if not names:
        raise Failure(f"{folder}: no manifest.json and no .bin files")
    yield "no manifest.json; from the headers:"
    for name in names:
        tokens, width = read_shard_header(os.path.join(folder, name))
        yield f"{name}  {tokens:,} tokens of {width} bytes"
