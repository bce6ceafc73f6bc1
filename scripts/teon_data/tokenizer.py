"""Tokenizers behind one interface, loaded from the folder beside the shards that tokenizer_folder.py makes.

The folder has the tokenizer's own files (vocab.bpe and encoder.json, tokenizer.model, tokenizer.json), description.json
and tokens.bin (token_table.py). Loading a tokenizer imports only its own library, because scripts/encode_text.py does
so for every prompt.
"""

import array
import functools
import json
import os
import re

from .files import Failure, UsageError, first_line, need, read_json

GPT2_DELIMITER = "<|endoftext|>"
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"  # of a text from cut_before_words()
BLANKS = [*range(9, 14), 32, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000]  # \s
MARK = "\x1f"  # begins CUT and END
CUT, END = MARK + "c", MARK + "e"
FILES = ("tokenizer.json", "tokenizer.model")  # use the first that exists in a folder or on the hub
DELIMITER_NAMES = ("<|begin_of_text|>", "<|endoftext|>", "<s>", "<bos>", "[BOS]", "</s>", "<eos>", "[EOS]")


def byte_alphabet():
    """Returns GPT-2's printable character for each byte value, in the order of the single bytes' ids."""
    plain = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class Bytes:
    """Each byte of the text is a token; 256 is the delimiter."""
    cuttable = True

    def __init__(self, folder, description):
        self.vocab_size = 257

    def encode(self, texts):
        return [memoryview(text.encode()) for text in texts]

    def special_tokens(self):
        return []

    def token_bytes(self):
        return [bytes([byte]) for byte in range(256)] + [b""]


class Gpt2:
    """GPT-2's byte-pair encoding, which tiktoken performs with vocab.bpe and encoder.json.

    tiktoken searches a pattern with a condition on what follows 1.6 times as slowly. GPT-2's has one, for blanks: the
    last of several before a word is the word's. So texts are cut before such blanks, by a special token that is removed
    again, and many texts are encoded at a time.
    """
    cuttable = True

    def __init__(self, folder, description):
        self.ranks = gpt2_ranks(folder)
        self.vocab_size = len(self.ranks) + 1
        self.cut, self.end = self.vocab_size, self.vocab_size + 1
        self.encoding = self._encoding(GPT2_WORDS, {CUT: self.cut, END: self.end})

    def _encoding(self, pattern, special):
        tiktoken = need("tiktoken", "the tokenizer gpt2")
        return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=self.ranks, special_tokens=special)

    @functools.cached_property
    def plain(self):
        """As tiktoken has it, for texts with MARK."""
        return self._encoding(GPT2_PATTERN, {GPT2_DELIMITER: self.vocab_size - 1})

    def encode(self, texts):
        import numpy as np  # here, because loading does without
        if any(MARK in text for text in texts):
            return [self.plain.encode_to_numpy(text, disallowed_special=()) for text in texts]
        ids = self.encoding.encode_to_numpy(CUT.join(cut_before_words(END.join(texts))), allowed_special={CUT, END},
                                            disallowed_special=())
        ids = ids[ids != self.cut]
        ends = np.flatnonzero(ids == self.end)
        return [ids[begin:end] for begin, end in zip([0, *(ends + 1)], [*ends, ids.size])]

    def special_tokens(self):
        return []  # besides the delimiter

    def token_bytes(self):
        return sorted(self.ranks, key=self.ranks.get) + [GPT2_DELIMITER.encode()]


@functools.cache
def blanks_table():
    """Returns an array with 1 for the code of each blank, 2 for that of MARK, and 0 for others up to the last one."""
    import numpy as np
    table = np.zeros(max(BLANKS) + 2, np.int8)
    table[BLANKS] = 1
    table[ord(MARK)] = 2
    return table


