#include "runtime/linalg/algorithm_search.h"

#include <map>
#include <type_traits>

#include "runtime/linalg/linalg.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"
#include "test/support/proposals.h"

using namespace teon;
using namespace teon::test;

namespace {

// Computes three products: one that overwrites its C, and two of another kind that add to another C. Returns the bytes
// of both C.
std::string multiply_thrice(Linalg& linalg, const Stream& stream) {
    const int n = 64;
    Guarded<bf16> A(random_values<bf16>(n * n, 1), stream);
    Guarded<float> fresh(n * n, stream);
    Guarded<float> sum(random_values<float>(n * n, 2), stream);
    Gemm g{.M = n,
           .N = n,
           .K = n,
           .trans_a = true,
           .A = mat(A.data(), n),
           .B = mat(A.data(), n),
           .C = mat(fresh.data(), n)};
    linalg.gemm(g);
    g.C = mat(sum.data(), n);
    g.beta = 1.0f;
    linalg.gemm(g);
    linalg.gemm(g);
    return bytes_of(fresh.get(), sum.get());
}

}  // namespace

TEST_CASE("runtime/linalg/algorithm_search: each kind of product is searched once, and known choices are taken") {
    const Proposals several("3");
    Stream stream;
    std::map<std::string, std::string> known_choices;
    auto search = [&](Linalg& linalg, std::map<std::string, std::string> known_choices) {
        std::vector<AlgorithmChoice> choices;
        linalg.search_algorithms(std::move(known_choices), [&](const AlgorithmChoice& c) { choices.push_back(c); });
        const std::string bits = multiply_thrice(linalg, stream);
        linalg.search_algorithms({}, nullptr);
        return std::pair{choices, bits};
    };
    Linalg first(stream);
    Linalg second(stream);
    Linalg third(stream);
    const auto [found, bits] = search(first, {});
    REQUIRE(found.size() == 2);
    for (const AlgorithmChoice& c : found) {
        REQUIRE((c.ms > 0 && c.ms <= c.first_ms));
        REQUIRE(known_choices.emplace(c.product, c.algorithm).second);
    }
    const auto [again, same_bits] = search(second, known_choices);
    REQUIRE(again.empty());
    REQUIRE((same_bits == bits));

    // An algorithm that the library no longer proposes is searched again.
    known_choices.begin()->second = "0.0";
    const auto [lost, _] = search(third, known_choices);
    REQUIRE(lost.size() == 1);
    REQUIRE(lost[0].product == known_choices.begin()->first);
}

TEST_CASE(
    "runtime/linalg/algorithm_search: a search chooses library or kernel for a symmetric product once, and known "
    "choices are "
    "taken") {
    using T = std::conditional_t<kGpu, bf16, float>;  // a CPU has a way of its own for 16 bits
    const Proposals several("3");
    Stream stream;
    const int n = 64;
    Guarded<T> X(random_values<T>(n * n, 1), stream);
    auto run = [&](std::map<std::string, std::string> known_choices, bool in_place) {
        std::vector<AlgorithmChoice> choices;
        Linalg linalg(stream);
        linalg.search_algorithms(std::move(known_choices), [&](const AlgorithmChoice& c) { choices.push_back(c); });
        Guarded<T> C(std::vector<T>(n * n, T(2.0f)), stream);
        Gemm g{.M = n, .N = n, .K = n, .trans_b = true};
        g.A = g.B = mat(X.data(), n);
        g.C = mat(C.data(), n);
        g.symmetric = true;
        if (in_place) g.beta = 1.0f;
        linalg.gemm(g);
        const size_t first = choices.size();
        linalg.gemm(g);
        REQUIRE(choices.size() == first);
        return std::pair{choices, bytes_of(C.get())};
    };
    for (bool in_place : {false, true}) {
        const auto [found, bits] = run({}, in_place);
        REQUIRE_FALSE(found.empty());
        std::map<std::string, std::string> known_choices;
        for (const AlgorithmChoice& c : found) known_choices[c.product] = c.algorithm;
        const auto [again, same] = run(known_choices, in_place);
        REQUIRE(again.empty());
        REQUIRE((same == bits));
    }
}
