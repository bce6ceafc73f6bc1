"""The commands of docs/using.md, "Train a model further", from folders that transformers and peft made:

    dev/run_tests.py test/programs/test_fine_tuning.py

Skipped if a library is missing (dev/requirements-dev.txt).
"""

import json
import re
import shlex
import sys

from testing import BUILD, ROOT, RunCase, missing, needs, temporary_folder

LIBRARIES = ("numpy", "pyarrow", "tokenizers", "torch", "tqdm", "transformers")
if not missing(*LIBRARIES):
    import tokenizers
    import torch
    import transformers

VOCABULARY = 300
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 70, "num_hidden_layers": 5,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0,
         "eos_token_id": 0, "pad_token_id": None}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 5e5}
MODELS = {  # program, configuration class, its arguments
    "GPT-2": ("train_gpt2", "GPT2Config", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 5, "n_head": 4,
                                           "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}),
    "LLaMA": ("train_llama", "LlamaConfig", SHAPE),
    "Mistral": ("train_llama", "MistralConfig", SHAPE | {"sliding_window": None}),
    "Mistral with a window": ("train_llama", "MistralConfig", SHAPE | {"sliding_window": 9}),
    "Qwen2": ("train_qwen2", "Qwen2Config", SHAPE),
    "Qwen3": ("train_qwen3", "Qwen3Config", SHAPE | {"head_dim": 20}),
    "OLMo 2": ("train_olmo2", "Olmo2Config", SHAPE),
    "OLMo 3": ("train_olmo2", "Olmo3Config", SHAPE | {
        "sliding_window": 9, "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                                                 "full_attention": YARN}}),
    "SmolLM3": ("train_smollm3", "SmolLM3Config", SHAPE)}


def commands_of_the_page():
    page = (ROOT / "docs/using.md").read_text()
    section = re.search(r"^## Train a model further\n(.*?)^##", page, re.M | re.S)[1]
    return re.findall(r"^    (\S.*)$", section.replace("\\\n", ""), re.M)


@needs(*LIBRARIES)
class FineTuningTest(RunCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))[:150000].splitlines()
        cls.corpus = cls.folder / "corpus.jsonl"
        cls.corpus.write_text("".join(json.dumps({"text": line}) + "\n" for line in text if line))
        cls.tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        cls.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        cls.tokenizer.decoder = tokenizers.decoders.ByteLevel()
        cls.tokenizer.train_from_iterator(text, tokenizers.trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))

    def make_model(self, name):
        _, config, arguments = MODELS[name]
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**arguments))
        folder = self.folder / name
        model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, bos_token="<|endoftext|>",
                                             eos_token="<|endoftext|>").save_pretrained(folder)
        return folder, model

    def words_of(self, command, model, program):
        """The page's command for this model, its text and a learning rate for random weights."""
        at = self.folder / model
        for ours, theirs in (("python3 ", f"{shlex.quote(sys.executable)} {ROOT}/"),
                             ("corpus/english_train.jsonl", str(self.corpus)),
                             ("--bpe-dir gpt2_bpe", f"--tokenizer {shlex.quote(str(at))}"),
                             ("datasets/tuning", shlex.quote(f"{at} data")), ("runs/NAME", shlex.quote(str(at))),
                             ("runs/tuned", shlex.quote(f"{at} tuned")), ("./train_gpt2", f"{BUILD}/{program}"),
                             ("./generate", f"{BUILD}/generate"), ("--lr 3e-5", "--lr 3e-3")):
            command = command.replace(ours, theirs)
        words = shlex.split(command, comments=True)
        if "--out" in words and program in words[0]:
            words += ["--batch-tokens", "1024", "--dtype", "float"]
        return words

    def test_each_family_learns_a_text_and_writes(self):
        commands = commands_of_the_page()
        self.assertEqual(len(commands), 4)
        for name, (program, _, _) in MODELS.items():
            with self.subTest(name):
                folder, _ = self.make_model(name)
                outputs = [self.call(*self.words_of(command, name, program)).stdout for command in commands]
                before = json.loads(outputs[1].splitlines()[-1])["val_loss"]
                losses = [m["val_loss"] for m in self.metrics(f"{name} tuned", "eval")]
                self.assertLess(losses[-1], before - 1)
                self.assertTrue(outputs[3].startswith("Once upon a time"))
                config = json.loads((self.checkpoint(f"{name} tuned", self.last_step(f"{name} tuned"))
                                     / "config.json").read_text())
                kept = "LlamaForCausalLM" if name == "Mistral" else \
                    json.loads((folder / "config.json").read_text())["architectures"][0]
                self.assertEqual(config["architectures"], [kept])

    def last_step(self, run):
        return max(m["step"] for m in self.metrics(run, "eval"))

    @needs("peft")
    def test_an_adapter_is_refused_and_a_merged_one_is_read(self):
        import peft

        folder, model = self.make_model("Qwen2")
        torch.manual_seed(2)
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "down_proj"],
                                                             init_lora_weights=False))
        adapted.save_pretrained(self.folder / "adapter")
        prepared, evaluated = (self.words_of(command, "Qwen2", "train_qwen2")
                               for command in commands_of_the_page()[:2])
        self.call(*prepared)
        at = evaluated.index(str(folder))
        evaluated[at] = self.folder / "adapter"
        self.assertIn("has an adapter without its model", self.error_of(*evaluated))
        merged = adapted.merge_and_unload()
        evaluated[at] = self.folder / "merged"
        merged.save_pretrained(evaluated[at])
        answer = json.loads(self.call(*evaluated, "--dtype", "float", "--eval-tokens", 640).stdout.splitlines()[-1])
        shard = next((self.folder / "Qwen2 data").glob("*_val_*.bin")).read_bytes()
        tokens = torch.frombuffer(bytearray(shard[1024:1024 + 2 * 641]), dtype=torch.uint16).long()
        with torch.no_grad():
            logits = merged.double()(tokens[:-1].reshape(10, 64)).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:]).item()
        self.assertLessEqual(abs(answer["val_loss"] - expected), 2e-6 * expected)  # one float32 forward pass
