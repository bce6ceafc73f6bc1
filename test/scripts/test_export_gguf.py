"""What llama.cpp would read otherwise is refused:  dev/run_tests.py test/scripts/test_export_gguf.py

test/readers/test_readers.py compares the files with llama.cpp's converter and runs them in llama.cpp.
"""

import json

from testing import Case, missing, needs
from tokenizer_kinds import kinds, sentencepiece_model

LLAMA = {"model_type": "llama", "vocab_size": 1000, "num_hidden_layers": 1, "hidden_act": "silu"}
GPT2 = {"model_type": "gpt2", "vocab_size": 1000, "n_layer": 1, "n_embd": 16}


class ExportTest(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "trainer.json").write_text("{}")  # a checkpoint has one

    def refused(self, config, expect=2):
        (self.folder / "config.json").write_text(json.dumps(config))
        error = self.run_script("export_gguf.py", self.folder, "--out", self.folder / "out.gguf", expect=expect).stderr
        self.assertFalse(list(self.folder.glob("out*")))
        return error

    def test_a_model_that_llama_cpp_does_not_compute_is_refused(self):
        llama3 = {"rope_type": "llama3", "factor": 8.0}
        for config, reason in ((LLAMA | {"hidden_act": "gelu_pytorch_tanh"},
                                "hidden_act is gelu_pytorch_tanh, but llama.cpp computes silu"),
                               (LLAMA | {"model_type": "qwen3", "hidden_act": "gelu"}, "hidden_act is gelu, but"),
                               (GPT2 | {"activation_function": "relu2"}, "activation_function is relu2, but llama.cpp"),
                               (GPT2 | {"n_inner": 48}, "n_inner is 48, but llama.cpp's GPT-2 has an MLP of 4 n_embd"),
                               (LLAMA | {"model_type": "qwen3", "attention_bias": True}, "attention_bias is true, but"),
                               (LLAMA | {"model_type": "olmo2", "rope_scaling": llama3}, "rope_type is llama3, which"),
                               (LLAMA | {"rope_scaling": {"rope_type": "yarn"}}, "rope_type is yarn, which"),
                               (LLAMA | {"model_type": "smollm3", "no_rope_layers": [1, 0, 1, 0]}, "[1, 0, 1, 0], but"),
                               (LLAMA | {"model_type": "qwen3", "sliding_window": 64}, "a window of 64 tokens"),
                               (GPT2 | {"model_type": "gpt2_window", "sliding_window": 64}, "a window of 64 tokens"),
                               (LLAMA | {"model_type": "bloom"}, "model_type is bloom; only gpt2, llama"),
                               (LLAMA, "has no tokenizer that llama.cpp could read"),
                               (GPT2 | {"activation_function": "gelu_new", "n_inner": 64}, "has no tokenizer"),
                               (GPT2 | {"n_inner": None}, "has no tokenizer")):
            with self.subTest(config):
                self.assertIn(reason, self.refused(config))

    @needs("tokenizers", "sentencepiece")
    def test_a_tokenizer_that_would_give_other_tokens_is_refused(self):
        accepted = "" if not missing("gguf", "safetensors") else "needs the Python package gguf"
        reasons = {"GPT-2 without type": accepted, "GPT-NeoX": accepted, "Llama 3": accepted, "Qwen": accepted,
                   "DeepSeek": "no such division of texts into words", "Phi and CodeGen": accepted,
                   "RoBERTa": "no such division of texts into words", "Llama 2 as JSON": "a BPE of SentencePiece",
                   "T5": "of the kind Unigram", "ALBERT": "of the kind Unigram", "Gemma": "no such division",
                   "words": "of the kind WordLevel", "Llama 2": accepted,
                   "Mistral": "user_defined_symbols and add_dummy_prefix", "BPE without fallback": "normalizes texts",
                   "BPE without dummy prefix": accepted, "unigram": "of the kind unigram",
                   "unigram with fallback": "of the kind unigram", "characters": "of the kind char",
                   "SentencePiece words": "of the kind word"}
        made = kinds()
        self.assertEqual(list(made), list(reasons))
        for name, reason in reasons.items():
            with self.subTest(name):
                model = made[name]()
                for path in self.folder.glob("tokenizer.*"):
                    path.unlink()
                if isinstance(model, bytes):
                    (self.folder / "tokenizer.model").write_bytes(model)
                else:
                    text = model if isinstance(model, str) else model.to_str()
                    (self.folder / "tokenizer.json").write_text(text)
                error = self.refused(LLAMA, expect=None)
                self.assertIn(reason or "no model.safetensors", error)

    @needs("tokenizers", "sentencepiece")
    def test_a_tokenizers_settings_that_llama_cpp_lacks_are_refused(self):
        plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        for options, reason in ((plain, "without byte_fallback"), ({"byte_fallback": True}, "normalizes texts"),
                                (plain | {"remove_extra_whitespaces": True}, "normalizes texts")):
            (self.folder / "tokenizer.model").write_bytes(sentencepiece_model("bpe", **options))
            self.assertIn(reason, self.refused(LLAMA, expect=1))
        (self.folder / "tokenizer.model").unlink()
        library = json.loads(kinds()["Llama 3"]().to_str())
        for change, reason in (({"normalizer": {"type": "Lowercase"}}, "does not normalize"),
                               ({"model": library["model"] | {"ignore_merges": False, "dropout": 0.1}}, "with dropout"),
                               ({"added_tokens": [library["added_tokens"][0] | {"id": 1000}]}, "the token 1000")):
            (self.folder / "tokenizer.json").write_text(json.dumps(library | change))
            self.assertIn(reason, self.refused(LLAMA, expect=1))

    def test_wrong_usage_is_one_line(self):
        (self.folder / "trainer.json").unlink()
        error = self.refused(LLAMA)
        self.assertIn("no checkpoint, and no run with one", error)
        (self.folder / "out.gguf").touch()
        error = self.run_script("export_gguf.py", self.folder, "--out", self.folder / "out.gguf", expect=2).stderr
        self.assertIn("already exists", error)
