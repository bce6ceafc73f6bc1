// How GPT-2 splits text into words before byte-pair encoding (Radford et al. 2019; the pattern is in
// https://github.com/openai/gpt-2, encoder.py):
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

#include <cstddef>
#include <string_view>

namespace teon {

// Returns the length in bytes of the first word of `text`, which is not empty. A byte that is not UTF-8 is a symbol.
size_t first_word(std::string_view text);

}  // namespace teon
