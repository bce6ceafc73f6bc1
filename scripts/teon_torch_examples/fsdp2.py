#!/usr/bin/env python3
"""Trains a small LLaMA of transformers on a text's bytes with Teon and FSDP2, on GPUs or on CPUs:

    torchrun --nproc-per-node 2 scripts/teon_torch_examples/fsdp2.py README.md
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
import transformers
from teon_torch import Teon, stacks_of
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("text", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

if not torch.cuda.is_available() and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
    raise SystemExit(f"torch {torch.__version__}: FSDP2 on CPUs needs torch 2.9; before, gloo adds gradients where "
                     "FSDP2 asks for their mean, and clip_grad_norm_ clips too early")
dist.init_process_group()  # NCCL for GPUs, gloo for CPUs
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)  # equal weights on all ranks
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    num_hidden_layers=4, hidden_size=64, intermediate_size=176, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, vocab_size=256, bos_token_id=0, eos_token_id=0)).to(device)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)

hidden, others = stacks_of(model)
optimizers = [Teon(hidden, lr=0.02), torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.95), weight_decay=0.1)]

text = torch.tensor(list(arguments.text.read_bytes()), device=device)
torch.manual_seed(2 + dist.get_rank())  # other batches on each rank
for step in range(1, arguments.steps + 1):
    first = torch.randint(len(text) - 64, (8, 1), device=device)
    batch = text[first + torch.arange(64, device=device)]
    loss = model(batch, labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}")
dist.destroy_process_group()
