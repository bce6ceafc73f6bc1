"""Small tokenizers of the forms that are published, and texts that are hard to tokenize."""

import json
import random

TEXTS = 500
# Of Meta's tokenizer.py.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
WORDS = ["the", "cat", "sat", "don't", "WE'LL", "naïve", "cafe\u0301", "数据", "東京都", "🙂", "👍🏽", "हिन्दी",
         "العربية", "ไทย", "42",
         "3.14159", "1,000,000", "½", "ﬁne", "Ａ", "①", "\t", "\n", "\n\n", "\r\n", "  ", "    ", "\u00a0", "\u3000",
         "\u200b", "▁", "<0x0A>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "[MASK]", "<mask>", "{", "}",
         "return", "==", "!?", "…", "“q”", "x" * 40, "\\", "\"", "e\u0323\u0302", "\U00010348", "-", "_", "'"]


def hard_texts(seed=7, words=WORDS):
    draw = random.Random(seed)
    texts = ["".join(word + draw.choice(["", " ", " ", "\n"]) for word in draw.choices(words, k=draw.randint(1, 30)))
             for _ in range(TEXTS - 103)]
    texts += [draw.randbytes(draw.randint(1, 40)).decode(errors="replace") for _ in range(100)]
    return texts + [" a", "a ", "  begins and ends with blanks  "]


def corpus():
    # Without x...x, which has many divisions of equal probability: the libraries choose another one of them.
    plain = [word for word in WORDS
             if not word.startswith(("<", "[")) and word.strip() and "▁" not in word and "xx" not in word]
    draw = random.Random(3)
    return [" ".join(draw.choices(plain, k=30)) for _ in range(400)]


def byte_level(pattern=None, size=600, special=("<|endoftext|>",), added=(), ignore_merges=False, prefix=False,
               texts=None):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    model = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None)
    model.pre_tokenizer = level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(part), "isolated") for part in pattern] + [level])
    model.decoder = decoders.ByteLevel()
    model.train_from_iterator(texts or corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model.add_special_tokens(list(special))
    model.add_tokens([AddedToken(text, normalized=False) for text in added])
    return model


def metaspace_bpe():
    """Llama 2's form in tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    letters = sorted(set("".join(corpus())) | {"\u2581"})[:200]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trained.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=letters, limit_alphabet=200,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]))
    content = json.loads(trained.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    model = Tokenizer.from_str(json.dumps(content))
    model.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    return model


def unigram(normalizer=None, fallback=False):
    """T5's and ALBERT's form in tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    model = Tokenizer(models.Unigram())
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=400, show_progress=False, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>", "<s>"]))
    model.decoder = decoders.Metaspace()
    if normalizer:
        model.normalizer = normalizer
    return model


def without_type(model):
    """The published GPT-2's form: the file does not name its model."""
    content = json.loads(model.to_str())
    del content["model"]["type"]
    return json.dumps(content)


def word_level():
    from tokenizers import Tokenizer, models, pre_tokenizers
    model = Tokenizer(models.WordLevel({"[UNK]": 0, **{word: i + 2 for i, word in enumerate(WORDS[:8])}, "<s>": 1},
                                       unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return model


def gemma():
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    words = ["<bos>", "<unk>", "\u2581\u2581", "\u2581", *sorted(set("".join(WORDS)) - {" ", "\u2581"})]
    model = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", fuse_unk=True))
    model.normalizer = normalizers.Replace(" ", "\u2581")
    model.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    model.add_special_tokens(["<bos>"])
    model.add_tokens([AddedToken("\u2581\u2581", normalized=True)])
    return model


def sentencepiece_model(kind, **options):
    import io

    import sentencepiece
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=out, model_type=kind,
                                             vocab_size=450, hard_vocab_limit=False, minloglevel=2, **options)
    return out.getvalue()


def kinds():
    """Returns {name: function that makes a tokenizers.Tokenizer, its JSON, or the bytes of a SentencePiece model}."""
    deepseek = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥]+", r"\p{N}"]
    blanks = [" " * n for n in range(2, 20)]
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    from tokenizers import normalizers
    return {
        "GPT-2 without type": lambda: without_type(byte_level()),
        "GPT-NeoX": lambda: byte_level(added=blanks, special=("<|endoftext|>", "<|padding|>")),
        "Llama 3": lambda: byte_level([LLAMA3], ignore_merges=True,
                                      special=("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>")),
        "Qwen": lambda: byte_level([QWEN], special=("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "DeepSeek": lambda: byte_level(deepseek, special=("<s>", "</s>")),
        "Phi and CodeGen": lambda: byte_level(added=[*blanks, "\t\t", "\t\t\t"]),
        "RoBERTa": lambda: byte_level(special=("<s>", "</s>", "<mask>"), prefix=True),
        "Llama 2 as JSON": metaspace_bpe,
        "T5": unigram,
        "ALBERT": lambda: unigram(normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])),
        "Gemma": gemma,
        "words": word_level,
        "Llama 2": lambda: sentencepiece_model("bpe", byte_fallback=True, split_digits=True, **plain),
        "Mistral": lambda: sentencepiece_model("bpe", byte_fallback=True, user_defined_symbols=["<mask>"], **plain),
        "BPE without fallback": lambda: sentencepiece_model("bpe"),
        "BPE without dummy prefix": lambda: sentencepiece_model("bpe", byte_fallback=True, add_dummy_prefix=False,
                                                                **plain),
        "unigram": lambda: sentencepiece_model("unigram"),
        "unigram with fallback": lambda: sentencepiece_model("unigram", byte_fallback=True, **plain),
        "characters": lambda: sentencepiece_model("char"),
        "SentencePiece words": lambda: sentencepiece_model("word"),
    }


def save(made, folder):
    """Writes a tokenizer to a file in the folder. Returns the file and a function that gives a text's tokens by the
    library alone."""
    folder.mkdir()
    if isinstance(made, bytes):
        import sentencepiece
        path = folder / "tokenizer.model"
        path.write_bytes(made)
        return path, sentencepiece.SentencePieceProcessor(model_file=str(path)).encode
    import tokenizers
    path = folder / "tokenizer.json"
    path.write_text(made if isinstance(made, str) else made.to_str(), encoding="utf-8")
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    return path, lambda text: library.encode(text, add_special_tokens=False).ids
