#include "kernels/attention/decode.h"

#include "test/oracle/attention.h"
#include "test/support/compare.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

struct DecodeCase {
    AttentionShape s;  // s.T: the number of keys of the last query
    int capacity;
    int first = 0;  // the first key of that query
};

// Appends keys and values of sequences of s.T tokens in two pieces. Returns the last tokens' attention and the cache.
template <typename T>
std::pair<std::vector<T>, std::vector<T>> decode(const DecodeCase& c, const std::vector<T>& qkv) {
    Context context;
    const Stream& stream = context.stream;
    const int64_t width = c.s.qkv_width();
    const int first = c.s.T - 1;
    std::vector<T> before;
    std::vector<T> last;
    for (int b = 0; b < c.s.B; ++b) {
        const auto row = qkv.begin() + b * c.s.T * width;
        before.insert(before.end(), row, row + first * width);
        last.insert(last.end(), row + first * width, row + c.s.T * width);
    }
    Guarded<T> cache(int64_t{c.s.B} * c.capacity * 2 * c.s.NKV * c.s.HS, stream);
    Guarded<T> out(int64_t{c.s.B} * c.s.NH * c.s.HS, stream);
    Guarded<T> before_(before, stream);
    Guarded<T> last_(last, stream);
    AttentionShape s = c.s;
    s.T = first;
    if (first > 0) cache_append(cache.data(), before_.data(), s, 0, c.capacity, stream);
    s.T = 1;
    cache_append(cache.data(), last_.data(), s, first, c.capacity, stream);
    attention_decode(out.data(), last_.data(), cache.data(), s, c.first, c.s.T, c.capacity, stream);
    return {out.get(), cache.get()};
}

const DecodeCase kCases[] = {{{1, 1, 1, 1, 1}, 1},
                             {{2, 3, 3, 3, 8}, 5},
                             {{3, 13, 4, 2, 6}, 13},
                             {{1, 31, 2, 1, 33}, 40},
                             {{2, 97, 4, 4, 64}, 97},
                             {{2, 97, 4, 4, 64}, 100, 96},
                             {{3, 13, 4, 2, 6}, 13, 5},
                             {{1, 300, 6, 2, 128}, 512},
                             {{1, 8 * 8192 + 77, 2, 1, 16}, 8 * 8192 + 80},  // several tiles of keys
                             {{1, 8 * 8192 + 77, 2, 1, 16}, 8 * 8192 + 80, 5 * 8192 + 3}};

// Rounding errors per term, in float: up to 4 in exp_fast, the others in the sums.
constexpr double kRoundings = 8;

template <typename T>
void agrees_with_oracle() {
    for (const DecodeCase& c : kCases) {
        INFO("B=" << c.s.B << " keys=" << c.first << " to " << c.s.T << " NH=" << c.s.NH << " NKV=" << c.s.NKV
                  << " HS=" << c.s.HS);
        auto qkv = random_values<T>(c.s.B * c.s.T * c.s.qkv_width(), 7);
        // Scores grow along a sequence, so that the maximum changes from tile to tile.
        const int64_t width = c.s.qkv_width();
        const int64_t queries = int64_t{c.s.NH} * c.s.HS;
        for (int64_t i = 0; i < static_cast<int64_t>(qkv.size()); ++i)
            if (i % width >= queries)
                qkv[i] = T(static_cast<float>(qkv[i]) * (1.0f + static_cast<float>(i / width % c.s.T) / c.s.T));
        const auto [out, cache] = decode(c, qkv);
        // The other rows are not compared. To save time, they see only their own key.
        std::vector<int> first_key(static_cast<size_t>(c.s.B) * c.s.T);
        for (int i = 0; i < c.s.B * c.s.T; ++i) first_key[i] = i % c.s.T == c.s.T - 1 ? c.first : i % c.s.T;
        const auto all = attention_oracle(widen<Tracked>(qkv), {}, first_key, c.s).out;
        std::vector<Tracked> expected;
        const int64_t row = int64_t{c.s.NH} * c.s.HS;
        for (int b = 0; b < c.s.B; ++b) {
            const auto end = all.begin() + (b + 1) * c.s.T * row;
            expected.insert(expected.end(), end - row, end);
        }
        REQUIRE(compare(out, expected, kRoundings));
    }
}

}  // namespace

TEST_CASE("kernels/attention/decode: the last row equals that of the whole sequence's attention") {
    agrees_with_oracle<float>();
    agrees_with_oracle<bf16>();
}

TEST_CASE("kernels/attention/decode: the cache holds the rows appended, and nothing else is written") {
    for (const DecodeCase& c : kCases) {
        const auto qkv = random_values<bf16>(c.s.B * c.s.T * c.s.qkv_width(), 8);
        const int64_t width = c.s.qkv_width();
        const int64_t row = 2 * c.s.NKV * c.s.HS;
        bf16 unwritten;
        unwritten.bits = 0xffff;
        std::vector<bf16> expected(static_cast<size_t>(c.s.B * c.capacity * row), unwritten);
        for (int b = 0; b < c.s.B; ++b)
            for (int t = 0; t < c.s.T; ++t)
                std::copy_n(qkv.begin() + (b * c.s.T + t) * width + (width - row), row,
                            expected.begin() + (b * c.capacity + t) * row);
        REQUIRE(same_bits(decode(c, qkv).second, expected));
    }
}

TEST_CASE("kernels/attention/decode: keys that are not in the cache, or none, are refused") {
    Context context;
    const Buffer<float> x(64);
    const auto error = [&](int first, int keys) {
        return error_of([&] {
            attention_decode(x.data(), x.data(), x.data(), {1, 1, 1, 1, 4}, first, keys, 3, context.stream);
        });
    };
    REQUIRE(error(0, 3).empty());
    REQUIRE(error(0, 4) == "attention_decode: 4 keys in a cache of 3");
    REQUIRE(error(2, 2) == "attention_decode: keys from 2 to 2");
    REQUIRE(error(-1, 2) == "attention_decode: keys from -1 to 2");
}
