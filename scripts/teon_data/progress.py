"""The progress bar."""

import os
import sys
import time

from .files import need

LOG_SECONDS = 30  # between lines without a terminal


class Progress:
    """A bar of input bytes (with --max-tokens: of tokens), with documents and tokens/s. Prints lines instead if there
    is no terminal."""

    def __init__(self, run):
        self.run = run
        self.terminal = sys.stderr.isatty()
        self.by_tokens = run.job.max_tokens is not None
        total = run.job.max_tokens if self.by_tokens else sum(file.size for file in run.source.files)
        self.sink = sys.stderr if self.terminal else open(os.devnull, "w", encoding="utf-8")
        self.tokens_at_start = run.seen["tokens"]  # no unit is in progress yet
        self.begun = self.logged = time.monotonic()
        self.bar = need("tqdm", "the progress bar").tqdm(
            total=total, initial=self._position(run.seen), unit="tok" if self.by_tokens else "B", unit_scale=True,
            file=self.sink, desc=run.job.name, mininterval=0.2, dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]")

    def _position(self, seen):
        return seen["tokens" if self.by_tokens else "consumed"]

    def update(self):
        seen, now = self.run.progress(), time.monotonic()
        rate = (seen["tokens"] - self.tokens_at_start) / max(now - self.begun, 1e-9)
        self.bar.set_postfix_str(f"{seen['documents']:,} documents, {rate / 1e6:.2f}M tokens/s", refresh=False)
        self.bar.update(min(self._position(seen), self.bar.total) - self.bar.n)
        if not self.terminal and now - self.logged >= LOG_SECONDS:
            self.logged = now
            print(self.bar, file=sys.stderr, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()
        if not self.terminal:
            self.sink.close()
