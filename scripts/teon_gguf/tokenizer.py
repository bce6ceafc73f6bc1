"""A checkpoint's tokenizer as llama.cpp has it. One that would give other tokens there is refused with the reason."""

import json
from typing import NamedTuple

from teon_data.files import Failure, UsageError, read_json
from teon_data.sentencepiece_model import CONTROL, NORMAL, UNUSED, USER_DEFINED, Model  # the types are llama.cpp's, too

# What divides texts into words in a tokenizer.json, and llama.cpp's name of it: regular expressions before the byte
# alphabet ("gpt2": GPT-2's own; "digits": each digit alone), and whether words that are tokens skip the merges.
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORDS = {("gpt2", False): "gpt-2",
         (CL100K, True): "llama-bpe",
         (CL100K, False): "dbrx",
         (CL100K.replace("{1,3}", ""), False): "qwen2",
         ("digits gpt2", False): "smollm"}


class Vocabulary(NamedTuple):
    model: str  # llama.cpp's tokenizer: "gpt2" for a BPE of bytes, "llama" for a SentencePiece BPE
    words: str  # how it divides texts into words: a value of WORDS
    pieces: list  # (text, score, type) of each token
    first_blank: bool  # a blank goes before each text
    notes: list  # on what differs in llama.cpp


def word_pattern(splitter):
    """Returns the key of WORDS for the pre_tokenizer of a tokenizer.json; None for one that is unknown."""
    parts = splitter.get("pretokenizers", [splitter]) if splitter else []
    patterns = []
    for part in parts:
        if part["type"] == "ByteLevel":
            if part.get("add_prefix_space", True) or part is not parts[-1]:
                return None
            patterns += ["gpt2"] * part.get("use_regex", True)
        elif part["type"] == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
            patterns.append(part["pattern"].get("Regex"))
        elif part == {"type": "Digits", "individual_digits": True}:
            patterns.append("digits")
        else:
            return None
    return " ".join(map(str, patterns))


def byte_level(path, vocab_size):
    """Returns the Vocabulary of a tokenizer.json."""
    library = read_json(str(path), dict)
    model = library["model"]
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        raise Failure(f"{path}: llama.cpp reads a BPE of bytes, or a SentencePiece BPE's tokenizer.model, but this is "
                      f"{'a BPE of SentencePiece' if model.get('byte_fallback') else 'of the kind ' + model['type']}")
    words = word_pattern(library.get("pre_tokenizer"))
    pre = WORDS.get((words, bool(model.get("ignore_merges"))))
    if not pre:
        raise Failure(f"{path}: llama.cpp has no such division of texts into words: "
                      f"{json.dumps(library.get('pre_tokenizer'), ensure_ascii=False)[:300]}")
    normalizer = library.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        raise Failure(f"{path}: llama.cpp does not normalize texts, but this does: {json.dumps(normalizer)[:300]}")
    if any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        raise Failure(f"{path}: a BPE with dropout, prefixes or suffixes, which llama.cpp does not have")
    pieces = {token: (text, None, NORMAL) for text, token in model["vocab"].items()}
    for added in library["added_tokens"]:
        pieces[added["id"]] = (added["content"], None, CONTROL if added["special"] else USER_DEFINED)
    notes = ["texts that are not in Unicode's form NFC get other tokens in llama.cpp"] * (normalizer is not None)
    return Vocabulary("gpt2", pre, padded(path, pieces, vocab_size), False, notes)


def padded(path, pieces, vocab_size):
    """Returns (text, score, type) of each token from {token: ...}. Raises Failure if the model has fewer tokens."""
    if max(pieces) >= vocab_size:
        raise Failure(f"{path}: has the token {max(pieces)}, but the model has {vocab_size} tokens")
    return [pieces.get(i, (f"[PAD{i}]", -10000.0, UNUSED)) for i in range(vocab_size)]


def sentencepiece_fault(model):
    """Returns why llama.cpp would give other tokens than this SentencePiece model, or ""."""
    if model.kind != "bpe":
        return f"of the kind {model.kind}, which llama.cpp would read as a BPE"
    if model.characters or model.removes_blanks:
        return "which normalizes texts (normalization_rule_name, remove_extra_whitespaces); llama.cpp does not"
    if not model.byte_fallback:
        return "without byte_fallback, so that llama.cpp fails for characters that no piece has"
    if model.first_blank and any(kind == USER_DEFINED for *_, kind in model.pieces):
        return "with user_defined_symbols and add_dummy_prefix; llama.cpp puts that blank behind each symbol, too"
    if model.blank_last or not model.escapes_blanks:
        return "with blanks in a form that llama.cpp does not have"
    return ""


def sentencepiece(path, vocab_size):
    """Returns the Vocabulary of a tokenizer.model."""
    model = Model(path.read_bytes())
    if fault := sentencepiece_fault(model):
        raise Failure(f"{path}: is a SentencePiece model {fault}")
    pieces = padded(path, dict(enumerate(model.pieces)), vocab_size)
    return Vocabulary("llama", "default", pieces, model.first_blank, [])


def vocabulary_of(checkpoint, vocab_size):
    """Returns the Vocabulary of a checkpoint."""
    for name, read in (("tokenizer.model", sentencepiece), ("tokenizer.json", byte_level)):
        if (checkpoint / name).is_file():
            return read(checkpoint / name, vocab_size)
    raise UsageError(f"{checkpoint}: has no tokenizer that llama.cpp could read (tokenizer.model, tokenizer.json)")
