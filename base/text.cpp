#include "base/text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>

namespace teon {

std::string bytes_text(double bytes) {
    for (auto [unit, size] : {std::pair{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}})
        if (bytes >= size) return fmt::format("{:.2f} {}", bytes / size, unit);
    return fmt::format("{:.0f} B", bytes);
}

std::string count_text(double n) {
    for (auto [unit, size] : {std::pair{"B", 1e9}, {"M", 1e6}, {"k", 1e3}})
        if (n >= size) return fmt::format("{:.2f}{}", n / size, unit);
    return fmt::format("{:.0f}", n);
}

std::string duration_text(double seconds) {
    const int64_t s = static_cast<int64_t>(std::llround(seconds));
    if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
    if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
    return fmt::format("{}s", s);
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t comma; (comma = text.find(',', begin)) != std::string::npos; begin = comma + 1)
        parts.push_back(text.substr(begin, comma - begin));
    parts.push_back(text.substr(begin));
    return parts;
}

}  // namespace teon
