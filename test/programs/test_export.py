"""Checkpoints opened by Hugging Face's transformers:  dev/run_tests.py test/programs/test_export.py

Skipped if transformers is missing (dev/requirements-dev.txt).
"""

import json
import math
import os
import pathlib
import random
import sys

from testing import BPE, ROOT, RunCase, change_json, missing, needs, temporary_folder, write_shards
from tokenizer_kinds import WORDS, hard_texts, kinds, save

BEFORE = pathlib.Path(os.environ.get("TEON_TRANSFORMERS_BEFORE", ROOT / "build" / "transformers_before"))  # version 4
ENCODE = """
import json, sys, transformers
texts = json.load(open(sys.argv[1]))
answer = {"version": transformers.__version__}
for folder in sys.argv[2:]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    answer[folder] = [tokenizer(text)["input_ids"] for text in texts]
print(json.dumps(answer))
"""
LIBRARIES = ("safetensors", "tokenizers", "torch", "transformers")  # dev/requirements-dev.txt
if not missing(*LIBRARIES):
    import safetensors.torch
    import tokenizers
    import torch
    import transformers

VOCABULARY, LENGTH, WINDOWS = 61, 24, 4
CASES = {"gpt2": ("train_gpt2", []), "gpt2 with squared ReLU": ("train_gpt2", ["--mlp", "relu2"]),
         "gpt2 with exact GELU": ("train_gpt2", ["--mlp", "gelu-erf"]),
         "llama": ("train_llama", ["--ffn", 37]),
         "llama with GEGLU": ("train_llama", ["--mlp", "geglu"]),
         "qwen3 with exact GEGLU": ("train_qwen3", ["--mlp", "geglu-erf"]),
         "llama with fewer key/value heads": ("train_llama", ["--kv-heads", 2, "--rope-base", 500]),
         "llama with scaled positions": ("train_llama", ["--rope-scaling", 4]),
         "llama with a head size of its own": ("train_llama", ["--head-size", 20]),
         "qwen3": ("train_qwen3", ["--kv-heads", 2, "--head-size", 20]),
         "olmo2": ("train_olmo2", []),
         "llama with a window, a Mistral": ("train_llama", ["--window", 5, "--kv-heads", 2]),
         "qwen3 with a window": ("train_qwen3", ["--window", 5]),
         "olmo2 with a window, an Olmo3": ("train_olmo2", ["--window", 5]),
         "qwen2": ("train_qwen2", ["--kv-heads", 2]),
         "qwen2 with a window": ("train_qwen2", ["--window", 5]),
         "smollm3": ("train_smollm3", ["--layers", 4, "--kv-heads", 2]),
         "olmo2 with a window in each second layer, an Olmo3":
             ("train_olmo2", ["--window", 5, "--full-every", 2, "--rope-base", 500]),
         "olmo2 with fewer key/value heads": ("train_olmo2", ["--kv-heads", 2])}