def cut_before_words(text):
    """Returns the pieces of a text, cut before the last of several blanks unless they end the text or precede MARK."""
    import numpy as np
    table = blanks_table()
    if text.isascii():
        kinds = table[np.frombuffer(text.encode(), np.uint8)]
    else:
        kinds = table[np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), len(table) - 1)]
    blank = kinds == 1
    cuts = (np.flatnonzero(blank[:-2] & blank[1:-1] & (kinds[2:] == 0)) + 1).tolist()
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)])]


def gpt2_ranks(folder):
    """Returns {bytes: id} of the tokens of vocab.bpe. Checks that encoder.json has the same ids."""
    bytes_of = {character: bytes([byte]) for byte, character in byte_alphabet().items()}
    merges, encoder = os.path.join(folder, "vocab.bpe"), os.path.join(folder, "encoder.json")
    try:
        with open(merges, encoding="utf-8") as file:
            for line in filter(None, file.read().split("\n")[1:]):
                first, second = line.split()
                bytes_of[first + second] = bytes_of[first] + bytes_of[second]
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"{merges}: not a vocab.bpe of GPT-2's form ({first_line(error)})") from error
    if read_json(encoder) != {word: rank for rank, word in enumerate([*bytes_of, GPT2_DELIMITER])}:
        raise Failure(f"{encoder}: its ids are not those of vocab.bpe followed by {GPT2_DELIMITER}")
    return {word: rank for rank, word in enumerate(bytes_of.values())}


class SentencePiece:
    """A SentencePiece tokenizer.model, such as LLaMA's."""
    cuttable = False

    def __init__(self, folder, description):
        sentencepiece = need("sentencepiece", "a SentencePiece tokenizer")
        path = os.path.join(folder, "tokenizer.model")
        try:
            self.model = sentencepiece.SentencePieceProcessor(model_file=path)
        except (OSError, RuntimeError) as error:
            raise Failure(f"{path}: not a SentencePiece model ({first_line(error)})") from error
        self.vocab_size = self.model.vocab_size()

    def encode(self, texts):
        return [array.array("I", ids) for ids in self.model.encode(texts, num_threads=1)]

    def find_delimiter(self, folder):
        ids = [i for i in (self.model.bos_id(), self.model.eos_id()) if i >= 0]
        return ids[0] if ids else None

    def id_of(self, text):
        found = self.model.piece_to_id(text)
        return found if self.model.id_to_piece(found) == text else None

    def text_of(self, token):
        return self.model.id_to_piece(token)

    def special_tokens(self):
        return [i for i in range(self.vocab_size) if self.model.is_control(i)]

    def token_bytes(self):
        return [piece_bytes(self.model.id_to_piece(i)) for i in range(self.vocab_size)]


