// The tokenizer files of a checkpoint.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace teon {

// Beside the shards, where scripts/prepare.py writes it.
std::string tokenizer_folder(const std::string& shard);

// Path and content of each file: `folder`, which scripts/prepare.py writes beside the shards, unchanged under
// tokenizer/, and again at the top under the names that Hugging Face's AutoTokenizer expects, GPT-2's also as
// tokenizer.json. The tokenizer at the top puts the token `begin` (-1: none) before each text, as ./generate does,
// unless it has a template. Empty if `folder` does not exist. max_length: the model's context. Throws Error naming a
// file that cannot be read.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const std::string& folder, int max_length, int begin);

}  // namespace teon
