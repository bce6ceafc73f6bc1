"""What a SentencePiece tokenizer.model says beside its pieces: a message of protocol buffers
(github.com/google/sentencepiece, sentencepiece_model.proto), read here without that library."""

import struct

KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces


def fields(data):
    """Yields (number, value) for each field of a message: an integer, or the bytes of anything longer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if size is None else size
        yield key >> 3, data[at:at + size]
        at += size


def sentencepiece_kind(model):
    """Returns "unigram", "bpe", "word" or "char" for the content of a tokenizer.model."""
    trainer = dict(fields(dict(fields(model)).get(2, b"")))
    return KINDS.get(trainer.get(3, 1), "unknown")


class Model:
    """The pieces and settings of the content of a tokenizer.model."""

    def __init__(self, model):
        self.pieces = []  # (text, score, type)
        self.kind = sentencepiece_kind(model)
        normalizer, trainer = {}, {}
        for number, value in fields(model):
            if number == 1:
                piece = dict(fields(value))
                score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
                self.pieces.append((piece[1].decode(), score, piece.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(fields(value))
            elif number == 3:
                normalizer = dict(fields(value))
        self.characters = normalizer.get(2, b"")  # the compiled map of the normalization
        self.first_blank = bool(normalizer.get(3, 1))
        self.removes_blanks = bool(normalizer.get(4, 1))
        self.escapes_blanks = bool(normalizer.get(5, 1))
        self.blank_last = bool(trainer.get(24, 0))
        self.byte_fallback = bool(trainer.get(35, 0))
