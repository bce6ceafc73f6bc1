#!/usr/bin/env python3
"""Trains a small GPT-2 of transformers on a text's bytes with Teon and Hugging Face's Trainer (pip install accelerate):

    python3 scripts/teon_torch_examples/hf_trainer.py README.md

With several processes (torchrun), process_group=torch.distributed.group.WORLD lets the ranks divide Teon's work.
"""
import argparse
import pathlib
import tempfile

import torch
import transformers
from teon_torch import ChainedOptimizer, Teon, stacks_of

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("text", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

transformers.set_seed(1)
text = list(arguments.text.read_bytes())
windows = [{"input_ids": text[i:i + 64], "labels": text[i:i + 64]} for i in range(0, len(text) - 64, 64)]
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    n_layer=4, n_embd=128, n_head=4, n_positions=64, vocab_size=256, bos_token_id=0, eos_token_id=0))

hidden, others = stacks_of(model)
optimizer = ChainedOptimizer(
    Teon(hidden, lr=0.02), torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.95), weight_decay=0.1))
schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 5, arguments.steps)

with tempfile.TemporaryDirectory() as folder:
    settings = transformers.TrainingArguments(
        output_dir=folder, max_steps=arguments.steps, per_device_train_batch_size=16, logging_steps=10,
        save_strategy="no", report_to=[], disable_tqdm=True)
    trainer = transformers.Trainer(model, settings, train_dataset=windows, optimizers=(optimizer, schedule))
    trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']}: loss {float(entry['loss']):.3f}")
