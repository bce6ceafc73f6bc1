// Damaged inputs, the same ones each time: mutations of a whole one, more of them under `make soak`.
#pragma once

#include <cstdlib>
#include <random>
#include <span>
#include <string>

namespace teon::test {

inline int fuzz_rounds(int usual) { return std::getenv("TEON_SOAK") ? 20 * usual : usual; }

class Fuzz {
public:
    explicit Fuzz(uint64_t seed) : random_(seed) {}

    size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
    template <typename List>
    const auto& any(const List& list) {
        return list[below(std::size(list))];
    }
    // The seed with a few bytes flipped, replaced, removed, repeated, or with pieces of its language put in.
    std::string damaged(std::string text, std::span<const char* const> pieces) {
        for (size_t changes = 1 + below(3); changes > 0; --changes) {
            const size_t at = below(text.size() + 1);
            switch (below(6)) {
                case 0:
                    if (at < text.size()) text[at] ^= static_cast<char>(1 << below(8));
                    break;
                case 1:
                    if (at < text.size()) text[at] = static_cast<char>(below(256));
                    break;
                case 2:
                    text.insert(at, any(pieces));
                    break;
                case 3:
                    text.replace(at, below(8), any(pieces));
                    break;
                case 4:
                    text.insert(at, text.substr(below(text.size() + 1), below(40)));
                    break;
                default:
                    text.resize(at);
            }
        }
        return text;
    }

private:
    std::mt19937_64 random_;
};

}  // namespace teon::test
