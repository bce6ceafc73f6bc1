#!/usr/bin/env python3
"""Converts HellaSwag's questions to tokens for --hellaswag:

    python3 scripts/hellaswag.py hellaswag_val.jsonl --data datasets/fineweb10B --out hellaswag_val.bin

hellaswag_val.jsonl (10,042 questions) is at https://github.com/rowanz/hellaswag, in data/. The tokenizer comes from a
folder made by prepare.py. The layout is llm.c's: 256 int32 (20240522, 1, number of questions, zeros), then for each
question these uint16: 65535, the question's size in bytes, its index, the index of the right ending, the number of
endings, the number of context tokens, the context, and for each ending its length and tokens. As in llm.c, a blank
separates the context from each ending.
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import json
import os
import re
import sys

try:
    import numpy as np
    from common.arguments import Parser
    from common.written_files import check_target, replacing
    from teon_data import tokenizer
    from teon_data.documents import is_unicode
    from teon_data.files import Failure, check_regular
except ImportError as missing:
    sys.exit(f"hellaswag.py: error: {missing}; `make setup` installs it into .venv")

MAGIC, VERSION, BEGINS = 20240522, 1, 65535


def label_of(value):
    """Returns the label, a whole number or its digits. int() would take 1.9 for 1, and True."""
    if type(value) is int or type(value) is str and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    raise ValueError(f"label {str(value)[:20]} is not a whole number")


def question_of(line):
    """Returns (context, endings, index of the right ending) of a line. Raises ValueError with the fault."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object")
    if missing := [key for key in ("ctx", "endings", "label") if key not in row]:
        raise ValueError(f"has no {missing[0]}; a question has ctx, endings and label")
    endings = row["endings"] if isinstance(row["endings"], list) else [None]
    for name, text in (("ctx", row["ctx"]), *((f"ending {i}", text) for i, text in enumerate(endings))):
        if not (isinstance(text, str) and text and is_unicode(text)):
            raise ValueError(f"{name} is not a text")
    label = label_of(row["label"])
    if not 0 <= label < len(endings):
        raise ValueError(f"label {label} is not the number of an ending, from 0 to {len(endings) - 1}")
    return row["ctx"], endings, label


def read_questions(path):
    """Yields (context, endings, index of the right ending) for each line."""
    check_regular(path)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield question_of(line)
            except ValueError as fault:
                raise Failure(f"{path}: line {number} {fault}") from None


def tokens_of(context, endings, encode):
    """Returns the tokens of the context, and a list with each ending's tokens. An ending is encoded together with the
    context, because SentencePiece adds a blank before a separate text. If the ending changes the context's tokens, it
    is encoded separately."""
    start, *whole = encode([context, *(f"{context} {ending}" for ending in endings)])
    cut = len(start)
    return start, [tokens[cut:] if list(tokens[:cut]) == list(start) else encode([" " + ending])[0]
                   for tokens, ending in zip(whole, endings)]


def write_questions(path, questions, encode):
    """Writes llm.c's layout; returns the number of questions."""
    count, stream = 0, []
    for count, (context, endings, label) in enumerate(questions, 1):
        context, endings = tokens_of(context, endings, encode)
        example = [BEGINS, 0, (count - 1) % BEGINS, label, len(endings), len(context), *context]
        for ending in endings:
            example += [len(ending), *ending]
        example[1] = 2 * len(example)
        stream += example
        if len(example) > 32767:
            raise Failure(f"question {count} has {len(example)} numbers, more than the limit of 32767")
    if not count:
        raise Failure("no question in the file")
    with replacing(path, "wb") as file:
        file.write(np.array([MAGIC, VERSION, count], "<i4").tobytes().ljust(1024, b"\0"))
        file.write(np.array(stream, "<u2").tobytes())
    return count


def main():
    parser = Parser(__doc__)
    parser.add_argument("questions", metavar="FILE.jsonl")
    parser.add_argument("--data", required=True, metavar="FOLDER",
                        help="folder made by prepare.py, for its tokenizer")
    parser.add_argument("--out", required=True, metavar="FILE.bin")
    args = parser.parse_args()
    check_target(args.out)
    folder = os.path.join(args.data, "tokenizer")
    if not os.path.isfile(os.path.join(folder, "description.json")):
        raise Failure(f"{args.data}: no tokenizer/description.json; expected a folder made by prepare.py")
    coder = tokenizer.load(folder)
    if coder.vocab_size > BEGINS:
        raise Failure(f"{folder}: {coder.vocab_size} tokens; the file has two bytes for each, so at most {BEGINS}")
    count = write_questions(args.out, read_questions(args.questions), coder.encode)
    print(f"{count:,} questions in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(startup.exit_code(main, {Failure: 1}))
