// Quantities as people read them, and lists as they write them.
#pragma once

#include <string>
#include <vector>

namespace teon {

std::string bytes_text(double bytes);       // "1.50 GiB", "12 B"
std::string count_text(double n);           // "12.30M", "7"
std::string duration_text(double seconds);  // "1h02m", "3m12s", "45s"

// The parts of text between commas; one part if it has none.
std::vector<std::string> split(const std::string& text);

}  // namespace teon
