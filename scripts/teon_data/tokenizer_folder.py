"""Makes the folder beside the shards with a tokenizer's files, from local files, the hub or by training."""

import contextlib
import json
import os
import re
import shutil

from common.written_files import sync_folder, writing

from .files import (
    HUB_NAME,
    Failure,
    UsageError,
    failing_as,
    hub_client,
    need,
    sha256_file,
    write_json,
)
from .token_table import LONGEST_OF_VERSION_2, adds_first_blank, identity, tokens_bin
from .tokenizer import FILES, GPT2_DELIMITER, KINDS, LIBRARIES

GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
GPT2_FILES = {"vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
              "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"}
LLAMA2 = "hf:NousResearch/Llama-2-7b-hf"  # the official repository requires a registration
MOST_IDS = 1 << 22  # of the engine's reader (data/tokenizer.cpp)


def check_name(name, bpe_dir, delimiter):
    """Raises UsageError for a wrong name of a tokenizer, before any work is done."""
    if name.startswith("train:"):
        if not re.fullmatch(r"train:[0-9]{1,8}", name) or not 257 <= int(name[6:]) <= MOST_IDS:
            raise UsageError(f"--tokenizer {name}: a vocabulary has 257 to {MOST_IDS} ids, as in train:8192")
    elif name not in ("gpt2", "bytes", "llama2"):
        if name.startswith("hf:"):
            if not (match := HUB_NAME.fullmatch(name)) or match["rest"]:
                raise UsageError(f"--tokenizer {name}: expected hf:OWNER/NAME")
        elif os.path.isdir(name):
            if not any(os.path.isfile(os.path.join(name, file)) for file in FILES):
                raise UsageError(f"--tokenizer {name}: no {' or '.join(FILES)} in this folder")
        elif os.path.isfile(name) and is_tiktoken(name):
            raise UsageError(f"--tokenizer {name}: is tiktoken's file of ranks, which lacks the pattern that divides a "
                             "text into words; give the model's tokenizer.json, as in --tokenizer hf:OWNER/NAME")
        elif not name.endswith((".model", ".json")):
            raise UsageError(f"--tokenizer {name}: expected gpt2, llama2, bytes, train:SIZE, hf:OWNER/NAME, or the "
                             "path of a tokenizer.model, a tokenizer.json or a folder with one of them")
        elif not os.path.isfile(name):
            raise UsageError(f"--tokenizer {name}: no such file")
    if bpe_dir and name != "gpt2":
        raise UsageError(f"--bpe-dir is for the tokenizer gpt2, not {name}")
    if delimiter is not None and (name in ("gpt2", "bytes") or name.startswith("train:")):
        raise UsageError(f"--delimiter cannot be set for the tokenizer {name}, which has its own")


def is_tiktoken(path):
    """Returns whether a file has lines of tokens in base 64 with their ranks, as Llama 3's tokenizer.model."""
    with open(path, "rb") as file:
        return bool(re.fullmatch(rb"[A-Za-z0-9+/]+=* [0-9]+\s*", file.readline(1000)))


def create(folder, name, bpe_dir, delimiter, texts):
    """Creates `folder`, which must not exist, with the tokenizer `name` and returns its description."""
    return create_and_load(folder, name, bpe_dir, delimiter, texts)[0]


