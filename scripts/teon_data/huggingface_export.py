"""A SentencePiece tokenizer as a tokenizer.json of the tokenizers library, for exported checkpoints.

transformers takes every tokenizer.model of a LLaMA for a BPE, and gives other tokens for the other kinds. Here each
kind is expressed by the library's own parts; a conversion that gives other tokens for a text of CHECKED is not written.
"""

import base64
import json
import re

from .files import need
from .sentencepiece_model import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Model

BLANK, END = "\u2581", "\ue000"  # END: ends each word of a word model; of the private use area
CHECKED = ("", " ", "a", " a", "a  b ", "The cat sat on the mat.", "naïve café", "数据 и текст", "🙂🙂 x", "\tx\n\ny ",
           "x\r\ny", "½ ﬁ Ａ", "don't 1234567 3.14", "zqxjk wvzq", "a\u200bb", "e\u0301", "e\u0323\u0302", "\u2581x",
           "ÄÖÜ ß", "def f(x):\n    return x\n", "\ufffd\u030b", "....!!!???", "x" * 50, "the the  the")


def tokenizer_json(path):
    """Returns the content of a tokenizer.json for a tokenizer.model, or None if the library cannot express it."""
    sentencepiece = need("sentencepiece", "a SentencePiece tokenizer")
    tokenizers = need("tokenizers", "exporting a SentencePiece tokenizer")
    with open(path, "rb") as file:
        content = file.read()
    model = Model(content)
    convert = {"unigram": unigram, "char": unigram, "word": word, "bpe": bpe}.get(model.kind)
    plain = {NORMAL, UNKNOWN, CONTROL, BYTE, USER_DEFINED}
    if convert is None or model.blank_last or not model.escapes_blanks or {kind for *_, kind in model.pieces} - plain:
        return None
    unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
    if unknown is None:
        return None
    result = {"version": "1.0", "added_tokens": special_tokens(model),
              "normalizer": {"type": "Sequence", "normalizers": normalizers(model)},
              "decoder": decoder(model), "model": convert(model, unknown)}
    symbols = [text for text, _, kind in model.pieces if kind == USER_DEFINED]
    if symbols and model.kind != "word":  # whose words hide them
        longest_first = sorted(map(re.escape, symbols), key=len, reverse=True)
        result["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "|".join(longest_first)},
                                   "behavior": "Isolated", "invert": False}
    if model.kind == "word":
        result["normalizer"]["normalizers"].append(
            {"type": "Replace", "pattern": {"Regex": f"(?<=[\\s\\S])(?={BLANK}|\\z)"}, "content": END})
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    try:
        converted = tokenizers.Tokenizer.from_str(json.dumps(result))
    except Exception:  # the library raises plain Exception
        return None
    checked = [*CHECKED, *(before + symbol + behind for symbol in symbols for before in ("", "x ", symbol)
                           for behind in ("", " x", "s"))]
    if symbols:  # a piece between two of them is a word, too
        checked += [symbols[0] + text.replace(BLANK, " ") for text, _, kind in model.pieces if kind == NORMAL]
    if any(library.encode(text) != converted.encode(text, add_special_tokens=False).ids for text in checked):
        return None
    return result


def special_tokens(model):
    return [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i, (text, _, kind) in enumerate(model.pieces) if kind in (CONTROL, UNKNOWN)]


def normalizers(model):
    """SentencePiece's normalization in its order: characters, blanks, the blank in front, and blanks' own character."""
    steps = []
    if model.characters:
        # The library's Precompiled replaces the shortest match of a letter with several marks, SentencePiece the
        # longest; composed letters have one match.
        steps.append({"type": "NFC"})
        # Precompiled loses a mark after a character that becomes a blank, which only this one can be.
        tokenizers = need("tokenizers", "exporting a SentencePiece tokenizer")
        if tokenizers.normalizers.Precompiled(model.characters).normalize_str("\ufffd") == " ":
            steps.append({"type": "Replace", "pattern": {"String": "\ufffd"}, "content": " "})
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.characters).decode()})
    if model.removes_blanks:
        steps += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                  {"type": "Strip", "strip_left": True, "strip_right": True}]
    if model.first_blank:
        steps.append({"type": "Prepend", "prepend": BLANK})
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]


def decoder(model):
    steps = [{"type": "Replace", "pattern": {"String": BLANK}, "content": " "}]
    if model.kind == "word":
        steps.append({"type": "Replace", "pattern": {"String": END}, "content": ""})
    steps += [{"type": "ByteFallback"}] * model.byte_fallback + [{"type": "Fuse"}]
    if model.first_blank:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def unigram(model, unknown):
    """The library's Unigram has SentencePiece's penalty for unknown characters and joins them likewise. Control pieces
    get a score that no text reaches. A char model has one way to divide a text, so its scores do not matter."""
    scores = [score for _, score, kind in model.pieces if kind == NORMAL] or [0.0]
    least, most = min(scores), max(scores)
    vocabulary = []
    for text, score, kind in model.pieces:
        if kind == USER_DEFINED:  # SentencePiece prefers these to everything else
            score = len(text) * most - 0.1
        vocabulary.append([text, score if kind in (NORMAL, USER_DEFINED) else 2 * least - 1000.0])
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": model.byte_fallback}


def word(model, unknown):
    """Words are looked up whole, and neighbouring unknown words become one token: a Unigram whose pieces are words with
    an end, so that no piece matches within a word."""
    vocabulary = [[text + END if kind in (NORMAL, USER_DEFINED) else text, 0.0 if kind == NORMAL else -1000.0]
                  for text, _, kind in model.pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": False}


def bpe(model, unknown):
    """A merge for each division of a piece into two pieces, the best piece's first. User-defined symbols, which stand
    apart, are words that need no merges (ignore_merges)."""
    ids = {text: i for i, (text, _, kind) in enumerate(model.pieces)}
    merges = []
    for text, score, kind in model.pieces:
        if kind == NORMAL:
            pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
            known = [(ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids]
            merges += [(-score, *pair) for pair in sorted(known)]
    merges.sort(key=lambda merge: merge[0])
    return {"type": "BPE", "dropout": None, "unk_token": model.pieces[unknown][0], "fuse_unk": True,
            "byte_fallback": model.byte_fallback, "vocab": ids, "merges": [[a, b] for *_, a, b in merges],
            "ignore_merges": any(kind == USER_DEFINED for *_, kind in model.pieces)}
