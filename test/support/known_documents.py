"""20 documents whose tokens are known, for the tests of formats: test/scripts/test_writers.py and others.

16 texts of the web and four traps: several scripts with CRLF and a line break at the end, one letter, a text that
spells GPT-2's delimiter, blanks at the end. TOKENS and HASH are of GPT-2's tokens by tiktoken's encode_ordinary, with
the delimiter before each document; the hash is of little-endian uint16.
"""

import hashlib
import json

from testing import DATA

ENGLISH = DATA / "english" / "english_val.jsonl"
DELIMITER = 50256
TOKENS = 12367
HASH = "3c40cc71d465a315"
TRAPS = ["Caf\u00e9 na\u00efve \u2014 \u6771\u4eac\u90fd \U0001f642\r\nsecond line\r\n", "x",
         "before <|endoftext|> after", "two blanks at the end  "]


def documents():
    with open(ENGLISH, encoding="utf-8") as file:
        return [json.loads(next(file))["text"][:4000] for _ in range(16)] + TRAPS


def hash_of(tokens):
    return hashlib.sha256(tokens.astype("<u2").tobytes()).hexdigest()[:16]
