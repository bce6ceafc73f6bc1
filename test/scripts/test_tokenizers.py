"""Every kind of tokenizer, from text to tokens and bytes:  scripts/run_tests.py test/scripts/test_tokenizers.py

The libraries make the tokenizers in the forms of published models. Tokens in shards and of prompts are compared with
the library's own, bytes with those of the texts.
"""

import json
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import testing
from preparing import BPE, PrepareCase, read_shard, run, stream, write_lines
from teon_data import source_bytes
from testing import BUILD, SCRIPTS, needs, read_json

TEXTS = 500
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
WORDS = ["the", "cat", "sat", "don't", "WE'LL", "naïve", "cafe\u0301", "数据", "東京都", "🙂", "👍🏽", "हिन्दी",
         "العربية", "ไทย", "42",
         "3.14159", "1,000,000", "½", "ﬁne", "Ａ", "①", "\t", "\n", "\n\n", "\r\n", "  ", "    ", "\u00a0", "\u3000",
         "\u200b", "▁", "<0x0A>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "[MASK]", "<mask>", "{", "}",
         "return", "==", "!?", "…", "“q”", "x" * 40, "\\", "\"", "e\u0323\u0302", "\U00010348", "-", "_", "'"]


def hard_texts(seed=7):
    draw = random.Random(seed)
    texts = ["".join(word + draw.choice(["", " ", " ", "\n"]) for word in draw.choices(WORDS, k=draw.randint(1, 30)))
             for _ in range(TEXTS - 3)]
    return texts + [" a", "a ", "  begins and ends with blanks  "]


def corpus():
    plain = [word for word in WORDS if not word.startswith(("<", "[")) and word.strip() and "▁" not in word]
    draw = random.Random(3)
    return [" ".join(draw.choices(plain, k=30)) for _ in range(400)]


def byte_level(pattern=None, size=600, special=("<|endoftext|>",), added=(), ignore_merges=False, prefix=False):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    model = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None)
    model.pre_tokenizer = level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(part), "isolated") for part in pattern] + [level])
    model.decoder = decoders.ByteLevel()
    model.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model.add_special_tokens(list(special))
    model.add_tokens([AddedToken(text, normalized=False) for text in added])
    return model


def metaspace_bpe(prepend="first"):
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


def split_documents(tokens, delimiter):
    """Returns the list of tokens after each delimiter."""
    begins = np.flatnonzero(tokens == delimiter)
    return [part.tolist()[1:] for part in np.split(tokens, begins)[1:]]


def prompts(folder, texts):
    """Returns the tokens of each text as programs get them."""
    requests = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    done = subprocess.run([sys.executable, SCRIPTS / "encode_text.py", folder], input=requests, capture_output=True,
                          text=True, check=True)
    return [json.loads(line).get("tokens") for line in done.stdout.splitlines()]


@needs("tokenizers", "sentencepiece", "tiktoken")
class TestKinds(PrepareCase):

    def test_shards_and_prompts_have_the_librarys_tokens_and_every_byte_is_counted(self):
        texts = hard_texts()
        write_lines(self.path("texts.jsonl"), [json.dumps({"text": text}).encode() for text in texts])
        for name, make in kinds().items():
            with self.subTest(name):
                path, library = save(make(), self.path(name))
                out = self.path(name, "out")
                _, notes = self.prepare(self.path("texts.jsonl"), "--tokenizer", path, "--out", out, "--lossy",
                                        "--workers", 1, "--shard-tokens", 2000, "--unit-bytes", 9000)
                manifest = read_json(out / "manifest.json")
                tokens = stream(out)
                left_out = manifest["bad_rows"]["special token"]
                kept = [text for text in texts if manifest["delimiter"] not in library(text)]
                found = split_documents(tokens, manifest["delimiter"])
                self.assertEqual(len(found), TEXTS - left_out)
                if left_out:  # only texts that spell one
                    self.assertIn("special token", notes)
                    expected = iter([(text, library(text)) for text in kept])
                    kept = [next(text for text, ids in expected if ids == document) for document in found]
                    self.assertTrue(all(any(mark in text for mark in ("<s>", "</s>", "<unk>"))
                                        for text in set(texts) - set(kept)))
                self.assertEqual(found, [library(text) for text in kept])
                self.assertEqual(prompts(out / "tokenizer", kept), found)
                self.assertEqual(prompts(self.path(name), kept), found)  # as a published model's folder

                self.assertEqual(sum(shard["text_bytes"] for shard in manifest["shards"]),
                                 sum(len(text.encode()) for text in kept))
                self.assertEqual(run("verify", out)[0], 0)

    @needs("numpy", data=[BUILD / "train_gpt2"])
    def test_bits_per_byte_count_the_bytes_of_the_text(self):
        """The windows of an evaluation cover the text but for its last, partial one: all of it if that has no token."""
        for name in ("Llama 2", "unigram", "ALBERT", "characters", "Phi and CodeGen", "RoBERTa"):
            with self.subTest(name):
                path, library = save(kinds()[name](), self.path(name))
                texts, total = [], 0
                for text in hard_texts():
                    ids = library(text)
                    if not any(mark in text for mark in ("<s>", "</s>", "<unk>")):
                        texts.append(text)
                        total += len(ids) + 1
                        if len(texts) > 60 and total % 16 == 1:
                            break
                write_lines(self.path("t.jsonl"), [json.dumps({"text": text}).encode() for text in texts])
                out = self.path(name, "out")
                self.prepare(self.path("t.jsonl"), "--tokenizer", path, "--out", out, "--lossy", "--val-tokens", 10**9)
                manifest = read_json(out / "manifest.json")
                self.assertEqual((manifest["tokens"], manifest["documents"]), (total, len(texts)))
                run_folder = self.path(name, "run")
                shard = next(out.glob("*.bin"))
                train = self.path(name, "train")
                testing.write_shard(train / "t_train_000000.bin", read_shard(shard).tolist())
                self.call(BUILD / "train_gpt2", "--data", train / "t_train_000000.bin", "--val-data", out, "--model",
                          "tiny", "--layers", 1, "--channels", 16, "--heads", 1, "--seq-len", 16, "--batch-tokens", 64,
                          "--steps", 1, "--out", run_folder, "--vocab-size", manifest["vocab_size"])
                line = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()
                        if '"eval"' in line][-1]
                self.assertEqual(line["val_tokens"], total - 1)
                self.assertEqual(line["val_bytes"], sum(len(text.encode()) for text in texts))
                data = read_json(run_folder / "config.json")["data"]
                self.assertEqual(data["val_bytes_of"], "source")


