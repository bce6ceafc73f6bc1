"""The order of work, and the state from which an interrupted run continues.

The input is divided into units (sources.py). Workers tokenize each unit into a part, a file of tokens in the work
folder OUT/.prepare/parts that gets its name only when it is complete and on disk. The parts in input order form one
stream of tokens, with shard boundaries at fixed offsets. As soon as the stream reaches the end of the next shard, a
worker joins the parts into that shard. Therefore a shard's content depends only on the input and the options, not on
the number or speed of the workers or on interruptions.

state.json holds the finished shards and the frontier: the part, and the offset in it, at which the next shard begins.
Every step can be repeated: a shard that was renamed but not yet recorded is written again with the same bytes, parts
before the frontier are removed, and parts after it are kept.
"""

import collections
import os
import shutil
import time

from common.written_files import sync_folder

from . import VERSION, duplicates, file_plan, folder_checks, round_trip, tokenizer_folder
from . import tokenizer as tokenizers
from .batches import Advance, Note
from .documents import text_keys
from .files import Failure, WrongOption, check_shape, read_json, write_json
from .first_texts import hash_of_texts, sample_texts, training_texts
from .interrupts import raise_received
from .progress import Progress
from .shard_plan import next_shard
from .shards import BAD_REASONS, ROW_COUNTS, SHARD, Part, read_manifest, token_dtype
from .sources import open_source, units
from .workers import Join, Pool, Tokenize

STATE_VERSION = 7
AHEAD = 64          # units begun, per worker, before the earliest unfinished one
NAMED_TEXTS = 20    # that are left out; further ones are only counted
OBJECTS = "write one JSON object per line, as in: jq -c '.[]' OLD > NEW"
CURES = {  # reason of bad rows: advice
    "null": "choose another column with --text-field", "not text": "choose another column with --text-field",
    "invalid UTF-8": "convert it, as in: iconv -f LATIN1 -t UTF-8 OLD > NEW",
    "not JSON": OBJECTS, "array": OBJECTS,
    "special token": "choose a tokenizer or a --delimiter that this text does not spell",
    "not tokenized": "choose another tokenizer",
    "NUL bytes": "it is not text; if it is UTF-16, convert it, as in: iconv -f UTF-16 -t UTF-8 OLD > NEW"}
# The shape of state.json in this version (check_shape).
STATE = {"options": dict, "source": dict, "files": [list], "next_shard": int, "frontier": [int], "shards": [SHARD],
         "consumed": int, "rows": {str: int}, "tokenizer": {"vocab_size": int, "delimiter": int}}
SOURCE = {"kind": str, "files": [{"file": str, "bytes": int}]}  # of a manifest in this version