@needs(*LIBRARIES)
class ExportTest(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 48, "--heads": 4, "--vocab-size": VOCABULARY,
             "--seq-len": LENGTH, "--batch-tokens": 4 * LENGTH, "--micro-batch": 2, "--eval-tokens": WINDOWS * LENGTH,
             "--dtype": "float"}

    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        rng = random.Random(7)
        tokens = [rng.randrange(VOCABULARY) for _ in range(3000)]
        cls.val = [rng.randrange(VOCABULARY) for _ in range(WINDOWS * LENGTH + 1)]
        write_shards(cls.folder, tokens, cls.val)
        cls.add_tokenizer()

    @classmethod
    def add_tokenizer(cls):
        """Writes a tokenizer as scripts/prepare.py does: each letter of the alphabet and a delimiter."""
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0,
                                                                  **{chr(97 + i): i + 1 for i in range(26)}}, "<end>"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        folder = cls.folder / "tokenizer"
        folder.mkdir()
        model.save(str(folder / "tokenizer.json"))
        (folder / "description.json").write_text(json.dumps({"kind": "huggingface", "delimiter": 0,
                                                             "delimiter_text": "<end>"}))
        (cls.folder / "manifest.json").write_text(json.dumps({"vocab_size": VOCABULARY, "delimiter": 0}))

    def train(self, program, out, *flags, steps=30, lr=1e-2):
        super().train(out, "--lr", lr, *flags, program=program, steps=steps)
        return self.checkpoint(out, steps), self.metrics(out)

    def val_loss(self, model):
        windows = torch.tensor([self.val[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(WINDOWS)])
        with torch.no_grad():
            logits = model(windows[:, :-1]).logits.double()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()

    def test_transformers_opens_the_folder_and_computes_the_same_loss(self):
        for name, (program, flags) in CASES.items():
            with self.subTest(name):
                folder, metrics = self.train(program, name.replace("/", " "), *flags)
                model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
                for what, names in info.items():
                    self.assertFalse(names, what)
                self.assertEqual({p.dtype for p in model.parameters()}, {torch.float32})
                # Olmo2Config's default, token 1, would never be trained.
                self.assertIsNone(model.get_input_embeddings().padding_idx)
                ours = [m["val_loss"] for m in metrics if m["kind"] == "eval"][-1]
                theirs = self.val_loss(model.eval())
                # Two float32 forward passes; the loss is a mean over 96 tokens. A wrong formula shows as 1e-3 or more.
                self.assertTrue(math.isfinite(ours) and abs(ours - theirs) <= 2e-6 * theirs, (ours, theirs))
                norms = [p for name, p in model.named_parameters() if "norm" in name or "ln_" in name]
                self.assertTrue(all((p != 1).any() for p in norms))  # the model has been trained

    def test_models_saved_by_transformers_can_be_trained(self):
        for name, (program, flags) in CASES.items():
            if "positions" in name:
                continue
            with self.subTest(name):
                out = name.replace("/", " ")
                folder, metrics = self.train(program, f"{out} 1", *flags)
                model = transformers.AutoModelForCausalLM.from_pretrained(folder)
                model.save_pretrained(self.folder / f"{out} 2")
                _, again = self.train(program, f"{out} 3", *flags, "--init-from", self.folder / f"{out} 2", steps=1,
                                      lr=0)
                self.assertEqual(again[-1]["val_loss"], metrics[-1]["val_loss"])

    def test_published_variants_are_imported_and_exported_with_their_loss(self):
        """Llama 3.1's scaling of positions, biases, other activations, and keys that change no result."""
        common = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}
        shape = {"hidden_size": 48, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None} | common
        # Wavelengths of 6 to 11,000 tokens: some are kept, some divided, one lies between.
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}
        biases = {"attention_bias": True}
        base = {"rope_theta": 1e4}
        yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
        by_layer = {"full_attention": yarn | base, "sliding_attention": {"rope_type": "default"} | base}
        deep = shape | {"num_hidden_layers": 5}
        cases = {"llama with llama3's scaling": transformers.LlamaConfig(**shape, rope_parameters=llama3 | base),
                 "llama with biases": transformers.LlamaConfig(**shape, **biases, mlp_bias=True),
                 "llama with GEGLU": transformers.LlamaConfig(**shape, hidden_act="gelu_pytorch_tanh"),
                 "llama with T5's GEGLU": transformers.LlamaConfig(**shape, hidden_act="gelu_new"),
                 "olmo2 with exact GEGLU": transformers.Olmo2Config(**shape, hidden_act="gelu"),
                 "qwen3 with biases": transformers.Qwen3Config(**shape, **biases, head_dim=20),
                 "olmo2 with both": transformers.Olmo2Config(**shape, **biases, rope_parameters=llama3 | base),
                 "qwen2 with YaRN's scaling": transformers.Qwen2Config(**shape, rope_parameters=yarn | base),
                 "a Mistral without a window": transformers.MistralConfig(**shape, sliding_window=None),
                 "a Mistral with a window": transformers.MistralConfig(**shape, sliding_window=7),
                 "smollm3 with biases": transformers.SmolLM3Config(**deep, **biases, mlp_bias=True),
                 "olmo3 as published": transformers.Olmo3Config(**deep, sliding_window=7, rope_parameters=by_layer),
                 "gpt2 with exact GELU": transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=256,
                                                                 activation_function="gelu", **common)}
        for name, config in cases.items():
            with self.subTest(name):
                torch.manual_seed(5)
                model = transformers.AutoModelForCausalLM.from_config(config).eval()
                with torch.no_grad():  # biases begin as zero
                    for parameter in model.parameters():
                        parameter.add_(0.1 * torch.randn_like(parameter))
                made = self.folder / f"{name} made"
                model.save_pretrained(made)
                change_json(made / "config.json", _attn_implementation_autoset=True, unsloth_version="2024.9")
                program = {"mistral": "train_llama", "olmo3": "train_olmo2"}.get(config.model_type,
                                                                                 f"train_{config.model_type}")
                shape_flags = {key: value for key, value in self.SHAPE.items()
                               if key in ("--seq-len", "--batch-tokens", "--micro-batch", "--eval-tokens", "--dtype")}
                run = super().train(f"imported {name}", "--init-from", made, "--lr", 0, steps=1, shape=shape_flags,
                                    program=program)
                self.assertIn("config.json: no effect on results: _attn_implementation_autoset, unsloth_version\n",
                              run.stdout)
                ours = [m["val_loss"] for m in self.metrics(f"imported {name}", "eval")][-1]
                exported = transformers.AutoModelForCausalLM.from_pretrained(self.checkpoint(f"imported {name}", 1))
                # Two float32 forward passes: a wrong formula shows as 1e-3 or more, a wrong frequency as 1e-5.
                expected = self.val_loss(model.double())
                self.assertLessEqual(abs(ours - expected), 5e-7 * expected)
                self.assertLessEqual(abs(self.val_loss(exported.eval().double()) - expected), 1e-12)
                change_json(made / "config.json", residual_multiplier=2)
                self.assertIn("residual_multiplier is 2, which is unknown",
                              self.refused(f"refused {name}", "--init-from", made, shape=shape_flags,
                                           program=program))

    def test_the_tokenizer_is_exported(self):
        folder, _ = self.train("train_gpt2", "tokenizer run", steps=1)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(tokenizer("b a c")["input_ids"], [0, 2, 1, 3])
        self.assertEqual(tokenizer.eos_token_id, 0)
        self.assertEqual((folder / "tokenizer" / "tokenizer.json").read_bytes(),
                         (self.folder / "tokenizer" / "tokenizer.json").read_bytes())

    def tokenizer_sources(self):
        """Returns {kind: arguments of tokenizer_folder.create} for the kinds of tokenizers that can be made here."""
        corpus = [(ROOT / name).read_text() for name in ("README.md", "Makefile")]
        sources = {"trained BPE": ("train:400", None, None, corpus)}
        if BPE.is_dir() and not missing("tiktoken"):
            sources["GPT-2's"] = ("gpt2", str(BPE), None, None)
        if missing("sentencepiece"):
            return sources
        for kind, make in kinds().items():
            path, _ = save(make(), self.folder / kind)
            sources[kind] = (str(path), None, None, None)
        # As T5's or LLaMA's folders name a class that would build another tokenizer from these pieces.
        (self.folder / "T5" / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}))
        return sources

    def test_exported_tokenizers_give_the_tokens_of_the_data(self):
        """With the transformers installed and with version 4. No text spells a special token: transformers makes the
        token of it, data do not."""
        from teon_data import tokenizer, tokenizer_folder

        texts = ["", " ", *hard_texts(words=[word for word in WORDS if not word.startswith(("<", "["))])]
        (self.folder / "texts.json").write_text(json.dumps(texts))
        expected = {}
        for kind, arguments in self.tokenizer_sources().items():
            data = self.folder / f"{kind} data"
            data.mkdir()
            made = tokenizer_folder.create(str(data / "tokenizer"), *arguments)
            write_shards(data, [i % made["vocab_size"] for i in range(3000)],
                         [token % made["vocab_size"] for token in self.val])
            (data / "manifest.json").write_text(json.dumps({key: made[key] for key in ("vocab_size", "delimiter")}))
            folder, _ = self.train("train_llama", f"{kind} run", "--data", data, "--vocab-size", made["vocab_size"],
                                   steps=1)
            encoded = tokenizer.load(str(data / "tokenizer")).encode(texts)
            expected[str(folder)] = [[made["delimiter"], *map(int, tokens)] for tokens in encoded]
        versions = {transformers.__version__: {}}
        if BEFORE.is_dir():
            versions["4"] = {"PYTHONPATH": str(BEFORE)}
        else:
            print(f"SKIPPED: the tokens of transformers 4: not in {BEFORE} (pip install --target {BEFORE} "
                  "'transformers<5')")
        for version, environment in versions.items():
            done = self.call(sys.executable, "-c", ENCODE, self.folder / "texts.json", *expected, **environment,
                             HF_HUB_OFFLINE=1)
            answer = json.loads(done.stdout.splitlines()[-1])
            self.assertTrue(answer.pop("version").startswith(version), version)
            for folder, tokens in expected.items():
                with self.subTest(f"{folder}, transformers {version}"):
                    self.assertEqual(answer[folder], tokens)

    def test_every_file_of_tensors_is_read_by_the_python_library(self):
        folder, _ = self.train("train_gpt2", "tensors", "--optimizer", "teon", steps=2)
        names = [set(safetensors.torch.load_file(folder / name)) for name in
                 ("model.safetensors", "optimizer/state.safetensors")]
        self.assertIn("transformer.h.1.attn.c_attn.weight", names[0])
        self.assertIn("h.1.attn.q.weight.momentum", names[1])
