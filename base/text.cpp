#include "base/text.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
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

std::string wrapped(const std::string& text, size_t indent, size_t width) {
    std::string out;
    size_t column = indent;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at), text.size());
        if (column > indent && column + 1 + end - at > width) {
            out += '\n';
            out.append(indent, ' ');
            column = indent;
        } else if (column > indent) {
            out += ' ';
            ++column;
        }
        out += text.substr(at, end - at);
        column += end - at;
        at = end + 1;
    }
    return out;
}

int terminal_columns() {
    struct winsize size = {};
    return ::ioctl(::fileno(stdout), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

size_t text_width() {
    const int columns = terminal_columns();
    return columns > 0 ? static_cast<size_t>(std::max(columns, 60)) : SIZE_MAX;
}

std::string lower_case(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
}

namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::string without_middle(std::string_view text, size_t max_bytes) {
    if (text.size() <= max_bytes) return std::string(text);
    size_t begin = max_bytes * 2 / 3;
    size_t end = text.size() - max_bytes / 4;
    while (begin > 0 && continues_character(text[begin])) --begin;
    while (end < text.size() && continues_character(text[end])) ++end;
    return fmt::format("{}...{}", text.substr(0, begin), text.substr(end));
}

}  // namespace

std::string shortened(std::string_view text) {
    constexpr size_t kMostInWord = 400;
    constexpr size_t kMost = 2000;
    std::string out;
    while (!text.empty()) {
        const size_t end = std::min(text.find_first_of(" \n"), text.size() - 1) + 1;  // with the blank after it
        out += without_middle(text.substr(0, end), kMostInWord);
        text.remove_prefix(end);
    }
    return without_middle(out, kMost);
}

double as_written(float x) { return std::stod(fmt::format("{}", x)); }

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', begin)) {
        parts.push_back(text.substr(begin, comma - begin));
        begin = comma + 1;
    }
    parts.push_back(text.substr(begin));
    return parts;
}

std::string alternatives(std::vector<std::string> names) {
    if (names.size() < 2) return joined(names, "");
    const std::string last = std::move(names.back());
    names.pop_back();
    return joined(names, ", ") + " or " + last;
}

}  // namespace teon
