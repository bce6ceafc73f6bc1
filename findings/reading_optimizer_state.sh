#!/bin/bash
# Guess: get_optimizer_state_dict, which torch's distributed checkpoints use, reads: before the first step it gives
#        empty state or zeros, and training is what it would have been.
# Seen:  it makes the missing state by a step with a learning rate of zero. AdamW's counter stays at 1, so the first
#        real update is corrected as the second: 0.74 of its size, .53 / sqrt(.50). A run that saves a checkpoint of
#        step 0 is another run than one that does not.
# Known: torch 2.4.1, 2.5.1, 2.7.1, 2.8.0, 2.10.0, 2.12.0 and 2.15.0 alike (2026-11). Found by training one model in all
#        of them.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.24.0 accelerate==1.15.0
prints "without reading: first update 0.00100, AdamW's counter 1
after get_optimizer_state_dict: first update 0.00074, AdamW's counter 2" python - <<'END'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

for reads in (False, True):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    if reads:
        get_optimizer_state_dict(model, adamw)
    model(torch.ones(1, 1)).sum().backward()
    adamw.step()
    print(f"{'after get_optimizer_state_dict' if reads else 'without reading'}: first update "
          f"{1 - model.weight.item():.5f}, AdamW's counter {adamw.state[model.weight]['step'].item():.0f}")
END
