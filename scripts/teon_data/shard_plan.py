"""Which tokens the next shard has.

The validation text is the first part of the stream. If the source has one of its own (val_files), its shards end with
it. Otherwise the first shard is for validation, as in llm.c: --val-tokens, by default a full shard, or a tenth of a
text that does not fill two.
"""

import os

from .workers import Join


def next_shard(run):
    """Returns the next shard of a Run as a Join, or None while some of its tokens are missing."""
    job, index = run.job, run.state["next_shard"]
    validating, available, ended = validation_left(run)
    if job.max_tokens is not None:
        available = min(available, job.max_tokens - run.finished_tokens)
    size = job.shard_tokens
    if index == 0 and not run.source.val_files:
        validating = True
        if job.val_tokens is not None:
            size = job.val_tokens
        elif available < 2 * job.shard_tokens:
            if not ended:
                return None
            size = available // 10
        if size == 0:
            run.state["next_shard"] = 1
            return next_shard(run)
    if available < size and not ended:
        return None
    size = min(size, available)
    if size == 0:
        return None
    split = "val" if validating else "train"
    path = os.path.join(job.out, f"{job.name}_{split}_{index:06d}.bin")
    return Join(path, run.folder, split, pieces_of(run, size), size, ended and size == available)


def validation_left(run):
    """Returns (whether the next shard is of the source's own validation text, tokens for it so far, whether these are
    all)."""
    files = run.source.val_files
    left = sum(part.tokens for part in run.chain if part.file < files)
    if left and run.chain[0].file < files:
        left -= run.skip
    if left or run.next_part[0] < files:
        return True, left, run.ended or run.next_part[0] >= files
    return False, run.chain_tokens, run.ended


def pieces_of(run, size):
    """Returns the next `size` tokens of the chain as a list of (part, first token, tokens)."""
    pieces, skip = [], run.skip
    for part in run.chain:
        count = min(part.tokens - skip, size)
        if count:
            pieces.append((part, skip, count))
        size -= count
        skip = 0
        if not size:
            break
    return pieces
