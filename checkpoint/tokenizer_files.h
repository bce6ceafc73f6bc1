// The tokenizer files of a checkpoint.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace teon {

// Returns the tokenizer's folder beside a shard, where scripts/prepare.py writes it.
std::string tokenizer_folder(const std::string& shard);

// Returns path and content of each tokenizer file of a checkpoint: the files of `folder` unchanged under tokenizer/,
// and at the top those that Hugging Face's AutoTokenizer reads, under the names that it expects: GPT-2's also as
// tokenizer.json, and a SentencePiece model also as the tokenizer.json that prepare.py made of it. The tokenizer at the
// top puts the token `begin` (-1: none) before each text, as ./generate does, unless it has a template, and names the
// tokens for unknown text and for padding that it has. Returns nothing if `folder` does not exist. max_length is the
// model's context. Throws Error naming a file that cannot be read or is damaged.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const std::string& folder, int max_length, int begin);

}  // namespace teon
