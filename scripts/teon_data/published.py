"""prepare.py fetch: token shards of llm.c's layout that are published on the Hugging Face Hub, made ours by adopt."""

import os
import re
import shutil

from .adopt import Adoption
from .files import Failure, UsageError, counted, failing_as, hub_client
from .shards import HEADER_BYTES, read_shard_header

# name: (repository, its tokenizer). All have one shard of 100M tokens for validation, number 0, before the others.
PUBLISHED = {"fineweb10B": ("kjj0/fineweb10B-gpt2", "gpt2"), "fineweb100B": ("kjj0/fineweb100B-gpt2", "gpt2"),
             "finewebedu10B": ("kjj0/finewebedu10B-gpt2", "gpt2")}
SHARD = re.compile(r"[\w.-]*_(val|train)_([0-9]{6})\.bin")
OFFLINE = ("; without a network, bring the .bin files in a folder and type prepare.py adopt FOLDER --tokenizer gpt2")


def shards_of(repository, count):
    """Returns the names and sizes in the repository of the validation shards and of the first `count` for training."""
    hub = hub_client(repository)
    with failing_as(f"list {repository} on the Hugging Face Hub", OFFLINE):
        entries = list(hub.HfApi().list_repo_tree(repository, repo_type="dataset"))
    sizes = {entry.path: entry.size for entry in entries if SHARD.fullmatch(entry.path)}
    names = sorted(sizes)
    training = [name for name in names if SHARD.fullmatch(name)[1] == "train"]
    if not training:
        raise Failure(f"{repository}: has no shards, .bin files with _train_ in their names")
    if count > len(training):
        raise UsageError(f"--shards {count}: {repository} has {counted(len(training), 'shard')} for training")
    names = [name for name in names if name not in training] + training[:count]
    return {name: sizes[name] for name in names}


def fetch(name, count, folder, bpe_dir, notice):
    """Fetches the shards into the folder and adopts them. Returns (manifest, whether it was made now). Files that are
    there in full are kept, and a file that was cut off goes on where it was."""
    repository, tokenizer = PUBLISHED[name]
    adoption = Adoption(folder, tokenizer, bpe_dir, None)
    if os.path.exists(os.path.join(folder, "manifest.json")):
        manifest, _ = adoption.execute()
        check_same(manifest, count, folder)
        return manifest, False
    sizes = shards_of(repository, count)
    os.makedirs(folder, exist_ok=True)
    check_others(folder, sizes)
    missing = {file: size for file, size in sizes.items() if not is_whole(os.path.join(folder, file), size)}
    need, free = sum(missing.values()), shutil.disk_usage(folder).free
    if need > free:
        raise UsageError(f"{folder}: {need:,} bytes are to be fetched, but {free:,} are free; --shards takes fewer")
    hub = hub_client(repository)
    for place, (file, size) in enumerate(missing.items(), 1):
        notice(f"{file}: {size / 1e6:,.0f} MB, {place} of {len(missing)}")
        with failing_as(f"fetch {file} of {repository}", "; the same command goes on where this ended"):
            path = hub.hf_hub_download(repository, file, repo_type="dataset", local_dir=folder)
        if not is_whole(path, size):
            os.remove(path)
            raise Failure(f"{path}: other bytes than its header and the hub say; removed, type the same command again")
    shutil.rmtree(os.path.join(folder, ".cache"), ignore_errors=True)  # the client's notes of unfinished files
    return adoption.execute()[0], True


def is_whole(path, size):
    """Returns whether a file has the hub's size and a header that agrees."""
    if not os.path.exists(path) or os.path.getsize(path) != size:
        return False
    try:
        tokens, width = read_shard_header(path)
    except Failure:
        return False
    return HEADER_BYTES + tokens * width == size


def check_others(folder, sizes):
    """Refuses shards in the folder that are not to be fetched: adopt would take them too."""
    if others := sorted(file for file in os.listdir(folder) if file.endswith(".bin") and file not in sizes):
        raise UsageError(f"{folder}: has {', '.join(others[:3])}{', ...' * (len(others) > 3)} beside the shards "
                         "to fetch; name another folder")


def check_same(manifest, count, folder):
    had = sum(shard["split"] == "train" for shard in manifest["shards"])
    if had != count:
        raise UsageError(f"{folder}: is complete with {counted(had, 'shard')} for training, not {count}; remove its "
                         "manifest.json to fetch or leave out some")
