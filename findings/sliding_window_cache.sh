#!/bin/bash
# Guess: a LLaMA ignores sliding_window in config.json, a key that LlamaConfig does not have.
# Seen:  the forward pass ignores it, but generate() makes a cache of that many tokens: from there on it forgets tokens
#        that the pass without a cache still attends to, and writes another text.
# Known: transformers 5.23.0 (2026-11). Found by writing sliding_window, null for us, where a LLaMA had none.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.23.0 accelerate==1.15.0
prints "without the key: one pass is as before; with and without a cache: the same text
sliding_window 8: one pass is as before; with and without a cache: other texts
sliding_window 64: one pass is as before; with and without a cache: the same text" python - <<'END'
import json, torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(1)
LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1,
    max_position_embeddings=64, initializer_range=0.2, eos_token_id=None, pad_token_id=None)).save_pretrained("model")
with open("model/config.json") as file:
    config = json.load(file)
tokens = torch.arange(5, 25)[None]
expected = LlamaForCausalLM.from_pretrained("model")(tokens).logits
for window in (None, 8, 64):
    with open("model/config.json", "w") as file:
        json.dump(config | ({"sliding_window": window} if window else {}), file)
    model = LlamaForCausalLM.from_pretrained("model")
    texts = [model.generate(tokens, max_new_tokens=20, do_sample=False, use_cache=cached) for cached in (True, False)]
    print(f"sliding_window {window}:" if window else "without the key:",
          "one pass is as before;" if model(tokens).logits.equal(expected) else "one pass differs;",
          "with and without a cache:", "the same text" if texts[0].equal(texts[1]) else "other texts")
END
