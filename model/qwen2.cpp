#include "model/qwen2.h"

#include "model/llama.h"
#include "model/qwen3.h"

namespace teon {

namespace {

DecoderConfig qwen2_preset(const char* name, int C, int L, int NH, int NKV, int F, int V = 151936,
                           bool tied_head = true) {
    DecoderConfig c = llama_family().config("tiny");
    c.set_preset("qwen2", name, C, L, NH, NKV, F);
    c.V = V;
    c.attention_biases = true;
    c.attention_out_bias = false;
    c.tied_head = tied_head;
    c.rope_base = 1e6f;
    return c;
}

// Qwen3Config's keys with these differences.
std::vector<HfKey> qwen2_keys() {
    std::vector<HfKey> keys = qwen3_family().hf_keys;
    std::erase_if(keys, [](const HfKey& k) { return k.key == "attention_bias"; });  // the class decides
    for (HfKey& k : keys)
        if (k.key == "head_dim") k.otherwise = [](const DecoderConfig& c) { return c.C / c.NH; };
    return keys;
}

}  // namespace

ModelFamily qwen2_family() {
    return {.name = "qwen2",
            .title = "Qwen2",
            .default_preset = "0.5b",
            // The shapes of Qwen2.5 (arXiv 2412.15115, Table 1; MLPs and vocabularies from their config.json).
            .presets = {qwen2_preset("tiny", 128, 4, 4, 2, 344),                     // for CPUs and tests
                        qwen2_preset("0.5b", 896, 24, 14, 2, 4864),                  // 494.03M
                        qwen2_preset("1.5b", 1536, 28, 12, 2, 8960),                 // 1543.71M
                        qwen2_preset("3b", 2048, 36, 16, 2, 11008),                  // 3085.94M
                        qwen2_preset("7b", 3584, 28, 28, 4, 18944, 152064, false)},  // 7615.62M
            .mlps = activations(/*gated=*/true),
            .hf_class = "Qwen2ForCausalLM",
            .hf_keys = qwen2_keys(),
            .hf_window = qwen3_family().hf_window,
            .read_hf = qwen3_family().read_hf};
}

}  // namespace teon