class HuggingFace:
    """A tokenizer.json of the tokenizers library. Text that spells a special token is encoded as ordinary text."""

    def __init__(self, folder, description):
        tokenizers = need("tokenizers", "a tokenizer.json")
        path = os.path.join(folder, "tokenizer.json")
        try:
            self.model = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library raises plain Exception
            raise Failure(f"{path}: not a tokenizer.json ({first_line(error)})") from error
        self.model.encode_special_tokens = True
        self.switched_off = []  # settings that would give the same text other tokens each time
        if getattr(self.model.model, "dropout", None):
            self.switched_off.append(f"dropout {self.model.model.dropout}")
            self.model.model.dropout = None
        self.model.no_truncation()
        self.model.no_padding()
        self.vocab_size = description.get("vocab_size") or max(self.ids.values()) + 1
        self.cuttable = description.get("trained", False)  # a trained tokenizer splits words like GPT-2
        self.encode_batch = getattr(self.model, "encode_batch_fast", self.model.encode_batch)

    @functools.cached_property
    def ids(self):  # which takes half as long as loading, and workers do without
        return self.model.get_vocab(with_added_tokens=True)

    def encode(self, texts):
        return [array.array("I", encoding.ids) for encoding in self.encode_batch(texts, add_special_tokens=False)]

    def find_delimiter(self, folder):
        """Returns the bos or eos token of tokenizer_config.json, or the first token with one of the usual names."""
        names = list(DELIMITER_NAMES)
        config = os.path.join(folder, "tokenizer_config.json")
        if os.path.exists(config):
            tokens = [read_json(config, dict).get(key) for key in ("bos_token", "eos_token")]
            names = [token.get("content") if isinstance(token, dict) else token for token in tokens] + names
        return next((self.ids[name] for name in names if isinstance(name, str) and name in self.ids), None)

    def id_of(self, text):
        return self.ids.get(text)

    def text_of(self, token):
        return self.model.id_to_token(token)

    def special_tokens(self):
        model = self.model.model  # its JSON takes as long as loading it, and only Unigram's has what is needed
        unknown = json.loads(model.__getstate__()).get("unk_id") if not hasattr(model, "unk_token") else (
            model.unk_token and self.model.token_to_id(model.unk_token))  # stands for text
        return [token for token, added in self.model.get_added_tokens_decoder().items()
                if added.special and token != unknown]

    @functools.cache  # noqa: B019
    def token_bytes(self):
        decoder = json.dumps(json.loads(self.model.decoder.__getstate__()) if self.model.decoder else None,
                             ensure_ascii=False)
        if lossy := re.search('"type": "(WordPiece|BPEDecoder|CTC)"', decoder):
            raise UsageError(f"--tokenizer: the decoder {lossy[1]} of this tokenizer.json joins tokens to words, so a "
                             "token has no bytes of its own; use a byte-level or a SentencePiece tokenizer")
        byte_level, blanks = "ByteLevel" in decoder, "\u2581" in decoder
        added = self.model.get_added_tokens_decoder()
        table = [b""] * self.vocab_size
        for text, token in self.ids.items():
            table[token] = (spelled_bytes(text) if byte_level else None) or piece_bytes(text)
        for token, text in added.items():
            if text.special or not blanks:
                table[token] = text.content.encode()
        return table


# For str.translate: a character of the byte alphabet to the one whose code is its byte, others below 256 to none such.
BYTE_CODES = dict.fromkeys(range(256), 0xffff) | {ord(character): byte for byte, character in byte_alphabet().items()}


def spelled_bytes(text):
    """Returns the bytes that characters of the byte alphabet spell, None if there are others."""
    try:
        return text.translate(BYTE_CODES).encode("latin-1")
    except UnicodeEncodeError:
        return None


def piece_bytes(piece):
    """Returns the bytes of a SentencePiece piece: <0x0A> is a byte, U+2581 a blank."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("\u2581", " ").encode()


KINDS = {"bytes": Bytes, "gpt2": Gpt2, "sentencepiece": SentencePiece, "huggingface": HuggingFace}
LIBRARIES = {"bytes": None, "gpt2": "tiktoken", "sentencepiece": "sentencepiece", "huggingface": "tokenizers"}


def load_any(folder):
    """Loads the tokenizer from a folder made by `create` or from a published model's. Its delimiter may be -1."""
    if os.path.exists(os.path.join(folder, "description.json")):
        return load(folder)
    file = next((file for file in FILES if os.path.isfile(os.path.join(folder, file))), None)
    if file is None:
        raise Failure(f"{folder}: has no description.json, {' or '.join(FILES)}")
    tokenizer = (HuggingFace if file == "tokenizer.json" else SentencePiece)(folder, {})
    delimiter = tokenizer.find_delimiter(folder)
    tokenizer.delimiter = -1 if delimiter is None else delimiter
    return tokenizer


def load(folder):
    """Loads the tokenizer from a folder made by `create`. It has the attributes vocab_size, delimiter and cuttable.

    encode(texts) returns an array of ids for each text, without delimiters.
    """
    path = os.path.join(folder, "description.json")
    description = read_json(path, {"kind": str, "delimiter": int})
    if description["kind"] not in KINDS:
        raise Failure(f"{path}: is damaged: '{description['kind']}' is not a kind of tokenizer")
    tokenizer = KINDS[description["kind"]](folder, description)
    tokenizer.delimiter = description["delimiter"]
    return tokenizer
