#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
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

void read_rope(DecoderConfig& c, HfReader& r, float otherwise) {
    std::optional<float> base;
    std::optional<float> factor;
    std::optional<float> low;
    std::optional<float> high;
    std::optional<float> attention;
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
            HfReader of_window = rope.object(kSlidingAttention);
            HfReader of_full = rope.object(kFullAttention);
            rope.finish();
            if (c.full_every > 0) {
                take(base, of_window, "rope_theta");
                of_window.require<std::string>("rope_type", "default", "default");
                of_window.finish();
            }
            rope = c.full_every > 0 ? of_full : of_window;
        }
        take(base, rope, "rope_theta");
        take(type, rope, "rope_type");
        take(type, rope, "type");
        take(factor, rope, "factor");
        CHECK_USAGE(!type || *type == "default" || *type == "linear" || *type == "llama3" || *type == "yarn",
                    "{}: rope_type is {}; only default, linear, llama3 and yarn are supported", rope.path(), *type);
        if (type == "llama3" || type == "yarn") {
            take(low, rope, type == "yarn" ? "beta_slow" : "low_freq_factor");
            take(high, rope, type == "yarn" ? "beta_fast" : "high_freq_factor");
            take(original, rope, "original_max_position_embeddings");
        }
        if (type == "yarn") {
            take(attention, rope, "attention_factor");
            rope.require("truncate", true, true);
        }
        rope.finish();
    }
    const std::string kind = type.value_or("default");
    CHECK_USAGE((kind == "default") == !factor, "{}: rope_type is {}, but its factor is {}", r.path(), kind,
                factor ? fmt::format("{}", *factor) : "missing");
    c.rope_base = base.value_or(otherwise);
    c.rope_scaling = factor.value_or(1.0f);
    c.rope_low_turns = low.value_or(0.0f);
    c.rope_high_turns = high.value_or(0.0f);
    c.rope_original_context = original.value_or(0);
    c.rope_attention = 0;
    if (kind == "yarn") {  // with transformers' defaults
        c.rope_low_turns = low.value_or(1.0f);
        c.rope_high_turns = high.value_or(32.0f);
        c.rope_original_context = original.value_or(c.max_T);
        c.rope_attention = attention.value_or(*factor > 1 ? 0.1f * std::log(*factor) + 1.0f : 1.0f);
        CHECK_USAGE(0 < c.rope_low_turns && c.rope_low_turns < c.rope_high_turns && c.rope_original_context > 0 &&
                        c.rope_attention > 0 && c.rope_base > 1,
                    "{}: rope_type is yarn, which needs 0 < beta_slow < beta_fast, an attention_factor above 0 and a "
                    "rope_theta above 1",
                    r.path());
    }
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

Json every_nth(int count, int n, const Json& nth, const Json& others) {
    Json list = Json::array();
    for (int i = 1; i <= count; ++i) list.push_back(n > 0 && i % n == 0 ? nth : others);
    return list;
}

int read_every_nth(HfReader& r, const std::string& key, int count, const Json& nth, const Json& others, int otherwise) {
    const Json list = r.get(key, every_nth(count, otherwise, nth, others));
    CHECK_USAGE(list.is_array(), "{}: {} is {}, not a list", r.path(), key, shown(list));
    const auto first = std::ranges::find(list.items(), nth);
    const int n = first == list.items().end() ? 0 : static_cast<int>(first - list.items().begin()) + 1;
    CHECK_USAGE(list == every_nth(count, n, nth, others),
                "{}: {} is {}; only {} items are supported that are all {}, or each n-th of which is {}", r.path(), key,
                shown(list), count, shown(others), shown(nth));
    return n;
}

Json layer_types_json(const DecoderConfig& c) {
    return every_nth(c.L, c.full_every, kFullAttention, kSlidingAttention);
}

Json rope_base_json(const DecoderConfig& c) { return as_written(c.rope_base); }

Json dropout_json(const DecoderConfig& c) { return as_written(c.dropout); }

// Versions of transformers before 4.43 and programs of their time read `type`.
Json rope_scaling_json(const DecoderConfig& c) {
    if (c.rope_attention > 0)
        return {{"rope_type", "yarn"},
                {"type", "yarn"},
                {"factor", as_written(c.rope_scaling)},
                {"beta_slow", as_written(c.rope_low_turns)},
                {"beta_fast", as_written(c.rope_high_turns)},
                {"attention_factor", as_written(c.rope_attention)},
                {"original_max_position_embeddings", c.rope_original_context}};
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
