// Multiple-choice questions in llm.c's evaluation format (https://github.com/karpathy/llm.c, dev/data), in which
// HellaSwag (Zellers et al. 2019, https://arxiv.org/abs/1905.07830) is distributed for GPT-2's tokenizer.
//
// A header of 256 little-endian int32 (magic 20240522, version 1, number of examples, bytes of the longest), then for
// each example uint16: 65535, its size in bytes, its index, the number of the right ending, the number of endings; then
// the context and each ending, as a length and that many tokens.
#pragma once

#include <string>
#include <vector>

namespace teon {

struct MultipleChoice {
    int label = 0;                          // of the right ending
    std::vector<int> context;               // at least one token
    std::vector<std::vector<int>> endings;  // at least one token each
};

// Reads all questions of a file. Throws UsageError naming file, example and fault, such as a token outside
// [0, vocab_size).
std::vector<MultipleChoice> read_multiple_choice(const std::string& path, int vocab_size);

}  // namespace teon
