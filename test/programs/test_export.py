"""Checkpoints opened by Hugging Face's transformers:  scripts/run_tests.py test/programs/test_export.py

Skipped if transformers is missing (scripts/requirements-dev.txt).
"""

import json
import math
import random
import shutil

from testing import ROOT, RunCase, missing, needs, temporary_folder, write_shards

LIBRARIES = ("safetensors", "tokenizers", "torch", "transformers")  # scripts/requirements-dev.txt
if not missing(*LIBRARIES):
    import safetensors.torch
    import tokenizers
    import torch
    import transformers

VOCABULARY, LENGTH, WINDOWS = 61, 24, 4
CASES = {"gpt2": ("train_gpt2", []), "gpt2 with squared ReLU": ("train_gpt2", ["--mlp", "relu2"]),
         "llama": ("train_llama", ["--ffn", 37]),
         "llama with fewer key/value heads": ("train_llama", ["--kv-heads", 2, "--rope-base", 500]),
         "llama with scaled positions": ("train_llama", ["--rope-scaling", 4]),
         "llama with a head size of its own": ("train_llama", ["--head-size", 20]),
         "qwen3": ("train_qwen3", ["--kv-heads", 2, "--head-size", 20]),
         "olmo2": ("train_olmo2", []),
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

    def test_the_tokenizer_is_exported(self):
        folder, _ = self.train("train_gpt2", "tokenizer run", steps=1)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(tokenizer("b a c")["input_ids"], [0, 2, 1, 3])
        self.assertEqual(tokenizer.eos_token_id, 0)
        self.assertEqual((folder / "tokenizer" / "tokenizer.json").read_bytes(),
                         (self.folder / "tokenizer" / "tokenizer.json").read_bytes())

    def test_gpt2s_tokenizer_is_exported(self):
        source = ROOT.parent / "shared" / "data" / "gpt2_bpe"
        if not source.is_dir():
            self.skipTest(f"{source} is not there")
        data = self.folder / "gpt2 data"
        shutil.copytree(source, data / "tokenizer")
        for name in ("t_train_000000.bin", "t_val_000000.bin"):
            shutil.copy(self.folder / name, data)
        (data / "tokenizer" / "description.json").write_text(
            json.dumps({"kind": "gpt2", "delimiter": 50256, "delimiter_text": "<|endoftext|>"}))
        (data / "manifest.json").write_text(json.dumps({"vocab_size": 50257, "delimiter": 50256}))
        folder, _ = self.train("train_gpt2", "gpt2 tokenizer run", "--data", data, "--vocab-size", 50257, steps=1)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.assertEqual(tokenizer("Hello world<|endoftext|>")["input_ids"], [50256, 15496, 995, 50256])
        self.assertEqual(tokenizer.eos_token_id, 50256)

    def test_every_file_of_tensors_is_read_by_the_python_library(self):
        folder, _ = self.train("train_gpt2", "tensors", "--optimizer", "teon", steps=2)
        names = [set(safetensors.torch.load_file(folder / name)) for name in
                 ("model.safetensors", "optimizer/state.safetensors")]
        self.assertIn("transformer.h.1.attn.c_attn.weight", names[0])
        self.assertIn("h.1.attn.q.weight.momentum", names[1])
