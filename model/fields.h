// The fields of a model, one row each. From the rows come the model flags of the training programs, their agreement
// with the model of --init-from, the model in a run's config.json and checkpoints, what --resume compares, and, by the
// names that a family gives (family.h), Hugging Face's config.json. A new field is a row here, and where it is used.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "model/decoder_config.h"

namespace teon {

struct ModelField {
    std::string key;  // "kv_heads" in a run's config.json; its flag is --kv-heads
    std::variant<int DecoderConfig::*, float DecoderConfig::*, bool DecoderConfig::*, MlpKind DecoderConfig::*,
                 NormPlacement DecoderConfig::*, QkNorm DecoderConfig::*>
        member;
    double least = 0, most = 0;  // of a number

    std::string help = {};  // of the flag; empty: the field has none
    // What --help says of a model without the flag. Empty: all presets have DecoderConfig's default, which --help shows
    // and a run's config.json holds.
    std::string default_text = {};
    bool rotary = false;    // only families with rotary positions have the flag
    bool in_preset = true;  // --model stands for a value of this field, with which a model of --init-from must agree
    bool logged = true;     // in the model of a run's config.json

    int (*otherwise)(const DecoderConfig& c) = nullptr;  // what 0 stands for
    // Sets the fields that follow this one unless they are given themselves; `before` is the model without the change.
    void (*follow)(DecoderConfig& c, const DecoderConfig& before) = nullptr;

    bool has_flag() const { return !help.empty(); }
    std::string flag() const;
    std::string name() const { return has_flag() ? flag() : key; }  // for messages

    // As JSON: a number, a boolean, or an enum's name.
    nlohmann::json get(const DecoderConfig& c) const;
    std::string text(const DecoderConfig& c) const;  // the same for messages
    // Throws UsageError that begins with `where` if the value has another type or is outside the range.
    void set(DecoderConfig& c, const nlohmann::json& value, const std::string& where) const;
};

using ModelFields = std::vector<ModelField>;

const ModelFields& model_fields();                                              // all that there are
const ModelField& field_of(const ModelFields& fields, const std::string& key);  // throws Error if there is none

// The logged fields by key.
nlohmann::json model_json(const ModelFields& fields, const DecoderConfig& c);

// `c` with the values of `given`, by key.
DecoderConfig with_fields(const ModelFields& fields, DecoderConfig c, const nlohmann::json& given);

// Throws UsageError unless the sizes are within their limits (model/fields.cpp) and fit together: NH a multiple of NKV,
// C of NH where heads have no size of their own, HS even for rotary.
void validate(const DecoderConfig& c);

}  // namespace teon
