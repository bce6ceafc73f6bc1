// Formats quantities for people to read, and splits lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teon {

std::string bytes_text(double bytes);       // "1.50 GiB", "12 B"
std::string count_text(double n);           // "12.30M", "7"
std::string duration_text(double seconds);  // "1h02m", "3m12s", "45s"

// Returns the text, of which at most 2,000 bytes remain, and of each word (a file's name, a key) at most 400: what is
// left out of the middle becomes "...". For messages, whose names may come from a hostile file. Keeps UTF-8 whole.
std::string shortened(std::string_view text);

// Returns the parts of the text between commas; one part if there is no comma.
std::vector<std::string> split(const std::string& text);

}  // namespace teon
