"""Tiny trained models of every kind that other programs read:  reader_models.make(folder)"""

import json
import subprocess
import sys

from testing import BUILD, ROOT, SCRIPTS, as_flags

SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 64, "--heads": 4, "--seq-len": 128, "--batch-tokens": 1024,
         "--eval-tokens": 1024, "--dtype": "float", "--lr": 1e-2}
STEPS = 30
# Each model: its program, its data, its flags.
MODELS = {"gpt2": ("train_gpt2", "trained", {}),
          "gpt2 with a padded vocabulary": ("train_gpt2", "trained", {"--vocab-size": 576}),
          "gpt2 with SentencePiece": ("train_gpt2", "sentencepiece", {}),
          "gpt2 with squared ReLU": ("train_gpt2", "trained", {"--mlp": "relu2"}),
          "llama with fewer key/value heads": ("train_llama", "trained", {"--kv-heads": 2, "--rope-base": 5e5}),
          "llama with a head size of its own": ("train_llama", "trained", {"--head-size": 32}),
          "llama with linear scaling": ("train_llama", "trained", {"--rope-scaling": 2}),
          "llama with a padded vocabulary": ("train_llama", "trained", {"--vocab-size": 576}),
          "llama with SentencePiece": ("train_llama", "sentencepiece", {}),
          "llama with SentencePiece without a first blank": ("train_llama", "no first blank", {}),
          "llama with GEGLU": ("train_llama", "trained", {"--mlp": "geglu"}),
          "qwen3": ("train_qwen3", "trained", {"--kv-heads": 2, "--head-size": 32}),
          "olmo2": ("train_olmo2", "trained", {}),
          "olmo2 with fewer key/value heads": ("train_olmo2", "trained", {"--kv-heads": 2}),
          "olmo3": ("train_olmo2", "trained", {"--layers": 3, "--window": 4, "--full-every": 3}),
          "olmo3 with linear scaling": ("train_olmo2", "trained", {"--layers": 3, "--window": 4, "--full-every": 3,
                                                                   "--rope-scaling": 2})}
IMPORTED = "llama with llama3's scaling and biases"  # made by transformers, and exported again
PIECES = dict(vocab_size=512, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
              remove_extra_whitespaces=False, minloglevel=2)


def run(*command):
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout[-2000:]}")


def make_data(folder, text):
    import sentencepiece

    sources = {"trained": "train:512"}
    for name, prefix in (("sentencepiece", True), ("no first blank", False)):
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(folder / name),
                                                 add_dummy_prefix=prefix, **PIECES)
        sources[name] = folder / f"{name}.model"
    for name, tokenizer in sources.items():
        run(sys.executable, SCRIPTS / "prepare.py", text, "--tokenizer", tokenizer, "--out", folder / f"{name} data")


def imported(folder):
    """Returns a folder of transformers with Llama 3.1's scaling (wavelengths of 6 to 11,000 tokens) and biases."""
    import torch
    import transformers

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64, "rope_theta": 1e4}
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, attention_bias=True, mlp_bias=True, bos_token_id=0,
        eos_token_id=0, initializer_range=0.1, rope_parameters=scaling)
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # biases begin as zero
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def make(folder):
    """Returns {name: checkpoint}."""
    text = folder / "text.txt"
    text.write_text((ROOT / "experiments" / "shakespeare.txt").read_text()[:200_000])
    make_data(folder, text)
    models = {}
    own = {key: value for key, value in SHAPE.items() if key not in ("--model", "--layers", "--channels", "--heads")}
    for name, (program, data, flags) in {**MODELS, IMPORTED: ("train_llama", "trained", None)}.items():
        out = folder / name.replace("/", " ").replace("'", "")
        values = {**SHAPE, **flags} if flags is not None else {**own, "--init-from": imported(folder / "made")}
        run(BUILD / program, *as_flags({**values, "--data": folder / f"{data} data", "--steps": STEPS, "--out": out}))
        models[name] = out / f"step_{STEPS:08}"
    (folder / "models.json").write_text(json.dumps({name: str(path) for name, path in models.items()}))
    return models
