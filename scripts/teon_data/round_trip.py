"""Whether texts can be restored from their tokens: the input's first documents, and texts that are hard to tokenize."""

from .batches import encode_each
from .files import WrongOption, counted
from .token_table import adds_first_blank, decode

SAMPLE_DOCUMENTS = 200
SAMPLE_CHARS = 1 << 18        # of all documents of the sample, and 1/64 of it of one document
ACCEPTED_SHARE = 0.1          # of the sample's documents that may change without --lossy
HARD_TEXTS = (
    "a  b", " begins with a blank", "ends with a blank ", "\ttab\tand\r\nline breaks\n\n\n",
    "    indented:\n        twice",
    "UPPER lower MiXeD",
    "na\u00efve caf\u00e9 cafe\u0301", "\ufb01ne \u2460 \uff21 \u00bd",
    "\u6771\u4eac\u90fd \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f642\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "don't we'll I'D 12,345.67 !?--", "\u201cquoted\u201d \u2014 dash\u2026",
    "<s> </s> <unk> <pad> <|endoftext|> [MASK]", "\u2581 and <0x0A>",
    "\u00a0\u3000\u200b\ufeff", "x" * 300)


def check(tokenizer, documents, lossy, notice):
    """Warns of texts that change, with an example. Raises WrongOption if more than the accepted share of the documents
    changes, unless `lossy`. A tokenizer that gives a special token for a text, or fails, does not change it: such texts
    are left out of the shards."""
    for setting in getattr(tokenizer, "switched_off", []):
        notice(f"the tokenizer's {setting} is switched off: it gives a text other tokens each time")
    table = tokenizer.token_bytes()
    first_blank = adds_first_blank(tokenizer, table)
    special = {tokenizer.delimiter, *tokenizer.special_tokens()}

    def changes(texts):
        """Yields (text, restored text) of the texts that change."""
        for text, tokens in zip(texts, encode_each(tokenizer, texts)):
            if not isinstance(tokens, str) and special.isdisjoint(tokens.tolist()):
                restored = decode(table, first_blank, tokens.tolist())
                if restored != text.encode():
                    yield text, restored.decode(errors="replace")

    changed = list(changes(documents))
    hard = list(changes(HARD_TEXTS))
    if not changed and not hard:
        return
    before, after = example(*(changed or hard)[0])
    share = len(changed) / max(len(documents), 1)
    fault = (f"{len(changed)} of the first {counted(len(documents), 'document')} and {len(hard)} of "
             f"{len(HARD_TEXTS)} hard texts cannot be restored from their tokens, e.g. {before!r} becomes {after!r}")
    if share > ACCEPTED_SHARE and not lossy:
        raise WrongOption(f"{fault}; choose another tokenizer, or accept the loss with --lossy")
    notice(fault)


def example(text, restored):
    """Returns the surroundings of the first difference."""
    at = next((i for i, (a, b) in enumerate(zip(text, restored)) if a != b), min(len(text), len(restored)))
    begin = max(at - 10, 0)
    return text[begin:at + 20], restored[begin:at + 20]


def sample(texts):
    """Returns the first documents of an iterator of texts, as many as a sample has."""
    found, chars = [], 0
    for text in texts:
        text = text[:SAMPLE_CHARS // 64]
        found.append(text)
        chars += len(text)
        if len(found) == SAMPLE_DOCUMENTS or chars >= SAMPLE_CHARS:
            break
    return found
