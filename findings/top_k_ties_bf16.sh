#!/bin/bash
# Guess: top_k=50 samples from 50 tokens.
# Seen:  transformers keeps every token whose logit equals the 50th. Among float32 logits that is one. bfloat16 ones lie
#        1/64 apart where the 50th of 50,257 is: on average 51 and at most 55 are kept. Most other programs keep k.
# Known: transformers 5.24.0 (2026-11); earlier ones not run. Found by comparing six samplers.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.24.0 accelerate==1.15.0
prints "float32 logits: 50 tokens kept on average, at most 50
bfloat16 logits: 51 tokens kept on average, at most 55" python - <<'END'
import torch
from transformers.generation.logits_process import TopKLogitsWarper

logits = torch.randn(200, 50257, generator=torch.Generator().manual_seed(0))
for dtype in (torch.float32, torch.bfloat16):
    kept = (TopKLogitsWarper(50)(None, logits.to(dtype)) > -torch.inf).sum(-1)
    print(f"{str(dtype)[6:]} logits: {kept.float().mean():.0f} tokens kept on average, at most {kept.max()}")
END
