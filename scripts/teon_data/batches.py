"""Texts to tokens, some at a time: the work of a worker on a unit."""

from dataclasses import dataclass

import numpy as np

from .documents import cut_texts
from .files import first_line
from .shards import token_dtype
from .source_bytes import corrections_of

BATCH_CHARS = 1 << 20  # text encoded at a time
BATCH_DOCUMENTS = 1024
CUT_BYTES = 1 << 16  # per piece of a text that the tokenizer's library cannot encode in one piece


@dataclass(frozen=True)
class Advance:
    """The progress of a running task."""
    chars: int
    tokens: int
    documents: int


@dataclass(frozen=True)
class Note:
    """A line for the user."""
    line: str


@dataclass(frozen=True)
class Batch:
    """Tokens of consecutive texts: an array of the shards' type, the documents that begin in it, and corrections
    (source_bytes.py)."""
    tokens: object
    documents: int
    corrections: object


class Batches:
    """The Batches of one unit's texts.

    A text on which the tokenizer fails, or for which it gives a special token, is left out, counted in `rows` by its
    reason and named by report(Note). `in_pieces`: texts are pieces of a document, of which only the piece is left out.
    """

    def __init__(self, worker, path, rows, in_pieces, report):
        self.tokenizer, self.lengths, self.special = worker.tokenizer, worker.lengths, worker.special
        self.path, self.rows, self.in_pieces, self.report = path, rows, in_pieces, report
        self.delimiter = np.array([self.tokenizer.delimiter], token_dtype(self.tokenizer.vocab_size))
        self.texts = 0  # before the current batch
        self.done = Advance(0, 0, 0)

    def of(self, documents):
        """Yields a Batch for each bounded number of (text, begins) pairs. Reports an Advance after each."""
        texts, begins, chars = [], [], 0
        for text, begin in documents:
            texts.append(text)
            begins.append(begin)
            chars += len(text)
            if chars >= BATCH_CHARS or len(texts) == BATCH_DOCUMENTS:
                yield self._batch(texts, begins, chars)
                texts, begins, chars = [], [], 0
        if texts:
            yield self._batch(texts, begins, chars)

    def _batch(self, texts, begins, chars):
        encoded = encode_each(self.tokenizer, texts)
        for i, ids in enumerate(encoded):
            if isinstance(ids, str):
                encoded[i] = self._leave_out(i, texts[i], "not tokenized", ids)
        batch = self._joined(texts, begins, encoded)
        if np.count_nonzero(self.special[batch.tokens]) > batch.documents:  # not only the delimiters
            for i, ids in enumerate(encoded):
                if ids is not None and self.special[ids].any():
                    token = int(ids[self.special[ids]][0])
                    encoded[i] = self._leave_out(i, texts[i], "special token",
                                                 f"its tokens contain the special token {token}")
            batch = self._joined(texts, begins, encoded)
        self.texts += len(texts)
        done = self.done
        self.done = Advance(done.chars + chars, done.tokens + batch.tokens.size, done.documents + batch.documents)
        self.report(self.done)
        return batch

    def _leave_out(self, position, text, reason, why):
        self.rows[reason] += 1
        if not self.in_pieces:
            self.rows["good"] -= 1
        ordinal = self.texts + position + 1
        self.report(Note(f"{self.path}: left out text {ordinal:,} of a unit, {text[:40]!r}: {why}"))

    def _joined(self, texts, begins, encoded):
        """Returns the Batch of texts with their tokens; None: without this text."""
        pieces, sources, sizes, kept_begins = [], [], [], []
        for text, begin, ids in zip(texts, begins, encoded):
            if ids is None:
                if not (self.in_pieces and begin):
                    continue
                text, ids = "", self.delimiter[:0]  # the document begins with its next piece
            if begin:
                pieces.append(self.delimiter)
            pieces.append(ids)
            sources.append(len(text.encode()))
            sizes.append(len(ids))
            kept_begins.append(begin)
        dtype = self.delimiter.dtype
        tokens = np.concatenate(pieces, dtype=dtype, casting="unsafe") if pieces else self.delimiter[:0]
        begin = np.array(kept_begins, np.int64)
        size = np.array(sizes, np.int64)
        ends = np.cumsum(size + begin)
        corrections = corrections_of(self.lengths(tokens, None), ends - np.maximum(size, begin), ends,
                                     np.array(sources, np.int64))
        return Batch(tokens, int(begin.sum()), corrections)


def encode_each(tokenizer, texts):
    """Returns for each text its tokens as an array or, if the tokenizer's library fails on it, the reason."""
    try:
        return [np.asarray(ids) for ids in tokenizer.encode(texts)]
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the libraries' panics are no Exception
        if len(texts) > 1:
            return [encode_each(tokenizer, [text])[0] for text in texts]
        lines = texts[0].encode().splitlines(keepends=True)
        pieces = list(cut_texts(lines, CUT_BYTES)) if tokenizer.cuttable else texts
        if len(pieces) == 1:
            return [f"the tokenizer fails on it ({first_line(error)})"]
    found = encode_each(tokenizer, pieces)
    why = next((ids for ids in found if isinstance(ids, str)), None)
    return [why or np.concatenate(found)]
