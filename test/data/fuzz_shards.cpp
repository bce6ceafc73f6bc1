// Fuzzes the shard header in a plain loop over generated inputs, which are the same in every run. It needs no installed
// fuzzer, and runs under the sanitizers with the other tests. FUZZ_SHARDS=10000000 makes it try more inputs.
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/check.h"
#include "data/shards.h"
#include "test/support/catch.h"
#include "test/support/fuzz.h"
#include "test/support/write_shard.h"

using namespace teon;
using namespace teon::test;

namespace {

struct Input {
    std::vector<std::byte> header;
    int64_t file_bytes;
};

// Generates mostly valid shards with a few faults, since random bytes never get past the magic number.
Input generate(std::mt19937_64& random) {
    auto chance = [&](int in) { return random() % in == 0; };
    const int width = chance(2) ? 2 : 4;
    const int32_t edges[] = {0, 1, 2, -1, INT32_MAX, INT32_MIN, 20240520, 20240801, 1 << 30, 7};
    const auto tokens = static_cast<int32_t>(chance(2) ? random() % 1000 : random());
    ShardHeader header(width, tokens);
    Input input;
    input.file_bytes = 1024 + int64_t{tokens} * width;
    for (int i = 0; i < 3; ++i) {
        if (chance(8)) header.word[i] = edges[random() % std::size(edges)];
        if (chance(8)) header.word[i] ^= 1 << random() % 32;
        if (chance(16)) header.word[i] = static_cast<int32_t>(random());
    }
    if (chance(4)) header.word[3 + random() % 253] = static_cast<int32_t>(random());  // words without meaning
    if (chance(8)) input.file_bytes += static_cast<int64_t>(random() % 9) - 4;
    if (chance(16)) input.file_bytes = static_cast<int64_t>(random() % 3000);
    if (chance(64)) input.file_bytes = static_cast<int64_t>(random());
    // The header has exactly the file's length and is on the heap, so that a sanitizer sees reads beyond its end.
    size_t held = static_cast<size_t>(std::clamp<int64_t>(input.file_bytes, 0, 1024));
    if (chance(32)) held = random() % (held + 1);
    input.header.resize(held);
    if (held) std::memcpy(input.header.data(), &header, held);
    return input;
}

// Checks the header by the format's description, independently of the parser.
bool valid(const Input& input) {
    if (input.header.size() < 1024) return false;
    int32_t word[3];
    std::memcpy(word, input.header.data(), sizeof word);
    const int64_t body = input.file_bytes - 1024;
    if (word[2] <= 0) return false;
    if (word[0] == 20240520) return word[1] == 1 && body == 2 * int64_t{word[2]};
    if (word[0] == 20240801) return word[1] == 7 && body == 4 * int64_t{word[2]};
    return false;
}

}  // namespace

TEST_CASE("data/shards: generated headers are accepted exactly when they are valid (fuzz)") {
    const char* asked = std::getenv("FUZZ_SHARDS");
    const long long inputs = asked ? std::atoll(asked) : fuzz_rounds(1000000);
    std::mt19937_64 random(fuzz_seed(20240520));
    long long accepted = 0;
    long long wrong = 0;
    for (long long i = 0; i < inputs; ++i) {
        const Input input = generate(random);
        bool taken = false;
        try {
            ShardInfo info = parse_shard_header("some.bin", input.header, input.file_bytes);
            taken = info.tokens * info.bytes_per_token == input.file_bytes - 1024 && info.tokens > 0 &&
                    info.path == "some.bin";
            ++accepted;
        } catch (const UsageError& e) {
            const std::string message = e.what();
            wrong += !message.starts_with("some.bin: ") || message.find('\n') != std::string::npos;
        }
        wrong += taken != valid(input);
    }
    REQUIRE(wrong == 0);
    REQUIRE(accepted > inputs / 20);  // both outcomes are exercised
    REQUIRE(inputs - accepted > inputs / 20);
}