def create_and_load(folder, name, bpe_dir, delimiter, texts):
    """Does the same and returns (description, the loaded tokenizer): a large one takes a second to load.

    `texts` are the training texts of train:SIZE. After a crash the folder does not exist.
    """
    staged = folder + ".staged"
    origins = {}  # the user's path of a copied file, for messages
    shutil.rmtree(staged, ignore_errors=True)
    os.makedirs(staged)
    description = {"name": name}
    if name == "bytes":
        kind = "bytes"
    elif name == "gpt2":
        kind = "gpt2"
        fetch_gpt2(staged, bpe_dir)
        origins = {file: os.path.join(bpe_dir, file) for file in GPT2_FILES} if bpe_dir else {}
    elif name.startswith("train:"):
        kind = "huggingface"
        description["trained"] = True
        train(os.path.join(staged, "tokenizer.json"), int(name[6:]), texts)
    else:
        if name == "llama2" or name.startswith("hf:"):
            description["revision"], path = fetch_hub(name)
        else:
            path = next(p for p in (name, *(os.path.join(name, file) for file in FILES)) if os.path.isfile(p))
        kind = "huggingface" if path.endswith(".json") else "sentencepiece"
        file = FILES[kind == "sentencepiece"]
        shutil.copyfile(path, os.path.join(staged, file))
        origins[file] = path
        config = os.path.join(os.path.dirname(path), "tokenizer_config.json")
        if kind == "huggingface" and os.path.exists(config):
            shutil.copyfile(config, os.path.join(staged, "tokenizer_config.json"))
            origins["tokenizer_config.json"] = config

    if kind == "sentencepiece":
        description["huggingface"] = write_converted(staged)
    from importlib.metadata import version  # here, because it takes longer than the rest to import
    with naming(staged, origins):
        tokenizer = KINDS[kind](staged, description)
    if tokenizer.vocab_size > MOST_IDS:
        raise UsageError(f"--tokenizer {name}: its largest id is {tokenizer.vocab_size - 1}; the training programs "
                         f"read ids below {MOST_IDS}")
    library = LIBRARIES[kind]
    description |= {"kind": kind, "vocab_size": tokenizer.vocab_size,
                    "library": f"{library} {version(library)}" if library else "built in"}
    if kind in ("bytes", "gpt2"):
        description |= {"delimiter": tokenizer.vocab_size - 1,
                        "delimiter_text": GPT2_DELIMITER if kind == "gpt2" else "no byte"}
    else:
        with naming(staged, origins):
            token = choose_delimiter(tokenizer, name, staged, delimiter)
        description |= {"delimiter": token, "delimiter_text": tokenizer.text_of(token)}
    table = tokenizer.token_bytes()
    with writing(os.path.join(staged, "tokens.bin"), "wb") as file:
        file.write(tokens_bin(table, description["delimiter"], adds_first_blank(tokenizer, table)))
    description["identity"] = identity(table, description["delimiter"])
    description["files"] = {file: sha256_file(os.path.join(staged, file)) for file in sorted(os.listdir(staged))}
    write_json(os.path.join(staged, "description.json"), description)
    for file in os.listdir(staged):
        with writing(os.path.join(staged, file), "rb") as copied:
            os.fsync(copied.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(staged, folder)
    sync_folder(os.path.dirname(folder))
    tokenizer.delimiter = description["delimiter"]
    return description, tokenizer


@contextlib.contextmanager
def naming(staged, origins):
    """Names the user's files in a Failure, not their copies."""
    try:
        yield
    except Failure as fault:
        text = str(fault)
        for file, path in origins.items():
            text = text.replace(os.path.join(staged, file), path)
        raise Failure(text) from fault


def write_converted(folder):
    """Writes huggingface.json, the SentencePiece tokenizer of the folder as a tokenizer.json, and returns its name, or
    None if it cannot be expressed as one or the library for it is missing."""
    from .huggingface_export import tokenizer_json  # here, because prompts do not need it
    try:
        converted = tokenizer_json(os.path.join(folder, "tokenizer.model"))
    except Failure:
        return None
    if converted is None:
        return None
    with writing(os.path.join(folder, "huggingface.json"), "w") as file:
        json.dump(converted, file, ensure_ascii=False)
    return "huggingface.json"


def choose_delimiter(tokenizer, name, folder, delimiter):
    """Returns the id of --delimiter, given as a token's text or id, or the tokenizer's own delimiter."""
    if delimiter is None:
        token = tokenizer.find_delimiter(folder)
        if token is None:
            raise UsageError(f"{name}: no known token begins or ends documents; name one with --delimiter")
        return token
    token = tokenizer.id_of(delimiter)
    if token is None and re.fullmatch("[0-9]{1,10}", delimiter) and int(delimiter) < tokenizer.vocab_size:
        token = int(delimiter)
    if token is None:
        raise UsageError(f"--delimiter {delimiter}: {name} has no such token")
    return token


def fetch_gpt2(folder, bpe_dir):
    """Copies vocab.bpe and encoder.json to `folder` from `bpe_dir`, or downloads them from tiktoken's source."""
    for file, digest in GPT2_FILES.items():
        target = os.path.join(folder, file)
        if bpe_dir:
            source = os.path.join(bpe_dir, file)
            if not os.path.isfile(source):
                raise UsageError(f"--bpe-dir {bpe_dir}: {file} is missing (vocab.bpe and encoder.json are needed)")
            shutil.copyfile(source, target)
            continue
        load_module = need("tiktoken.load", "the tokenizer gpt2")
        with failing_as(f"download {GPT2_URL}{file}",
                        "; without a network, copy vocab.bpe and encoder.json here and use --bpe-dir FOLDER"):
            data = load_module.read_file_cached(GPT2_URL + file, digest)
        with writing(target, "wb") as out:
            out.write(data)


def fetch_hub(name):
    """Returns (commit, local path of the tokenizer.json or tokenizer.model) of hf:OWNER/NAME or llama2. Downloads the
    repository's tokenizer_config.json, if any, to the same folder."""
    repository = HUB_NAME.fullmatch(LLAMA2 if name == "llama2" else name)["repository"]
    hub = hub_client(f"the tokenizer {name}")
    with failing_as(f"download the tokenizer of {repository}", "; without a network, copy its tokenizer.json or "
                    "tokenizer.model here and use --tokenizer PATH"):
        info = hub.HfApi().repo_info(repository)
        there = {file.rfilename for file in info.siblings or () if isinstance(file.rfilename, str)}
        wanted = [file for file in (FILES if name != "llama2" else FILES[1:]) if file in there][:1]
        paths = [hub.hf_hub_download(repository, file, revision=info.sha)
                 for file in (*wanted, "tokenizer_config.json") if file in there]
    if not wanted:
        raise UsageError(f"--tokenizer {name}: no {' or '.join(FILES)} in {repository}")
    return info.sha, paths[0]


def train(path, size, texts):
    """Trains a byte-level BPE of at most `size` ids, including the delimiter, and saves it as a tokenizer.json."""
    tokenizers = need("tokenizers", "training a tokenizer")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[GPT2_DELIMITER], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), max_token_length=LONGEST_OF_VERSION_2)
    model.train_from_iterator(texts, trainer)
    model.save(path)