class Run:
    """One call of prepare on an output folder, from reading its state to writing its manifest."""

    def __init__(self, job, notice):
        self.job = job
        self.notice = notice  # called with a line for the user
        self.folder = os.path.join(job.out, ".prepare")
        self.parts_folder = os.path.join(self.folder, "parts")
        self.state_path = os.path.join(self.folder, "state.json")
        self.manifest_path = os.path.join(job.out, "manifest.json")
        self.state = None
        self.begun = time.monotonic()

    def execute(self):
        """Makes or completes the folder. Returns (manifest, False if the folder was already complete)."""
        finished = self._finished_manifest()
        if finished:
            return finished, False
        folder_checks.check_folder(self.job, self.folder)
        os.makedirs(self.parts_folder, exist_ok=True)
        lock = folder_checks.lock(self.job, self.folder)
        pool = None
        try:
            finished = self._finished_manifest()  # the run that held the lock may have finished it
            if finished:
                return finished, False
            pool = Pool(self.job, self.folder)
            self._restore()
            self._loop(pool)
            return self._finish(), True
        except WrongOption:
            if self.state and not self.state["shards"]:
                os.remove(self.state_path)
            raise
        finally:
            if pool:
                pool.close()
            self._remove_empty_start()
            os.close(lock)

    def _remove_empty_start(self):
        """Removes the files of a run that failed before its first state."""
        if not os.path.exists(self.state_path) and not os.path.exists(self.manifest_path):
            shutil.rmtree(self.folder, ignore_errors=True)
            for unused in ("tokenizer", "tokenizer.staged"):
                shutil.rmtree(os.path.join(self.job.out, unused), ignore_errors=True)
            if not os.listdir(self.job.out):
                os.rmdir(self.job.out)

    # ---- Beginning and resuming

    def _finished_manifest(self):
        if not os.path.exists(self.manifest_path):
            return None
        manifest = read_manifest(self.job.out)
        folder_checks.compare_options(self.job, manifest.get("options"), "shards")
        check_shape(manifest["source"], SOURCE, self.manifest_path, "source")
        if manifest["source"]["kind"] == "local":
            folder_checks.compare_files(self.job, manifest["source"]["files"])
        shutil.rmtree(self.folder, ignore_errors=True)
        return manifest

    def _restore(self):
        """Reads the state, or begins a new one, and sets everything that the loop needs."""
        job = self.job
        state = read_json(self.state_path, {"version": int}) if os.path.exists(self.state_path) else None
        if state:
            if state["version"] != STATE_VERSION:
                raise Failure(f"{self.state_path}: written by another version of prepare; remove {self.job.out}")
            check_shape(state, STATE, self.state_path)
            folder_checks.compare_options(job, state["options"], "an unfinished set of shards")
        downloads = os.path.join(self.folder, "downloads") if job.delete_downloads else None
        self.source = open_source(job, state and state["source"].get("revision"), downloads)
        files = [[file.path, file.size, file.mtime_ns] for file in self.source.files]
        if not state:
            folder_checks.check_counts(job, self.source)
        for note in self.source.notes:
            self.notice(note)
        folder = os.path.join(job.out, "tokenizer")
        if state:
            loaded = tokenizers.load(folder)
        else:
            description, loaded = tokenizer_folder.create_and_load(
                folder, job.tokenizer, job.bpe_dir, job.delimiter, training_texts(job, self.source, self.notice))
            self.notice_fewer_tokens(description["vocab_size"])
            if description.get("huggingface", "") is None:
                self.notice("tokenizer.json has no equal of this SentencePiece model: Hugging Face's libraries will "
                            "find no tokenizer in checkpoints, only its tokenizer/tokenizer.model")
            round_trip.check(loaded, round_trip.sample(sample_texts(job, self.source)), job.lossy, self.notice)
            shutil.rmtree(self.parts_folder)
            os.makedirs(self.parts_folder)
            if job.drop_validation_duplicates:
                duplicates.save_validation_texts(job, self.source, self.folder)
            state = {"version": STATE_VERSION, "options": job.identity(), "source": self.source.facts, "files": files,
                     "tokenizer": description, "next_shard": 0, "frontier": [0, 0, 0], "shards": [], "consumed": 0,
                     "rows": dict.fromkeys(ROW_COUNTS, 0)}
        self.state = state
        self.tokenizer = state["tokenizer"]
        self.dtype = token_dtype(self.tokenizer["vocab_size"])
        self.options = job.read_options(loaded.cuttable)
        folder_checks.accept_inputs(job, state, files, self.parts_folder)
        self.files = file_plan.described(self.source)
        write_json(self.state_path, state)
        self._gather_parts()

    def notice_fewer_tokens(self, made):
        asked = int(self.job.tokenizer.partition("train:")[2] or 0)
        if made < asked:
            self.notice(f"--tokenizer train:{asked}: this text gives only {made:,} tokens")

    def _gather_parts(self):
        """Uses the existing parts and removes all other files."""
        file, unit, self.skip = self.state["frontier"]
        self.next_part = (file, unit)             # the part that extends the chain
        self.chain = collections.deque()          # the parts from the frontier on, without a gap
        self.chain_tokens = -self.skip            # tokens in the chain that are in no shard yet
        self.finished_tokens = sum(shard["tokens"] for shard in self.state["shards"])
        self.done = {}                            # finished parts after a gap
        self.last_units = {}                      # of compressed files that were read to their end
        self.rows = collections.Counter(self.state["rows"])  # up to the end of the chain
        self.failure = None                       # (file, unit) and Failure of the earliest unit that has failed
        self.made = 0                             # units tokenized by this run
        self.named = 0                            # texts left out by this run
        self.under_way = {}                       # the latest Advance of each unit in progress
        self.seen = collections.Counter(          # for the progress bar
            tokens=self.finished_tokens, consumed=self.state["consumed"],
            documents=sum(shard["documents"] for shard in self.state["shards"]))
        for name in os.listdir(self.parts_folder):
            path = os.path.join(self.parts_folder, name)
            part = Part.read(path, self.dtype.itemsize)
            if part and (part.file, part.unit) >= self.next_part:
                self._take(part)
            else:
                os.remove(path)
        if self.done or self.state["shards"]:
            self.notice(f"continuing: {len(self.state['shards'])} shards and {len(self.done)} further units are done")
        self._extend_chain()                      # also sets ended: the chain has all wanted tokens
        self.todo = self._pending_units()

    def progress(self):
        """Returns a Counter of the tokens, documents and bytes of input so far, including units in progress."""
        found = collections.Counter(self.seen)
        for unit, done in self.under_way.items():
            size = unit.consumed or 0 if unit.end is None else self.options.unit_bytes  # of text, about
            share = min(1, done.chars / max(size, 1))
            found.update(tokens=done.tokens, documents=done.documents, consumed=int(share * (unit.consumed or 0)))
        return found

    # ---- The order of work

    def _take(self, part):
        self.done[part.file, part.unit] = part
        self.seen.update(tokens=part.tokens, documents=part.documents, consumed=part.consumed)
        if part.last:
            self.last_units[part.file] = min(part.unit, self.last_units.get(part.file, part.unit))

    def _extend_chain(self):
        while not self._chain_suffices() and self.next_part in self.done:
            part = self.done.pop(self.next_part)
            self.chain.append(part)
            self.chain_tokens += part.tokens
            self.rows.update(dict(zip(ROW_COUNTS, part.rows)))
            self.next_part = successor(part)
            if part.last:
                self._check_rows(self.source.files[part.file])
                self._check_validation(part)
        self.ended = self._chain_suffices()

    def _check_rows(self, file):
        """Refuses input with more bad rows than good ones, at the end of the file that tips the balance."""
        bad = {reason: self.rows[reason] for reason in CURES}
        if sum(bad.values()) > self.rows["good"]:
            most = max(bad, key=bad.get)
            raise WrongOption(f"{file.path}: more bad rows than good ones ({sum(bad.values()):,} of "
                              f"{self.rows.total():,} so far{reasons(bad)}; --text-field is '{self.job.text_field}'); "
                              f"{CURES[most]}{self._keys(file) if most in ('null', 'not text') else ''}")

    def _keys(self, file):
        """Returns the keys of a .jsonl file's first line, as parquet's and Arrow's columns are named."""
        path = self.source.local_path(self.source.files.index(file))
        keys = text_keys(path, file.compression) if file.kind == "jsonl" and path else []
        return f" (keys with text: {', '.join(keys)})" if keys else ""

    def _check_validation(self, part):
        """Refuses a validation text of its own without text, at the end of its last file."""
        if part.file + 1 == self.source.val_files and not self.state["shards"] and not self.chain_tokens:
            raise WrongOption(f"{self.source.files[0].path}: no text found for validation; choose another split with "
                              "--split")

    def _chain_suffices(self):
        wanted = self.job.max_tokens
        return (self.next_part[0] == len(self.source.files) or
                wanted is not None and self.finished_tokens + self.chain_tokens >= wanted)

    def _pending_units(self):
        """Yields the units without a part, in order, or None while the next unit is unknown."""
        for index in range(self.next_part[0], len(self.source.files)):
            while (path := self.source.local_path(index)) is None:
                yield None
            for unit in units(index, path, self.source.files[index], self.options):
                if unit.index > self.last_units.get(index, unit.index):
                    break
                key = (index, unit.index)
                if key >= self.next_part and key not in self.done:  # neither in the chain nor after a gap
                    yield unit

    def _loop(self, pool):
        with Progress(self) as progress:
            joining = False
            while True:
                raise_received()
                while pool.idle and (task := self._next_task(pool, joining)):
                    joining |= isinstance(task, Join)
                    pool.submit(task)
                if not pool.busy and (self.ended or self.failure):
                    break
                for task, result in pool.replies(0.5) if pool.busy else idle_wait(0.2):
                    if isinstance(result, Advance):
                        self.under_way[task.unit] = result
                        continue
                    if isinstance(result, Note):
                        self._name(result.line)
                        continue
                    if isinstance(task, Join):
                        joining = False
                        if isinstance(result, Failure):
                            raise result
                        self._record_shard(result)
                    elif isinstance(result, Failure):
                        self.under_way.pop(task.unit, None)
                        self._fail((task.unit.file, task.unit.index), result)
                    else:
                        self.under_way.pop(task.unit, None)
                        self.made += 1
                        self._take(result)
                        self._extend_chain()
                progress.update()
        if not self.ended:
            raise self.failure[1]

    def _name(self, line):
        """Prints the notes of the first texts that are left out; all are counted."""
        self.named += 1
        if self.named <= NAMED_TEXTS:
            self.notice(line)
        elif self.named == NAMED_TEXTS + 1:
            self.notice("further texts are left out without being named")

    def _next_task(self, pool, joining):
        """Returns the next task of an idle worker: to join a shard, to tokenize a unit, or None for now."""
        shard = None if joining else next_shard(self)
        if shard or self.ended or self.failure or len(self.done) + len(pool.busy) >= AHEAD * self.job.workers:
            return shard
        try:
            unit = next(self.todo, None)
        except Failure as failure:  # a file that cannot be divided into units; the units before it still count
            self._fail((len(self.source.files), 0), failure)
            return None
        return unit and Tokenize(unit, unit.file < self.source.val_files)

    def _fail(self, key, failure):
        """Keeps the earliest failure. It is raised when all units before it are done, unless these suffice. Therefore a
        damaged file behind the last wanted token is always ignored, whichever worker reads it first."""
        if not self.failure or key < self.failure[0]:
            self.failure = (key, failure)

    def _record_shard(self, shard):
        """Moves the frontier to the end of a shard that is on disk under its final name."""
        state = self.state
        state["shards"].append(shard)
        state["next_shard"] += 1
        self.finished_tokens += shard["tokens"]
        self.chain_tokens -= shard["tokens"]
        self.skip += shard["tokens"]
        used = []
        while self.chain and self.skip >= self.chain[0].tokens:
            part = self.chain.popleft()
            self.skip -= part.tokens
            self._count_part(part)
            used.append(part)
        if used:
            state["frontier"] = [*successor(used[-1]), 0]
        state["frontier"][2] = self.skip
        write_json(self.state_path, state)
        for part in used:
            os.remove(part.path)
        self.source.release(state["frontier"][0])

    def _count_part(self, part):
        for name, count in zip(ROW_COUNTS, part.rows):
            self.state["rows"][name] += count
        self.state["consumed"] += part.consumed

    # ---- The end

    def _finish(self):
        state, tokenizer = self.state, self.tokenizer
        for part in self.chain:  # parts without tokens, and parts behind --max-tokens
            self._count_part(part)
        ended_in = min(self.next_part[0], len(self.source.files) - 1)  # within a file, if --max-tokens ended it
        self._check_rows(self.source.files[ended_in])
        if not state["shards"]:
            raise WrongOption(f"{self.source.description}: no text found")
        tokens = sum(shard["tokens"] for shard in state["shards"])
        documents = sum(shard["documents"] for shard in state["shards"])
        bad_rows = {name: count for name, count in state["rows"].items() if name in BAD_REASONS}
        manifest = {
            "tool": {"name": "prepare.py", "version": VERSION},
            "source": self.source.facts | {"files": self.files},
            "tokenizer": tokenizer, "vocab_size": tokenizer["vocab_size"], "delimiter": tokenizer["delimiter"],
            "token_bytes": self.dtype.itemsize,
            "tokens": tokens, "documents": documents,
            "good_rows": state["rows"]["good"], "bad_rows": bad_rows,
            "rows_in_validation": state["rows"]["in validation"], "shards": state["shards"],
            "options": state["options"]}
        if text := self._val_text():
            manifest["val_text"] = text
        write_json(self.manifest_path, manifest)
        shutil.rmtree(self.folder, ignore_errors=True)
        sync_folder(self.job.out)
        return manifest

    def _val_text(self):
        """Returns the hash of the text in the split val, which runs of other tokenizers may share; None if it ends
        within the input or lacks texts, or if its files are gone."""
        job, rows = self.job, self.state["rows"]
        files = self.source.val_files
        if all(shard["split"] == "val" for shard in self.state["shards"]):
            files = len(self.source.files)
        left_out = rows["special token"] + rows["not tokenized"]
        if not files or left_out or job.max_tokens is not None or job.delete_downloads:
            return None
        return hash_of_texts(job, self.source, files)


def successor(part):
    """Returns (file, unit) of the next part in the stream."""
    return (part.file + 1, 0) if part.last else (part.file, part.unit + 1)


def reasons(bad_rows):
    """Returns the numbers of bad rows as ': null 3, not text 1', or ''."""
    found = [f"{reason} {count:,}" for reason, count in bad_rows.items() if count]
    return ": " + ", ".join(found) if found else ""


def idle_wait(seconds):
    """Waits in place of Pool.replies() while all workers wait for a download."""
    time.sleep(seconds)
    return ()
