#include "model/smollm3.h"

#include "model/hf_config.h"
#include "model/llama.h"
#include "model/qwen3.h"

namespace teon {

namespace {

DecoderConfig smollm3_preset(const char* name, int C, int L, int NH, int NKV, int F) {
    DecoderConfig c = llama_family().config("tiny");
    c.set_preset("smollm3", name, C, L, NH, NKV, F);
    c.V = 128256;
    c.tied_head = true;
    c.rope_base = 2e6f;
    c.unrotated_every = 4;
    return c;
}

Json rotated_layers_json(const DecoderConfig& c) { return every_nth(c.L, c.unrotated_every, 0, 1); }

// LlamaConfig's keys and which layers rotate.
std::vector<HfKey> smollm3_keys() {
    std::vector<HfKey> keys = llama_family().hf_keys;
    keys.push_back({.key = "no_rope_layers", .write = rotated_layers_json});
    keys.push_back({.key = "use_sliding_window", .write = always(false)});
    return keys;
}

void read_smollm3(DecoderConfig& c, HfReader& r) {
    // SmolLM3Config's own default has the window in layers without rotation.
    CHECK_USAGE(!r.get("use_sliding_window", false) || r.has("layer_types"), "{}: layer_types is missing", r.path());
    qwen3_family().read_hf(c, r);
    read_rope(c, r, 2e6f);
    const int interval = r.get("no_rope_layer_interval", 4);
    CHECK_USAGE(interval >= 1, "{}: no_rope_layer_interval is {}, expected at least 1", r.path(), interval);
    const int every = read_every_nth(r, "no_rope_layers", c.L, 0, 1, interval);
    c.unrotated_every = every == 0 && c.L < interval ? interval : every;  // too few layers to tell
}

}  // namespace

ModelFamily smollm3_family() {
    return {.name = "smollm3",
            .title = "SmolLM3",
            .default_preset = "3b",
            .presets = {smollm3_preset("tiny", 128, 4, 4, 2, 344),      // for CPUs and tests
                        smollm3_preset("3b", 2048, 36, 16, 4, 11008)},  // 3075.10M, HuggingFaceTB/SmolLM3-3B
            .mlps = activations(/*gated=*/true),
            .hf_class = "SmolLM3ForCausalLM",
            .hf_keys = smollm3_keys(),
            .hf_window = qwen3_family().hf_window,
            .hf_tied_head = true,
            .read_hf = read_smollm3};
}

}  // namespace teon