class TestCorrections(PrepareCase):

    def test_the_parts_of_corrections_add_up(self):
        draw = random.Random(4)
        corrections, at = [], 0
        for _ in range(40):
            at += draw.randint(0, 5)
            size = draw.randint(1, 30)
            corrections.append((at, size, draw.randint(-50, 50)))
            at += size
        whole = np.array(corrections, source_bytes.CORRECTION)
        for _ in range(50):
            cuts = sorted({0, at, *(draw.randint(0, at) for _ in range(6))})
            parts = [source_bytes.clipped(whole, a, b, -a) for a, b in zip(cuts, cuts[1:])]
            self.assertEqual(sum(int(part["difference"].sum()) for part in parts), int(whole["difference"].sum()))
            for begin, part in zip(cuts, parts):
                for first, size, difference in part.tolist():
                    of = next(c for c in corrections if c[0] <= first + begin < c[0] + c[1])
                    self.assertLess(abs(difference - Fraction(of[2] * size, of[1])), 1)


@needs("tokenizers", "sentencepiece", "tiktoken")
class TestBadTexts(PrepareCase):

    def rows(self, *texts):
        write_lines(self.path("a.jsonl"), [json.dumps({"text": text}).encode() for text in texts])
        return self.path("a.jsonl")

    @needs("tiktoken", data=[BPE])
    def test_a_text_on_which_the_library_fails_is_cut_between_lines_or_left_out_by_name(self):
        from teon_data import workers
        source = self.rows("one", "two", " " * 1_000_000 + "a", "three")
        _, notes = self.prepare(source, "--bpe-dir", BPE, "--out", self.path("out"), "--workers", 1)
        self.assertIn("a.jsonl: left out text 3 of a unit, '     ", notes)
        self.assertIn("the tokenizer fails on it", notes)
        self.assertEqual(self.manifest("out")["bad_rows"]["not tokenized"], 1)
        self.assertEqual(split_documents(stream(self.path("out")), 50256), [[505], [11545], [15542]])

        class Short:
            """Fails on long texts; one token per byte."""
            cuttable = True

            def encode(self, texts):
                if max(map(len, texts)) > 2 * workers.CUT_BYTES:
                    raise ValueError("too long")
                return [list(text.encode()) for text in texts]

        text = "a line\n" * 50_000
        found, short = workers.encode_each(Short(), [text, "short"])
        self.assertEqual((bytes(found.tolist()).decode(), short.tolist()), (text, list(b"short")))
        self.assertIn("too long", workers.encode_each(Short(), ["x" * len(text)])[0])

    def test_a_special_token_that_a_text_spells_leaves_the_text_out(self):
        path, library = save(unigram(), self.path("t5"))
        source = self.rows("the cat", "the </s> cat", "sat", "the <s> end", "cat sat")
        self.assertIn(1, library("the </s> cat"))
        _, notes = self.prepare(source, "--tokenizer", path, "--out", self.path("out"), "--workers", 1)
        self.assertIn("left out text 2 of a unit, 'the </s> cat': its tokens contain the special token 1", notes)
        manifest = self.manifest("out")
        self.assertEqual((manifest["bad_rows"]["special token"], manifest["documents"]), (2, 3))
        self.assertEqual(split_documents(stream(self.path("out")), manifest["delimiter"]),
                         [library(text) for text in ("the cat", "sat", "cat sat")])

    def test_a_tokenizer_that_loses_text_needs_a_flag(self):
        import tokenizers
        path, library = save(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "</s>": 2}, [])),
                             self.path("t"))
        arguments = [self.rows("a b a"), "--tokenizer", path, "--out", self.path("out"), "--workers", 1]
        line = self.fails(1, *arguments)
        self.assertIn("1 of the first 1 document", line)
        self.assertIn("e.g. 'a b a' becomes 'aba'", line)
        self.assertIn("accept the loss with --lossy", line)
        self.assertFalse(self.path("out").exists())
        _, notes = self.prepare(*arguments, "--lossy")
        self.assertIn("'a b a' becomes 'aba'", notes)
        self.assertEqual(stream(self.path("out")).tolist(), [2, *library("a b a")])
        self.assertIn("already complete", self.prepare(*arguments)[0])

    def test_dropout_is_switched_off_by_name(self):
        content = json.loads(byte_level().to_str())
        content["model"]["dropout"] = 0.5
        self.path("t").mkdir()
        self.path("t", "tokenizer.json").write_text(json.dumps(content))
        content["model"]["dropout"] = None
        _, library = save(json.dumps(content), self.path("without"))
        texts = hard_texts()[:40]
        for out in ("one", "two"):
            _, notes = self.prepare(self.rows(*texts), "--tokenizer", self.path("t"), "--out", self.path(out))
            self.assertIn("the tokenizer's dropout 0.5 is switched off", notes)
            self.assertEqual(split_documents(stream(self.path(out)), self.manifest(out)["delimiter"]),
                             [library(text) for text in texts])
