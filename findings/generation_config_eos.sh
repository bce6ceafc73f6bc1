#!/bin/bash
# Guess: generate() ends at config.json's eos_token_id; generation_config.json adds settings or overrides them.
# Seen:  if generation_config.json is there, it alone counts: a file that sets only a temperature takes the end token
#        away, and the text goes on to its longest length. Without the file config.json's counts.
# Known: transformers 5.24.0 (2026-11); earlier ones not run. Found by comparing samplers on one checkpoint.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.24.0 accelerate==1.15.0
prints "no generation_config.json: ends at 7 after 1 token
{\"max_length\": 10}: 8 tokens, all of them 7
{\"max_length\": 10, \"eos_token_id\": 7}: ends at 7 after 1 token" python - <<'END'
import json, os, torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, eos_token_id=7, bos_token_id=0))
with torch.no_grad():  # whatever comes before, the next token is 7
    model.transformer.wte.weight[:] = 0
    model.transformer.wte.weight[7] = 1
    model.transformer.ln_f.bias[:] = 1
model.save_pretrained("model")
for settings in (None, {"max_length": 10}, {"max_length": 10, "eos_token_id": 7}):
    path = "model/generation_config.json"
    if os.path.exists(path):
        os.remove(path)
    if settings:
        with open(path, "w") as file:
            json.dump(settings, file)
    new = GPT2LMHeadModel.from_pretrained("model").generate(torch.tensor([[1, 2]]), do_sample=False)[0, 2:].tolist()
    print(f"{json.dumps(settings) if settings else 'no generation_config.json'}:",
          "ends at 7 after 1 token" if new == [7] else f"{len(new)} tokens, all of them {new[0]}")
END
