// Formats quantities for people to read, and splits lists.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace teon {

std::string bytes_text(double bytes);       // "1.50 GiB", "12 B"
std::string count_text(double n);           // "12.30M", "7"
std::string duration_text(double seconds);  // "1h02m", "3m12s", "45s"

// Returns the shortest decimal number that rounds to x: 1e-05, not 9.999999747378752e-06.
double as_written(float x);
inline double as_written(double x) { return x; }

// Wraps the text to `width` columns. Each line but the first begins with `indent` blanks.
std::string wrapped(const std::string& text, size_t indent, size_t width);

// Returns the width of the terminal that standard output goes to; 0 if it goes elsewhere or the width is unknown.
// mpirun gives its ranks such a terminal even if its own output is piped.
int terminal_columns();

// Returns the columns to wrap text to: the terminal's, at least 60; without limit for text that goes to a file.
size_t text_width();

std::string lower_case(std::string text);  // of ASCII letters

// Returns the text, of which at most 2,000 bytes remain, and of each word (a file's name, a key) at most 400: what is
// left out of the middle becomes "...". For messages, whose names may come from a hostile file. Keeps UTF-8 whole.
std::string shortened(std::string_view text);

// Returns the parts of the text between commas; one part if there is no comma.
std::vector<std::string> split(const std::string& text);

// Returns the parts, texts or whole numbers, with `separator` between them. (fmt's own join compiles slowly.)
template <typename Parts>
std::string joined(const Parts& parts, std::string_view separator) {
    std::string text;
    std::string_view before;
    for (const auto& part : parts) {
        text += before;
        if constexpr (std::is_convertible_v<decltype(part), std::string_view>) {
            text += part;
        } else {
            text += std::to_string(part);
        }
        before = separator;
    }
    return text;
}

std::string alternatives(std::vector<std::string> names);  // "a, b or c"

}  // namespace teon
