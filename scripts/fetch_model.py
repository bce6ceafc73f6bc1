#!/usr/bin/env python3
"""Fetches a published model from the Hugging Face Hub, or finds it in the hub's cache:

    scripts/fetch_model.py hf:openai-community/gpt2             hf:OWNER/NAME:REVISION for another revision than main

Prints one line of JSON: {"folder": "..."} with config.json, weights and tokenizer, or {"error": "one line"}. The
programs run it for --init-from hf:OWNER/NAME and --checkpoint hf:OWNER/NAME. A model that has only pytorch_model.bin is
converted once, to model.safetensors in a folder of the hub's cache; nothing that the file contains is executed.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import json
import os
import pathlib
import sys

from teon_data.files import HUB_NAME, Failure, UsageError, failing_as, first_line, hub_client, need, read_json

SETTINGS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
            "special_tokens_map.json", "vocab.json", "merges.txt"]
WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
PICKLED = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]


def fetch(name):
    """Returns the folder of the model hf:OWNER/NAME or hf:OWNER/NAME:REVISION."""
    match = HUB_NAME.fullmatch(name)
    if not match or match["rest"].count(":") > 1:
        raise UsageError(f"{name}: expected hf:OWNER/NAME or hf:OWNER/NAME:REVISION")
    hub = hub_client(f"the model {name}")
    where = {"repo_id": match["repository"], "revision": match["rest"][1:] or None}
    with failing_as(f"fetch {name}", "; without a network, give the path of a folder with config.json and "
                    "model.safetensors"):
        folder = pathlib.Path(hub.snapshot_download(**where, allow_patterns=SETTINGS + WEIGHTS))
        if not any(folder.glob("*.safetensors")):
            folder = pathlib.Path(hub.snapshot_download(**where, allow_patterns=SETTINGS + PICKLED))
    if any(folder.glob("*.safetensors")):
        return folder
    if not any(folder.glob("pytorch_model*.bin")):
        raise Failure(f"{name}: has neither model.safetensors nor pytorch_model.bin")
    return converted(folder, pathlib.Path(hub.constants.HF_HUB_CACHE) / "converted-by-teon")


def converted(folder, cache):
    """Returns a folder with the files of a snapshot and its pytorch_model.bin as model.safetensors."""
    torch = need("torch", f"converting {folder.parent.parent.name}'s pytorch_model.bin")
    save_file = need("safetensors.torch", "converting pytorch_model.bin").save_file
    target = cache / folder.parent.parent.name / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*"):
        link = target / path.name
        if path.name in SETTINGS and not link.exists():
            link.symlink_to(path.resolve())
    weights = target / "model.safetensors"
    if weights.exists():
        return target
    index = folder / "pytorch_model.bin.index.json"
    files = sorted(set(read_json(str(index), dict)["weight_map"].values())) if index.exists() else ["pytorch_model.bin"]
    tensors = {}
    for file in files:
        try:
            loaded = torch.load(folder / file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch and pickle raise many kinds
            raise Failure(f"{folder / file}: is damaged or holds more than tensors ({first_line(error)})") from error
        # A copy, because safetensors refuses tensors that share memory. Masks and counters are no weights.
        tensors |= {name: tensor.clone().contiguous() for name, tensor in loaded.items() if tensor.is_floating_point()}
    staged = target / f"model.{os.getpid()}.staged"
    save_file(tensors, staged, metadata={"format": "pt"})
    with open(staged, "rb") as file:
        os.fsync(file.fileno())
    staged.rename(weights)
    return target


def main(name):
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        answer = {"folder": str(fetch(name))}
    except (Failure, UsageError, OSError) as error:
        answer = {"error": first_line(error)}
    print(json.dumps(answer), file=out, flush=True)
    return "error" in answer


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(startup.exit_code(lambda: main(sys.argv[1])))
