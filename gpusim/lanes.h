// Makes rows of the instruction table from functions of one lane's operands:
//     table["mul.wide.s32"] = each_lane([](int32_t a, int32_t b) { return int64_t{a} * b; });
// The function runs for all lanes, so that the compiler emits vector instructions, and only the participating lanes
// keep its result. It must therefore be defined for all operands.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <utility>

#include "gpusim/warp.h"

namespace teon::gpusim {

namespace detail {

// Packs 32 bytes that are 0 or 1 into bits.
inline Lanes pack(const uint8_t (&bytes)[32]) {
    Lanes bits = 0;
    for (int k = 0; k < 4; ++k) {
        uint64_t eight;
        __builtin_memcpy(&eight, bytes + 8 * k, 8);
        bits |= static_cast<Lanes>(eight * 0x0102040810204080u >> 56) << 8 * k;
    }
    return bits;
}

inline void set_predicate(Lanes& predicate, Lanes lanes, Lanes value) {
    predicate = (predicate & ~lanes) | (value & lanes);
}

template <auto F, typename D, typename... A>
struct Lane {
    static constexpr bool kPredicate = std::same_as<D, bool>;

    static void run(Warp& w, const Instruction& i, Lanes lanes) { run(w, i, lanes, std::index_sequence_for<A...>()); }

    template <size_t... K>
    static void run(Warp& w, const Instruction& i, Lanes lanes, std::index_sequence<K...>) {
        run(w.at<std::conditional_t<kPredicate, Lanes, D>>(i.operands[0]), lanes, w.at<A>(i.operands[K + 1])...);
    }

    // Registers are identical or disjoint, so no lane's result is the operand of another lane.
    template <typename R>
    static void run(R* d, Lanes lanes, const A*... a) {
        if constexpr (kPredicate) {
            alignas(32) uint8_t bytes[32];
#pragma GCC ivdep
            for (int l = 0; l < 32; ++l) bytes[l] = F(a[l]...);
            set_predicate(*d, lanes, pack(bytes));
        } else if (lanes == kAllLanes) {
#pragma GCC ivdep
            for (int l = 0; l < 32; ++l) d[l] = F(a[l]...);
        } else {
            D all[32];
#pragma GCC ivdep
            for (int l = 0; l < 32; ++l) all[l] = F(a[l]...);
#pragma GCC ivdep
            for (int l = 0; l < 32; ++l) d[l] = lanes >> l & 1 ? all[l] : d[l];
        }
    }
};

template <auto F, typename D, typename... A>
Row row(D (*)(A...)) {
    constexpr auto bytes = []<typename T>(T*) { return static_cast<uint8_t>(std::same_as<T, bool> ? 0 : sizeof(T)); };
    return {&Lane<F, D, A...>::run, {bytes(static_cast<D*>(nullptr)), bytes(static_cast<A*>(nullptr))...}};
}

}  // namespace detail

// A row that calls F for each lane. If F returns bool, the destination is a predicate.
template <auto F>
Row each_lane() {
    return detail::row<F>(+F);
}
template <typename Lambda>
Row each_lane(Lambda) {
    return each_lane<Lambda{}>();
}

// A row whose operands are predicates: F takes and returns the bits of all lanes at once.
template <typename F>
Row each_predicate(F) {
    if constexpr (std::invocable<F, Lanes>)
        return {[](Warp& w, const Instruction& i, Lanes lanes) {
                    detail::set_predicate(*w.operand<Lanes>(i, 0), lanes, F{}(*w.operand<Lanes>(i, 1)));
                },
                {0, 0}};
    else
        return {[](Warp& w, const Instruction& i, Lanes lanes) {
                    detail::set_predicate(*w.operand<Lanes>(i, 0), lanes,
                                          F{}(*w.operand<Lanes>(i, 1), *w.operand<Lanes>(i, 2)));
                },
                {0, 0, 0}};
}

}  // namespace teon::gpusim
