// Damages valid inputs by random mutations. Every run makes the same mutations, except under `make soak`
// (test/programs/soak.py), which repeats the tests with names that end in (fuzz), each time with other mutations.
#pragma once

#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>

namespace teon::test {

// The seed, changed by TEON_FUZZ_SEED if that is set.
inline uint64_t fuzz_seed(uint64_t seed) {
    const char* text = std::getenv("TEON_FUZZ_SEED");
    return text ? seed + 1000 * std::strtoull(text, nullptr, 10) : seed;
}

// Appends the number of inputs that a test tries to the file TEON_FUZZ_COUNT, if set, and returns it. Each test calls
// this once.
inline int fuzz_rounds(int rounds) {
    if (const char* path = std::getenv("TEON_FUZZ_COUNT")) std::ofstream(path, std::ios::app) << rounds << "\n";
    return rounds;
}

class Fuzz {
public:
    explicit Fuzz(uint64_t seed) : random_(fuzz_seed(seed)) {}

    size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
    template <typename List>
    const auto& any(const List& list) {
        return list[below(std::size(list))];
    }
    // The text after one to three changes: a bit flipped, bytes replaced or repeated, the end cut off, or one of the
    // `pieces` of its language inserted.
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
