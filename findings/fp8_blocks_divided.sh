#!/bin/bash
# Guess: transformers decompresses FP8 weights by blocks of weight_block_size, here 128 x 128, the last ones smaller.
# Seen:  it divides the rows by the number of scales. 288 rows with three scales are read as three blocks of 96, without
#        a word, with errors of a quarter of the largest weight. 256 rows are right.
# Known: transformers 5.23.0 (2026-11). Found by comparing a reader of quantized weights with float64.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 torch==2.15.0 transformers==5.23.0 accelerate==1.15.0 safetensors==0.8.0
prints "256 rows: right
288 rows: wrong by more than 5% of the largest weight" python - <<'END'
import json, torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

for rows in (256, 288):
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=rows, num_hidden_layers=1,
                                 num_attention_heads=2, initializer_range=0.1)).save_pretrained("model")
    dense = load_file("model/model.safetensors")
    stored = dict(dense)
    for name in [name for name in dense if name.endswith("proj.weight")]:
        blocks = [part.split(128, 1) for part in dense[name].split(128)]
        scales = torch.tensor([[block.abs().max() / 448 for block in row] for row in blocks])
        stored[name] = torch.cat([torch.cat([(block / scale).to(torch.float8_e4m3fn).view(torch.uint8)
                                             for block, scale in zip(*pair)], 1) for pair in zip(blocks, scales)])
        stored[name] = stored[name].view(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
    save_file(stored, "model/model.safetensors", metadata={"format": "pt"})
    with open("model/config.json") as file:
        config = json.load(file)
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                     "weight_block_size": [128, 128]}
    with open("model/config.json", "w") as file:
        json.dump(config, file)
    config = AutoConfig.from_pretrained("model")
    config.quantization_config["dequantize"] = True
    name = "model.layers.0.mlp.up_proj.weight"
    read = AutoModelForCausalLM.from_pretrained("model", config=config, dtype=torch.float32).state_dict()[name]
    error = ((read - dense[name]).abs().max() / dense[name].abs().max()).item()
    print(f"{rows} rows:", "right" if error < 0.04 else "wrong by more than 5% of the largest weight"
          if error > 0.05 else error)
END
