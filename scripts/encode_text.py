#!/usr/bin/env python3
"""Encodes prompts for the programs, which start it when they need it:  scripts/encode_text.py FOLDER

FOLDER has a tokenizer of prepare.py or of a published model. Each line of standard input is a request in JSON, which
one line answers:

    {"text": "Once"}    {"tokens": [7454]}           the tokens of a text, as prepare.py writes them to shards
    {"table": true}     {"tokens_bin": "88d634..."}  the content of tokens.bin (docs/data.md) in hexadecimal
                        {"error": "one line"}        what is missing or wrong
"""

if __name__ == "__main__":
    from common import startup

    startup.begin()
    from common import use_venv  # noqa: F401

import json
import os
import signal
import sys

from teon_data import token_table
from teon_data import tokenizer as tokenizers
from teon_data.files import first_line


class Answers:
    """The answers for one folder, whose tokenizer is loaded at the first request."""

    def __init__(self, folder):
        self.folder = folder
        self.tokenizer = None

    def answer(self, request):
        try:
            self.tokenizer = self.tokenizer or tokenizers.load_any(self.folder)
            if "text" in request:
                return {"tokens": [int(token) for token in self.tokenizer.encode([request["text"]])[0]]}
            table = self.tokenizer.token_bytes()
            first_blank = token_table.adds_first_blank(self.tokenizer, table)
            return {"tokens_bin": token_table.tokens_bin(table, self.tokenizer.delimiter, first_blank).hex()}
        except BaseException as error:  # the libraries' panics are no Exception
            return {"error": first_line(error)}


def main(folder):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what a library prints is no answer
        answers = Answers(folder)
        for line in sys.stdin.buffer:
            print(json.dumps(answers.answer(json.loads(line))), file=out, flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(startup.exit_code(lambda: main(sys.argv[1])))
