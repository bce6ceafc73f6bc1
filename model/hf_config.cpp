#include "model/hf_config.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace teon {

HfReader HfReader::object(const std::string& key) {
    const auto inner = get<Json>(key, Json::object());
    CHECK_USAGE(inner.is_object(), "{}: {} is {}, not an object", path_, key, shown(inner));
    return HfReader(inner, fmt::format("{}: {}", path_, key));
}

std::vector<std::string> HfReader::finish(const HarmlessKeys& harmless) const {
    std::vector<std::string> names;
    for (const auto& [key, value] : j_.members()) {
        if (known_.count(key) || value.is_null()) continue;
        const auto entry = harmless.find(key);
        CHECK_USAGE(entry != harmless.end(), "{}: {} is {}, which is unknown; remove it if logits do not depend on it",
                    path_, key, shown(value));
        const std::vector<Json>& values = entry->second;
        CHECK_USAGE(values.empty() || std::find(values.begin(), values.end(), value) != values.end(),
                    "{}: {} is {}; only {} is supported", path_, key, shown(value), shown(Json::array_of(values)));
        names.push_back(key);
    }
    return names;
}

const HarmlessKeys& harmless_keys() {
    static const HarmlessKeys keys = {
        // who wrote the file, and the class that loads it
        {"_commit_hash", {}},
        {"_from_model_config", {}},
        {"auto_map", {}},
        {"finetuning_task", {}},
        {"is_llama_config", {}},
        {"model_name", {}},
        {"tokenizer_class", {}},
        {"transformers.js_config", {}},
        {"unsloth_fixed", {}},
        {"unsloth_version", {}},
        // which implementation computes the same
        {"_attn_implementation", {}},
        {"_attn_implementation_autoset", {}},
        {"_flash_attn_2_enabled", {}},
        {"attn_implementation", {}},
        {"torchscript", {}},
        {"use_bfloat16", {}},
        {"use_flash_attention_2", {}},
        // generation, and tokens of other tasks
        {"bad_words_ids", {}},
        {"begin_suppress_tokens", {}},
        {"decoder_start_token_id", {}},
        {"diversity_penalty", {}},
        {"do_sample", {}},
        {"early_stopping", {}},
        {"encoder_no_repeat_ngram_size", {}},
        {"exponential_decay_length_penalty", {}},
        {"forced_bos_token_id", {}},
        {"forced_eos_token_id", {}},
        {"is_decoder", {}},
        {"length_penalty", {}},
        {"max_length", {}},
        {"max_sequence_length", {}},
        {"min_length", {}},
        {"no_repeat_ngram_size", {}},
        {"num_beam_groups", {}},
        {"num_beams", {}},
        {"num_return_sequences", {}},
        {"output_scores", {}},
        {"prefix", {}},
        {"remove_invalid_values", {}},
        {"repetition_penalty", {}},
        {"return_dict_in_generate", {}},
        {"sep_token_id", {}},
        {"suppress_tokens", {}},
        {"temperature", {}},
        {"top_k", {}},
        {"top_p", {}},
        {"typical_p", {}},
        // heads for other tasks
        {"_num_labels", {}},
        {"predict_special_tokens", {}},
        // what only these values leave as it is
        {"is_causal", {true}},
        {"mlp_bias", {false}},
        {"n_special", {0}},
        {"partial_rotary_factor", {1.0}},
        {"pruned_heads", {Json::object()}},
        {"rope_interleaved", {false}},
        {"tie_encoder_decoder", {false}},
    };
    return keys;
}

void read_rope(DecoderConfig& c, HfReader& r) {
    std::optional<float> base;
    std::optional<float> factor;
    std::optional<float> low;
    std::optional<float> high;
    std::optional<int> original;
    std::optional<std::string> type;
    auto take = [](auto& field, HfReader& from, const char* key) {
        using Value = typename std::remove_reference_t<decltype(field)>::value_type;
        const Value value = from.get(key, Value());
        if (!from.has(key)) return;
        CHECK_USAGE(!field || *field == value, "{}: {} is {}, but another field of the file says {}", from.path(), key,
                    value, *field);
        field = value;
    };
    take(base, r, "rope_theta");
    for (const char* place : {"rope_parameters", "rope_scaling"}) {
        HfReader rope = r.object(place);
        if (r.get<std::string>("model_type", "") == "olmo3" && rope.has(kSlidingAttention)) {  // by layer_types
            rope.ignore({kFullAttention});
            HfReader of_window = rope.object(kSlidingAttention);
            rope.finish();
            rope = of_window;
        }
        take(base, rope, "rope_theta");
        take(type, rope, "rope_type");
        take(type, rope, "type");
        take(factor, rope, "factor");
        CHECK_USAGE(!type || *type == "default" || *type == "linear" || *type == "llama3",
                    "{}: rope_type is {}; only default, linear and llama3 are supported", rope.path(), *type);
        if (type == "llama3") {
            take(low, rope, "low_freq_factor");
            take(high, rope, "high_freq_factor");
            take(original, rope, "original_max_position_embeddings");
        }
        rope.finish();
    }
    const std::string kind = type.value_or("default");
    CHECK_USAGE((kind == "default") == !factor, "{}: rope_type is {}, but its factor is {}", r.path(), kind,
                factor ? fmt::format("{}", *factor) : "missing");
    c.rope_base = base.value_or(10000.0f);
    c.rope_scaling = factor.value_or(1.0f);
    c.rope_low_turns = low.value_or(0.0f);
    c.rope_high_turns = high.value_or(0.0f);
    c.rope_original_context = original.value_or(0);
    CHECK_USAGE(kind != "llama3" || (low && high && c.rope_original_context > 0 && *low < *high),
                "{}: rope_type is llama3, which needs original_max_position_embeddings and a low_freq_factor below "
                "high_freq_factor",
                r.path());
}

int read_window(HfReader& r) {
    const std::string key = "sliding_window";
    const int window = r.get(key, r.names(key) ? 0 : 4096);
    CHECK_USAGE(window >= 1 || !r.has(key), "{}: {} is {}, expected null or at least 1", r.path(), key, window);
    return window;
}

Json same_layer_types(const DecoderConfig& c, const std::string& type) {
    return Json::array_of(std::vector<std::string>(static_cast<size_t>(c.L), type));
}

Json sliding_layers_json(const DecoderConfig& c) { return same_layer_types(c, kSlidingAttention); }

Json rope_base_json(const DecoderConfig& c) { return as_written(c.rope_base); }

Json dropout_json(const DecoderConfig& c) { return as_written(c.dropout); }

// Versions of transformers before 4.43 and programs of their time read `type`.
Json rope_scaling_json(const DecoderConfig& c) {
    if (c.rope_original_context > 0)
        return {{"rope_type", "llama3"},
                {"type", "llama3"},
                {"factor", as_written(c.rope_scaling)},
                {"low_freq_factor", as_written(c.rope_low_turns)},
                {"high_freq_factor", as_written(c.rope_high_turns)},
                {"original_max_position_embeddings", c.rope_original_context}};
    if (c.rope_scaling == 1.0f) return nullptr;
    return {{"rope_type", "linear"}, {"type", "linear"}, {"factor", as_written(c.rope_scaling)}};
}

}  // namespace teon
