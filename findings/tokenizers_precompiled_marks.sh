#!/bin/bash
# Guess: tokenizers' Precompiled normalizer, which holds the table of a SentencePiece model (T5, XLM-R, ...), normalizes
#        as SentencePiece does with that table.
# Seen:  it looks characters up cluster by cluster and takes the shortest entry instead of the longest: of a letter with
#        two marks the second is lost (decomposed Vietnamese, as macOS writes names), of half-width katakana the voice
#        mark stays apart, decomposed Hangul is not joined. The tokens differ and no error says so.
# Known: tokenizers 0.23.3 beside sentencepiece 0.2.3 (2026-11); earlier ones not run. Found by comparing 20 kinds of
#        exported tokenizers with the originals on random texts.
. "$(dirname "$0")/lib.sh"
packages protobuf==7.36.2 sentencepiece==0.2.3 tokenizers==0.23.3
prints "e + dot below + circumflex: sentencepiece U+1EC7, tokenizers U+1EB9
o + circumflex + acute: sentencepiece U+1ED1, tokenizers U+F4
half-width ka + voice mark: sentencepiece U+30AC, tokenizers U+30AB U+3099
decomposed han: sentencepiece U+D55C, tokenizers U+1112 U+1161 U+11AB
one mark, e + dot below: sentencepiece U+1EB9, tokenizers U+1EB9" python - <<'END'
import io

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import normalizers

file = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["the cat sat on the mat and other cats"] * 20),
                                         model_writer=file, vocab_size=30, model_type="bpe", minloglevel=2)
model = sentencepiece_model_pb2.ModelProto()
model.ParseFromString(file.getvalue())
theirs = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
copy = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)


def codes(text):
    return " ".join(f"U+{ord(character):X}" for character in text)


for what, text in (("e + dot below + circumflex", "e\u0323\u0302"), ("o + circumflex + acute", "o\u0302\u0301"),
                   ("half-width ka + voice mark", "\uff76\uff9e"), ("decomposed han", "\u1112\u1161\u11ab"),
                   ("one mark, e + dot below", "e\u0323")):
    print(f"{what}: sentencepiece {codes(theirs.normalize(text)[1:])}, tokenizers {codes(copy.normalize_str(text))}")
END
