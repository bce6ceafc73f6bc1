#!/bin/bash
# Guess: Trainer.evaluate's eval_loss of a causal model is the mean of the losses that the model itself returns, for
#        every architecture alike.
# Seen:  GPT-2's is too low by (T - 1) / T: the sum over T - 1 targets is divided by the number of labels, T. With rows
#        of 8 tokens 5.0 is reported as 4.4; with 128 the perplexity of 111 as 107. LLaMA and OLMo 2 are right, so a
#        GPT-2 looks better beside them. Trainer leaves out each row's first label if the class's name (...ForCausalLM)
#        tells the kind of loss. GPT2LMHeadModel's name does not, though its loss is of that kind.
# Known: transformers 5.24.0 with accelerate 1.15.0 (2026-11); earlier ones not run. Found by comparing perplexities of
#        one checkpoint in a dozen programs.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.24.0 accelerate==1.15.0
prints "GPT2LMHeadModel: eval_loss / the model's loss = 0.875, rows of 8 tokens
LlamaForCausalLM: eval_loss / the model's loss = 1.000, rows of 8 tokens
Olmo2ForCausalLM: eval_loss / the model's loss = 1.000, rows of 8 tokens" python - <<'END'
import contextlib, torch
import transformers as t

size = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
models = [t.GPT2LMHeadModel(t.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2)),
          t.LlamaForCausalLM(t.LlamaConfig(**size)), t.Olmo2ForCausalLM(t.Olmo2Config(**size))]
rows = torch.randint(2, 64, (16, 8), generator=torch.Generator().manual_seed(0))
arguments = t.TrainingArguments("out", report_to=[], use_cpu=True, disable_tqdm=True)
for model in models:
    trainer = t.Trainer(model, arguments, eval_dataset=[{"input_ids": row, "labels": row} for row in rows])
    with contextlib.redirect_stdout(None):
        loss = trainer.evaluate()["eval_loss"]
    with torch.no_grad():
        own = model.eval()(input_ids=rows, labels=rows).loss.item()
    print(f"{type(model).__name__}: eval_loss / the model's loss = {loss / own:.3f}, rows of 8 tokens")
END
