#include "options/option_table.h"

#include <charconv>

namespace teon {

std::optional<double> parse_number(std::string_view text) {
    double factor = 1;
    for (auto [suffix, value] : {std::pair{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}})
        if (text.ends_with(suffix)) {
            factor = value;
            text.remove_suffix(2);
        }
    std::string digits(text);
    for (auto [suffix, exponent] : {std::pair{'k', "e3"}, {'K', "e3"}, {'M', "e6"}, {'G', "e9"}, {'B', "e9"}})
        if (factor == 1 && text.ends_with(suffix)) digits.replace(text.size() - 1, 1, exponent);  // 4.1M is exact
    double value = 0;
    const char* const last = digits.data() + digits.size();
    auto [end, error] = std::from_chars(digits.data(), last, value);
    value *= factor;
    if (error != std::errc() || end != last || !std::isfinite(value)) return std::nullopt;
    return value;
}

std::optional<double> parse_duration(std::string_view text) {
    struct Unit {
        char name;
        double seconds;
    };
    double total = 0;
    double last = INFINITY;
    do {
        int64_t count = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
        if (error != std::errc() || count < 0) return std::nullopt;
        text.remove_prefix(static_cast<size_t>(end - text.data()));
        double seconds = text.empty() && total == 0 && std::isinf(last) ? 1 : 0;  // a number alone
        for (const Unit& unit : {Unit{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}})
            if (!text.empty() && text[0] == unit.name) seconds = unit.seconds;
        if (seconds == 0 || seconds >= last) return std::nullopt;
        if (!text.empty()) text.remove_prefix(1);
        last = seconds;
        total += static_cast<double>(count) * seconds;
    } while (!text.empty());
    return total;
}

}  // namespace teon
