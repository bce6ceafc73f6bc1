// What distinguishes one training program from another.
#pragma once

#include <string>
#include <vector>

#include "model/decoder.h"

namespace teon {

struct ModelFamily {
    std::string program;         // "train_gpt2"
    std::string default_preset;  // "small"
    std::vector<std::string> presets;
    DecoderConfig (*config)(const std::string& preset);
};

}  // namespace teon
