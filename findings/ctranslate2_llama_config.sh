#!/bin/bash
# Guess: CTranslate2's converter refuses a LLaMA that it does not compute, as it refuses an unknown activation's name.
# Seen:  a head_dim other than hidden_size / heads, hidden_act gelu and Llama 3's scaling of positions convert without a
#        word, and the model computes others: log-probabilities are wrong by 1 and more. Biases are right.
# Known: CTranslate2 4.8.5 (2026-11) with transformers 5.23.0. Found by opening one checkpoint in several programs.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.23.0 accelerate==1.15.0 ctranslate2==4.8.5
prints "a plain LLaMA: equal
attention_bias and mlp_bias: equal
head_dim 32 beside 64 / 4: wrong by more than 1
hidden_act gelu: wrong by more than 1
Llama 3's scaling: wrong by more than 1" python - <<'END'
import ctranslate2, numpy, torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

shape = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.2)
llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
words = Tokenizer(models.WordLevel({"<unk>": 0, **{f"w{i}": i for i in range(1, 64)}}, "<unk>"))
tokens = list(range(5, 37))
for name, options in (("a plain LLaMA", {}),
                      ("attention_bias and mlp_bias", {"attention_bias": True, "mlp_bias": True}),
                      ("head_dim 32 beside 64 / 4", {"head_dim": 32}), ("hidden_act gelu", {"hidden_act": "gelu"}),
                      ("Llama 3's scaling", {"rope_parameters": llama3})):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**shape, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases
                parameter.add_(0.5 * torch.randn_like(parameter))
        expected = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    model.save_pretrained("model")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="w1",
                            eos_token="w2").save_pretrained("model")
    ctranslate2.converters.TransformersConverter("model").convert("converted", force=True)
    seen = torch.tensor(numpy.array(ctranslate2.Generator("converted").forward_batch([tokens]))[0]).log_softmax(-1)
    difference = (seen - expected).abs().max().item()
    print(f"{name}: {'equal' if difference < 1e-3 else 'wrong by more than 1' if difference > 1 else difference}")
END
