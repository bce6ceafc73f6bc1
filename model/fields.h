// The fields of a model, one row each. The rows define the model flags of the training programs, their comparison with
// the model of --init-from, the model in a run's config.json and in checkpoints, the comparison by --resume and, under
// the keys that a family gives (family.h), Hugging Face's config.json. A new field needs a row here and the code that
// uses it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "files/json.h"
#include "model/decoder_config.h"

namespace teon {

struct ModelField {
    std::string key;  // "kv_heads" in a run's config.json; its flag is --kv-heads
    std::variant<int DecoderConfig::*, float DecoderConfig::*, bool DecoderConfig::*, ActivationKind DecoderConfig::*,
                 NormPlacement DecoderConfig::*, QkNorm DecoderConfig::*>
        member;
    double least = 0, most = 0;  // the range of a number

    std::string help = {};  // of the flag; empty: the field has no flag
    // The default that --help shows. Empty: all presets have DecoderConfig's default, which --help and a run's
    // config.json show.
    std::string default_text = {};
    bool rotary = false;      // only families with rotary positions have the flag
    std::string family = {};  // the only one with the flag; empty: all
    bool in_preset = true;    // --model implies a value, which the model of --init-from must match
    bool of_run = false;      // not adopted from the model of --init-from
    bool logged = true;       // written to the model in a run's config.json

    int (*otherwise)(const DecoderConfig& c) = nullptr;  // the value that 0 stands for
    // Adjusts the fields that depend on this one; values given for those fields override it. `before` is the model
    // before the change.
    void (*follow)(DecoderConfig& c, const DecoderConfig& before) = nullptr;

    bool has_flag() const { return !help.empty(); }
    bool is_activation() const { return std::holds_alternative<ActivationKind DecoderConfig::*>(member); }
    std::string flag() const;
    std::string name() const { return has_flag() ? flag() : key; }  // for messages

    // The value as JSON: a number, a boolean, or the name of an enum's value.
    Json get(const DecoderConfig& c) const;
    std::string text(const DecoderConfig& c) const;  // the same value for messages
    // Throws UsageError that begins with `where` if the value has the wrong type or is outside the range.
    void set(DecoderConfig& c, const Json& value, const std::string& where) const;
};

using ModelFields = std::vector<ModelField>;

const ModelFields& model_fields();                                              // all fields
const ModelField& field_of(const ModelFields& fields, const std::string& key);  // throws Error if there is none

// Returns the logged fields by key.
Json model_json(const ModelFields& fields, const DecoderConfig& c);

// Returns `c` with these values, by key.
DecoderConfig with_fields(const ModelFields& fields, DecoderConfig c, const Json& values);

// Throws UsageError unless all numbers are within their limits (model/fields.cpp) and consistent: NH is a multiple of
// NKV, C of NH if head_size is 0, and HS is even for rotary positions.
void validate(const DecoderConfig& c);

}  // namespace teon
