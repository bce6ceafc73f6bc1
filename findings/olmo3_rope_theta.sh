#!/bin/bash
# Guess: rope_theta in config.json is the rotary base of all layers.
# Seen:  for olmo3 only layers with full attention have it. Those with a window, three of four, take 500,000, the
#        configuration's default, in silence: the key is popped for the first kind of layer and missing for the second.
#        Such files are valid (transformers 4.57 wrote them); OLMo 3's own have 500,000, so that nobody sees it.
#        rope_parameters with a base for each kind prevents it.
# Known: transformers 5.24.0 with torch 2.15.0 (2026-11); also 5.23.0. Found by writing an OLMo with another base.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.24.0
prints "rope_theta 1000: window 500000, full 1000
rope_parameters 1000: window 1000, full 1000
olmo2, rope_theta 1000: 1000" python - <<'END'
import json
from transformers import AutoConfig

size = dict(model_type="olmo3", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
            num_attention_heads=2)

def read(**keys):
    with open("config.json", "w") as file:
        json.dump(size | keys, file)
    return AutoConfig.from_pretrained(".").rope_parameters

base = {"rope_type": "default", "rope_theta": 1000.0}
kinds = ("sliding_attention", "full_attention")
for name, keys in (("rope_theta", {"rope_theta": 1000.0}),
                   ("rope_parameters", {"rope_parameters": {kind: base for kind in kinds}})):
    window, full = (read(**keys)[kind]["rope_theta"] for kind in kinds)
    print(f"{name} 1000: window {window:.0f}, full {full:.0f}")
print(f"olmo2, rope_theta 1000: {read(model_type='olmo2', rope_theta=1000.0)['rope_theta']:.0f}")
END
