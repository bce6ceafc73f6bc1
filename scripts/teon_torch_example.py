#!/usr/bin/env python3
"""Trains a small GPT-2 of transformers on a text's bytes with Teon:  python3 scripts/teon_torch_example.py README.md"""
import argparse
import pathlib

try:
    import torch
    import transformers
    from teon_torch import Teon, stacks_of
except ImportError as missing:
    raise SystemExit(f"teon_torch_example.py: error: {missing}; pip install torch transformers") from None

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("text", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--k", type=int, default=2, help="layers in a stack; 1 is Muon")
arguments = parser.parse_args()

torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
text = torch.tensor(list(arguments.text.read_bytes()), device=device)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    n_layer=4, n_embd=128, n_head=4, n_positions=64, vocab_size=256, bos_token_id=0, eos_token_id=0)).to(device)

hidden, others = stacks_of(model, k=arguments.k)
optimizers = [Teon(hidden, lr=arguments.lr),
              torch.optim.AdamW(others, lr=arguments.lr / 5, betas=(0.9, 0.95), weight_decay=0.1)]
schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(x, arguments.steps) for x in optimizers]
for step in range(1, arguments.steps + 1):
    first = torch.randint(len(text) - 64, (16, 1), device=device)
    batch = text[first + torch.arange(64, device=device)]
    loss = model(batch, labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for x in [*optimizers, *schedules]:
        x.step()
    model.zero_grad()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
