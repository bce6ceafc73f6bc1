"""Checkpoints for llama.cpp:  dev/run_tests.py test/scripts/test_export_gguf.py

The hashes are llama.cpp's own (get_vocab_base_pre() of its converter).
"""

import importlib.util
import json
import pathlib
import shutil

import testing
from testing import BPE, ROOT, RunCase, needs, read_json
from tokenizer_kinds import LLAMA3, sentencepiece_model

GPT2_HASH = "3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454"
LLAMA3_HASH = "0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5"


@needs("tokenizers")
class ExportTest(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 1, "--channels": 16, "--heads": 2, "--seq-len": 16, "--batch-tokens": 64,
             "--micro-batch": 2, "--eval-tokens": 64, "--dtype": "float"}
    STEPS = 1

    def trained_on(self, source, **how):
        """Returns a checkpoint of a model whose data have this tokenizer."""
        from teon_data import tokenizer_folder

        data = self.folder / "data"
        data.mkdir()
        made = tokenizer_folder.create(str(data / "tokenizer"), source, how.get("bpe"), None, how.get("texts"))
        testing.write_shards(data, testing.learnable(2000), testing.learnable(200))
        (data / "manifest.json").write_text(json.dumps({key: made[key] for key in ("vocab_size", "delimiter")}))
        self.train("run", data=data)
        return self.checkpoint("run", 1), made

    def export(self, checkpoint, **how):
        return self.run_script("export_gguf.py", checkpoint, "--out", self.folder / "out", **how)

    @needs("tiktoken", data=[BPE])
    def test_gpt2s_tokenizer_has_llama_cpps_hash(self):
        import export_gguf

        checkpoint, made = self.trained_on("gpt2", bpe=str(BPE))
        result = self.export(checkpoint)
        self.assertEqual(result.stdout, f"llama.cpp knows this tokenizer as gpt-2 ({GPT2_HASH})\n")
        out = self.folder / "out"
        self.assertEqual(export_gguf.check_hash(out / "tokenizer.json"), GPT2_HASH)
        self.assertNotEqual(export_gguf.check_hash(checkpoint / "tokenizer.json"), GPT2_HASH)  # has the template
        settings = read_json(out / "tokenizer_config.json")
        self.assertEqual((settings["add_bos_token"], settings["add_eos_token"]), (True, False))
        generation = read_json(out / "generation_config.json")
        self.assertEqual((generation["bos_token_id"], generation["eos_token_id"]), (made["delimiter"],) * 2)
        for name in ("config.json", "model.safetensors"):
            self.assertEqual((out / name).read_bytes(), (checkpoint / name).read_bytes())

    @needs("llama_models", "tiktoken", "transformers")  # pip install --no-deps llama_models: Meta's own copy
    def test_llama_3s_tokenizer_has_llama_cpps_hash(self):
        import tokenizers
        from transformers.convert_slow_tokenizer import TikTokenConverter

        package = pathlib.Path(importlib.util.find_spec("llama_models").origin).parent
        first, end = "<|begin_of_text|>", "<|end_of_text|>"
        model = TikTokenConverter(vocab_file=str(package / "llama3" / "tokenizer.model"), pattern=LLAMA3,
                                  extra_special_tokens=[first, end]).converted()
        model.post_processor = tokenizers.processors.Sequence([
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 128000)])])
        source = self.folder / "llama3"
        source.mkdir()
        model.save(str(source / "tokenizer.json"))
        (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": first, "eos_token": end}))
        checkpoint, _ = self.trained_on(str(source))
        self.assertEqual(self.export(checkpoint).stdout,
                         f"llama.cpp knows this tokenizer as llama-bpe ({LLAMA3_HASH})\n")

    def test_a_tokenizer_of_ones_own_gets_the_line_to_add(self):
        import export_gguf

        checkpoint, _ = self.trained_on("train:300", texts=[(ROOT / "Makefile").read_text()])
        result = self.export(checkpoint)
        digest = export_gguf.check_hash(self.folder / "out" / "tokenizer.json")
        self.assertIn(f'if chkhsh == "{digest}": res = "NAME"', result.stdout)
        self.assertIn('"gpt-2" for one that prepare.py trained', result.stdout)

    @needs("sentencepiece")
    def test_sentencepiece_is_a_bpe_or_refused(self):
        for kind in ("bpe", "unigram", "char"):
            with self.subTest(kind):
                (self.folder / f"{kind}.model").write_bytes(sentencepiece_model(kind))
                for name in ("data", "run", "out"):
                    shutil.rmtree(self.folder / name, ignore_errors=True)
                checkpoint, _ = self.trained_on(str(self.folder / f"{kind}.model"))
                result = self.export(checkpoint, expect=0 if kind == "bpe" else 1)
                if kind == "bpe":
                    self.assertEqual(result.stdout,
                                     "llama.cpp reads tokenizer.model, a SentencePiece BPE, without a hash\n")
                    self.assertTrue(read_json(self.folder / "out" / "tokenizer_config.json")["add_bos_token"])
                else:
                    self.assertIn(f"of the kind {kind}", result.stderr)
                    self.assertFalse((self.folder / "out").exists())

    def test_an_activation_that_llama_cpp_does_not_compute_is_refused(self):
        for config, supported in (({"model_type": "llama", "hidden_act": "silu"}, True),
                                  ({"model_type": "llama", "hidden_act": "gelu_pytorch_tanh"}, False),
                                  ({"model_type": "qwen3", "hidden_act": "gelu"}, False),
                                  ({"model_type": "gpt2", "activation_function": "gelu_new"}, True),
                                  ({"model_type": "gpt2"}, True),
                                  ({"model_type": "gpt2", "activation_function": "relu2"}, False)):
            with self.subTest(config):
                (self.folder / "config.json").write_text(json.dumps(config))
                if supported:
                    self.export(self.folder)
                else:
                    error = self.export(self.folder, expect=2).stderr
                    self.assertIn(f"{list(config)[1]} is {list(config.values())[1]}, but llama.cpp computes", error)
                    self.assertFalse((self.folder / "out").exists())
                shutil.rmtree(self.folder / "out", ignore_errors=True)

    def test_a_window_is_refused(self):
        for name in ("mistral", "qwen3", "olmo3", "gpt2_window"):
            with self.subTest(name):
                (self.folder / "config.json").write_text(json.dumps({"model_type": name, "sliding_window": 64}))
                self.assertIn("a window of 64 tokens, which llama.cpp",
                              self.export(self.folder, expect=2).stderr)

    def test_positions_that_llama_cpp_computes_otherwise_are_refused(self):
        for config, says in (({"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers is [1, 0, 1, 0]"),
                             ({"no_rope_layers": [1, 1, 1, 1]}, "no_rope_layers is"),
                             ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type is yarn"),
                             ({"no_rope_layers": [1, 1, 1, 0, 1], "rope_scaling": None}, None)):
            with self.subTest(config):
                (self.folder / "config.json").write_text(json.dumps({"model_type": "smollm3"} | config))
                result = self.export(self.folder, expect=2 if says else 0)
                self.assertIn(says or "", result.stderr)

    def test_wrong_usage_is_one_line(self):
        error = self.export(self.folder, expect=2).stderr
        self.assertIn("no config.json; give a checkpoint", error)
        (self.folder / "config.json").write_text("{}")
        (self.folder / "out").mkdir()
        self.assertIn("already exists", self.export(self.folder, expect=2).stderr)
