#include "kernels/attention/first_key.h"

#include "test/kernels/attention/cases.h"

#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

std::vector<int> first_keys(const std::vector<int>& doc_start, int B, int T, int window) {
    Stream stream;
    Guarded<int> documents(doc_start, stream);
    Guarded<int> first_key(int64_t{B} * T, stream);
    window_first_keys(first_key.data(), doc_start.empty() ? nullptr : documents.data(), B, T, window, stream);
    return first_key.get();
}

}  // namespace

TEST_CASE("kernels/attention/first_key: a row sees the keys of its document that are less than a window away") {
    for (const int T : {1, 33, 300})
        for (const int window : {1, 2, 31, 32, 33, 64, T, T + 5, 1 << 20})
            for (const bool documents : {false, true}) {
                INFO("T=" << T << " window=" << window << (documents ? ", documents" : ""));
                const int B = 3;
                const std::vector<int> doc_start = documents ? random_documents(B, T, 7) : std::vector<int>();
                std::vector<int> expected;
                for (int b = 0; b < B; ++b)
                    for (int t = 0; t < T; ++t) {
                        const auto document = [&](int u) { return documents ? doc_start[b * T + u] : 0; };
                        int key = 0;
                        while (t - key >= window || document(key) != document(t)) ++key;
                        expected.push_back(key);
                    }
                REQUIRE(first_keys(doc_start, B, T, window) == expected);
                REQUIRE(windowed(doc_start, B, T, window) == expected);
            }
}

TEST_CASE("kernels/attention/first_key: a window without the row's own key is refused") {
    REQUIRE(error_of([] { first_keys({}, 1, 4, 0); }) ==
            "attention: a window of 0 keys, expected at least the row's own");
}

TEST_CASE(
    "kernels/attention/first_key: the mean number of keys leaves out half of each row's own that sees all before it") {
    REQUIRE(mean_keys(4096, 0) == 2048);
    for (const int T : {1, 97, 1024})
        for (const int window : {0, 1, 64, T, T + 5}) {
            double seen = 0;
            for (int t = 0; t < T; ++t) seen += window > 0 && t >= window ? window : t + 0.5;
            REQUIRE(std::abs(mean_keys(T, window) - seen / T) <= 1e-12 * T);
        }
}
