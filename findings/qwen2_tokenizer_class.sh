#!/bin/bash
# Guess: AutoTokenizer takes tokenizer.json as it is, if tokenizer_config.json names PreTrainedTokenizerFast.
# Seen:  for a config.json of the type qwen2 it takes Qwen's class, which divides texts into words by Qwen's rule and
#        normalizes them: of a tokenizer with GPT-2's rule other tokens come out, without a word. For qwen3 it does not.
# Known: transformers 5.23.0 (2026-11). Found by comparing a Qwen2's tokens in llama.cpp and transformers.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.23.0 accelerate==1.15.0
prints "qwen2: Qwen2Tokenizer: other tokens
qwen3: TokenizersBackend: tokenizer.json's tokens
PreTrainedTokenizerFast itself, for qwen2: tokenizer.json's tokens" python - <<'END'
import json, os
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

text = "in 2026 the cafe\u0301 of 1234 chairs"
library = Tokenizer(models.BPE())
library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
library.train_from_iterator([text] * 9, trainers.BpeTrainer(
    vocab_size=300, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
library.add_special_tokens(["<|endoftext|>"])
for kind in ("qwen2", "qwen3"):
    os.makedirs(kind, exist_ok=True)
    library.save(f"{kind}/tokenizer.json")
    for name, content in (("config", {"model_type": kind}),
                          ("tokenizer_config", {"tokenizer_class": "PreTrainedTokenizerFast",
                                                "eos_token": "<|endoftext|>"})):
        with open(f"{kind}/{name}.json", "w") as file:
            json.dump(content, file)


def say(name, tokenizer):
    same = tokenizer(text)["input_ids"] == library.encode(text).ids
    print(f"{name}: {'tokenizer.json' + chr(39) + 's tokens' if same else 'other tokens'}")


for kind in ("qwen2", "qwen3"):
    tokenizer = AutoTokenizer.from_pretrained(kind)
    say(f"{kind}: {type(tokenizer).__name__}", tokenizer)
say("PreTrainedTokenizerFast itself, for qwen2", PreTrainedTokenizerFast.from_pretrained("qwen2"))
END
