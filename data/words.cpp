#include "data/words.h"

#include <algorithm>
#include <array>

#include "data/unicode_classes.h"

namespace teon {

namespace {

enum class Kind { letter, number, space, symbol, end };

struct Character {
    Kind kind;
    size_t bytes;
};

template <size_t N>
constexpr std::array<char32_t, N> ends_of(const int (&runs)[N]) {
    std::array<char32_t, N> ends{};
    char32_t end = 0;
    for (size_t i = 0; i < N; ++i) ends[i] = end += static_cast<char32_t>(runs[i]);
    return ends;
}
constexpr auto kLetterEnds = ends_of(kLetterRuns);
constexpr auto kNumberEnds = ends_of(kNumberRuns);

template <size_t N>
bool is_inside(const std::array<char32_t, N>& ends, char32_t c) {
    return (std::upper_bound(ends.begin(), ends.end(), c) - ends.begin()) % 2 == 1;
}

// Unicode's White_Space.
bool is_space(char32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

Kind kind_of(char32_t c) {
    if (is_space(c)) return Kind::space;
    if (is_inside(kLetterEnds, c)) return Kind::letter;
    return is_inside(kNumberEnds, c) ? Kind::number : Kind::symbol;
}

Character character_at(std::string_view text, size_t at) {
    if (at >= text.size()) return {Kind::end, 0};
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) return {kind_of(lead), 1};
    const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc0 || at + bytes > text.size()) return {Kind::symbol, 1};
    char32_t c = lead & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; ++i) {
        const auto next = static_cast<unsigned char>(text[at + i]);
        if ((next & 0xc0) != 0x80) return {Kind::symbol, 1};
        c = c << 6 | (next & 0x3f);
    }
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // smaller code points have a shorter encoding
    return c < kLeast[bytes] ? Character{Kind::symbol, 1} : Character{kind_of(c), bytes};
}

}  // namespace

size_t first_word(std::string_view text) {
    for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
        if (text.starts_with(ending)) return ending.size();

    // One blank belongs to the word after it.
    size_t end = text[0] == ' ' ? 1 : 0;
    const Kind kind = character_at(text, end).kind;
    if (kind != Kind::space && kind != Kind::end) {
        for (Character c = character_at(text, end); c.kind == kind; c = character_at(text, end)) end += c.bytes;
        return end;
    }

    // A run of spaces, without the last of several if a word follows.
    size_t last = 0;
    end = 0;
    for (Character c = character_at(text, 0); c.kind == Kind::space; c = character_at(text, end)) {
        last = end;
        end += c.bytes;
    }
    return end < text.size() && last > 0 ? last : end;
}

}  // namespace teon
