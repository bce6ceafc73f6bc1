"""The job, the worker processes, and their tasks: tokenize a unit, join parts into a shard."""

import collections
import multiprocessing
import os
import threading
from dataclasses import asdict, dataclass
from multiprocessing import connection as ipc

import numpy as np

from . import tokenizer as tokenizers
from .batches import Advance, Batches, Note
from .documents import Reader, ReadOptions
from .duplicates import TEXTS, TOKENS, DocumentHashes, load, without
from .files import Failure, first_line
from .interrupts import held, leave_to_parent
from .shards import token_dtype, write_part, write_shard
from .source_bytes import TokenLengths
from .token_table import read_tokens_bin


@dataclass(frozen=True)
class Job:
    """Everything that determines the shards, and the number of workers, which does not."""
    inputs: tuple
    out: str
    name: str
    tokenizer: str
    bpe_dir: str | None
    delimiter: str | None
    text_field: str
    txt_lines: bool
    shard_tokens: int
    val_tokens: int | None  # None: see Run._plan_shard
    max_tokens: int | None
    train_bytes: int
    unit_bytes: int
    workers: int
    delete_downloads: bool
    lossy: bool
    split: str | None = None
    val_from: tuple | None = None
    drop_validation_duplicates: bool = False
    list_only: bool = False

    def identity(self):
        """Returns the options that must be equal when a run is resumed."""
        options = asdict(self)
        for unrelated in ("out", "workers", "bpe_dir", "delete_downloads", "lossy", "list_only"):
            del options[unrelated]
        # None where an option is not used, because older folders do not record it.
        return options | {"inputs": list(self.inputs), "val_from": self.val_from and list(self.val_from),
                          "drop_validation_duplicates": self.drop_validation_duplicates or None}

    def read_options(self, cuttable):
        return ReadOptions(self.text_field, self.txt_lines, cuttable, self.unit_bytes)


@dataclass(frozen=True)
class Tokenize:
    unit: object
    held_out: bool  # of a validation text of its own

    def run(self, worker, report):
        rows = collections.Counter()
        reader = worker.reader
        # A text file that is one document comes in pieces. A piece that is left out does not remove the document.
        in_pieces = self.unit.kind == "txt" and not reader.options.txt_lines
        documents = reader.documents(self.unit, rows)
        if worker.validation is not None and not self.held_out and not in_pieces:
            documents = without(documents, worker.validation, rows)
        batches = Batches(worker, self.unit.path, rows, in_pieces, report)
        return write_part(worker.parts, self.unit.file, self.unit.index, batches.of(documents), rows, reader.extent)


@dataclass(frozen=True)
class Join:
    """Writes a shard. `pieces` is a list of (part, first token, tokens)."""
    path: str
    folder: str  # of the work
    split: str
    pieces: list
    tokens: int
    ends_text: bool  # whether its last document ends with it

    def run(self, worker, report):
        hashes = DocumentHashes(worker.tokenizer.delimiter)
        entry = write_shard(self.path, os.path.join(self.folder, "shard.staged"), self.pieces, self.tokens,
                            token_dtype(worker.tokenizer.vocab_size), worker.lengths, hashes)
        if self.ends_text:
            hashes.finish()
        if self.split == "val":
            hashes.save(os.path.join(self.folder, entry["file"] + TOKENS))
        else:
            entry["documents_in_validation"] = hashes.count_in(self.folder)
        return {"file": entry["file"], "split": self.split} | entry


class Worker:
    """The state of a worker process between tasks."""

    def __init__(self, job, folder):
        self.parts = os.path.join(folder, "parts")
        self.tokenizer = tokenizers.load(os.path.join(job.out, "tokenizer"))
        self.reader = Reader(job.read_options(self.tokenizer.cuttable))
        table, first_blank = read_tokens_bin(os.path.join(job.out, "tokenizer", "tokens.bin"))
        self.lengths = TokenLengths(table, self.tokenizer.delimiter, first_blank)
        texts = os.path.join(folder, TEXTS)
        self.validation = load([texts]) if os.path.exists(texts) else None
        self.special = np.zeros(self.tokenizer.vocab_size, bool)
        self.special[[self.tokenizer.delimiter, *self.tokenizer.special_tokens()]] = True


def work(pipe, lifeline, inherited, job, folder):
    """A worker process: runs tasks until the pipe closes or the parent process has ended."""
    leave_to_parent()
    for other in inherited:  # pipe ends that only the parent may hold open, so that its death closes them
        other.close()
    threading.Thread(target=exit_with_parent, args=(lifeline,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    worker = None
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            worker = worker or Worker(job, folder)
            reply = task.run(worker, pipe.send)
        except Failure as failure:
            reply = failure
        except OSError as error:
            reply = Failure(f"{error.filename or folder}: {error.strerror or first_line(error)}")
        except MemoryError:
            reply = Failure(f"out of memory in {task}; use fewer --workers")
        except Exception as error:
            reply = Failure(f"{type(error).__name__} in {task}: {first_line(error)}")
        pipe.send(reply)


def exit_with_parent(lifeline):
    """Ends this process when the parent dies. The parent holds the other end of the pipe and never writes to it."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


class Pool:
    """Worker processes, forked before this process starts any thread. Each holds the folder's lock."""

    def __init__(self, job, folder):
        context = multiprocessing.get_context("fork")
        far_end, self.lifeline = context.Pipe(duplex=False)
        self.processes, self.idle, self.busy = {}, [], {}
        for _ in range(job.workers):
            near, far = context.Pipe()
            inherited = [self.lifeline, near, *self.processes]
            process = context.Process(target=work, args=(far, far_end, inherited, job, folder), daemon=True)
            with held():  # a signal during the fork would be lost
                process.start()
            far.close()
            self.processes[near] = process
            self.idle.append(near)
        far_end.close()

    def submit(self, task):
        pipe = self.idle.pop()
        self.busy[pipe] = task
        try:
            pipe.send(task)
        except OSError:
            self._died(pipe)

    def replies(self, seconds):
        """Waits at most `seconds` and yields (task, result, Failure, Advance or Note). The last two do not end
        their task."""
        for pipe in ipc.wait(list(self.busy), seconds):
            try:
                reply = pipe.recv()
            except (EOFError, OSError):
                self._died(pipe)
            if isinstance(reply, (Advance, Note)):
                yield self.busy[pipe], reply
            else:
                self.idle.append(pipe)
                yield self.busy.pop(pipe), reply

    def _died(self, pipe):
        process = self.processes[pipe]
        process.join(5)
        code = process.exitcode
        why = f"killed by signal {-code}, perhaps out of memory" if code and code < 0 else f"exit status {code}"
        raise Failure(f"a worker died ({why}); run the same command to continue, perhaps with fewer --workers")

    def close(self):
        for process in self.processes.values():
            process.kill()  # nothing is lost: a part is complete or absent
        for process in self.processes.values():
            process.join()
        self.lifeline.close()
