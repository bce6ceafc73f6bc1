// Quantities as people read them.
#pragma once

#include <string>

namespace teon {

std::string bytes_text(double bytes);      // "1.50 GiB", "12 B"
std::string count_text(double n);          // "12.30M", "7"
std::string duration_text(double seconds);  // "1h02m", "3m12s", "45s"

}  // namespace teon
