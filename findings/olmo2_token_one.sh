#!/bin/bash
# Guess: a config.json without pad_token_id means that there is no padding token, and every token's embedding is
#        trained.
# Seen:  OLMo 2's configuration has 1 as its default, which also becomes padding_idx of the embedding: torch then gives
#        row 1 no gradient. Training on from such a folder leaves token 1, a common one in a tokenizer of one's own, as
#        it is. "pad_token_id": null, written out, prevents it. LLaMA's default is none.
# Known: transformers 5.24.0 with torch 2.15.0 (2026-11); earlier ones not run. Found by comparing gradients with
#        float64.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.24.0 accelerate==1.15.0
prints "llama, without pad_token_id: tokens 5 and 1 have gradients: True True
olmo2, without pad_token_id: tokens 5 and 1 have gradients: True False
olmo2, pad_token_id null: tokens 5 and 1 have gradients: True True" python - <<'END'
import json, torch
from transformers import AutoConfig, AutoModelForCausalLM

size = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            eos_token_id=2)
for kind, what, pad in (("llama", "without pad_token_id", {}), ("olmo2", "without pad_token_id", {}),
                        ("olmo2", "pad_token_id null", {"pad_token_id": None})):
    with open("config.json", "w") as file:
        json.dump({"model_type": kind, **size, **pad}, file)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("."))
    ids = torch.tensor([[5, 1, 7, 1, 9, 3]])
    model(input_ids=ids, labels=ids).loss.backward()
    gradient = model.get_input_embeddings().weight.grad
    print(f"{kind}, {what}: tokens 5 and 1 have gradients:", *(bool(gradient[i].any()) for i in (5, 1)))
END
