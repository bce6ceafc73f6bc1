// How GPT-2 cuts text into the words that byte-pair encoding then works on (Radford et al. 2019; the pattern is in
// https://github.com/openai/gpt-2, encoder.py):
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

#include <cstddef>
#include <string_view>

namespace teon {

// Bytes of the word that `text`, UTF-8 and not empty, begins with. A byte that is not UTF-8 counts as a symbol.
size_t first_word(std::string_view text);

}  // namespace teon
