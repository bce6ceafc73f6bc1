// The tokenizer that goes with a checkpoint.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace teon {

// Where scripts/prepare.py leaves it: beside the shards.
std::string tokenizer_folder(const std::string& shard);

// Path and content of each file: the folder that scripts/prepare.py leaves beside shards, as it is under tokenizer/,
// and once more at the top under the names by which Hugging Face's AutoTokenizer finds it, GPT-2's also as a
// tokenizer.json. That at the top begins each text with the token `begin` (-1: none), as ./generate does, unless it has
// a template of its own. Empty if `folder` is not there. max_length: the model's context. Throws Error naming a file
// that cannot be read.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const std::string& folder, int max_length, int begin);

}  // namespace teon
