// Instructions that the lanes of a warp execute together: "Parallel Synchronization and Communication Instructions" and
// "Warp Level Matrix Multiply-Accumulate Instructions".
#include "gpusim/collective.h"

#include <cstring>

#include "base/check.h"
#include "gpusim/atomic.h"
#include "gpusim/half.h"
#include "gpusim/lanes.h"
#include "gpusim/memory.h"

namespace teon::gpusim {

void sync_warp(Warp& w, const Instruction&, Lanes lanes) {
    w.block->shared.sync_warp(w.clock, lanes, lanes == w.live, w.index);
}

// "shfl.sync": c contains the clamp value and, in bits 8 to 12, the segment mask.
void shuffle(Warp& w, const Instruction& i, Lanes lanes) {  // d[, p], a, b, c, mask
    const int k = i.destinations;
    uint32_t a[32];
    uint32_t got[32];
    Lanes in_range = 0;
    std::memcpy(a, w.operand<uint32_t>(i, k), sizeof a);
    const uint32_t* b = w.operand<uint32_t>(i, k + 1);
    const uint32_t* c = w.operand<uint32_t>(i, k + 2);
    for_lanes(lanes, [&](int lane) {
        const int by = b[lane] & 31;
        const int clamp = c[lane] & 31;
        const int segment = c[lane] >> 8 & 31;
        const int last = (lane & segment) | (clamp & ~segment);
        const int first = lane & segment;
        int from = lane;
        bool valid = false;
        switch (static_cast<Shuffle>(i.variant)) {
            case Shuffle::up:
                from = lane - by;
                valid = from >= last;
                break;
            case Shuffle::down:
                from = lane + by;
                valid = from <= last;
                break;
            case Shuffle::bfly:
                from = lane ^ by;
                valid = from <= last;
                break;
            case Shuffle::idx:
                from = first | (by & ~segment);
                valid = from <= last;
                break;
        }
        if (!valid) from = lane;
        if (!(lanes >> from & 1)) fail(w, i, lane, "reads lane {}, which is not in the mask or has returned", from);
        got[lane] = a[from];
        in_range |= static_cast<Lanes>(valid) << lane;
    });
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int lane) { d[lane] = got[lane]; });
    if (k == 2) detail::set_predicate(*w.operand<Lanes>(i, 1), lanes, in_range);
}

void elect(Warp& w, const Instruction& i, Lanes lanes) {
    const auto leader = static_cast<uint32_t>(first_lane(lanes));
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int l) { d[l] = leader; });
    detail::set_predicate(*w.operand<Lanes>(i, 1), lanes, Lanes{1} << leader);
}

// Each lane gets the lanes with its value or, with .all, all lanes of the mask if their values are equal, else 0.
void match(Warp& w, const Instruction& i, Lanes lanes) {
    const uint8_t* a = w.operand<uint8_t>(i, i.destinations);
    const auto same_as = [&](int lane) {
        Lanes same = 0;
        for_lanes(lanes, [&](int l) {
            if (std::memcmp(a + l * i.bytes, a + lane * i.bytes, i.bytes) == 0) same |= Lanes{1} << l;
        });
        return same;
    };
    uint32_t got[32];
    for_lanes(lanes, [&](int l) { got[l] = same_as(l); });
    const bool all = got[first_lane(lanes)] == lanes;
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int l) { d[l] = i.variant && !all ? 0 : got[l]; });
    if (i.destinations == 2) detail::set_predicate(*w.operand<Lanes>(i, 1), lanes, all ? kAllLanes : 0);
}

void redux(Warp& w, const Instruction& i, Lanes lanes) {
    const uint32_t* a = w.operand<uint32_t>(i, 1);
    const auto op = static_cast<AtomicOp>(i.variant);
    uint32_t result = a[first_lane(lanes)];
    for_lanes(lanes & (lanes - 1), [&](int l) {
        const bool less = i.sign ? static_cast<int32_t>(a[l]) < static_cast<int32_t>(result) : a[l] < result;
        if (op == AtomicOp::add) result += a[l];
        if (op == AtomicOp::and_) result &= a[l];
        if (op == AtomicOp::or_) result |= a[l];
        if (op == AtomicOp::xor_) result ^= a[l];
        if ((op == AtomicOp::min && less) || (op == AtomicOp::max && !less)) result = a[l];
    });
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int l) { d[l] = result; });
}

void active_mask(Warp& w, const Instruction& i, Lanes lanes) {
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int l) { d[l] = lanes; });
}

void vote(Warp& w, const Instruction& i, Lanes lanes) {  // d, p, mask
    const Lanes yes = (i.sign ? ~*w.operand<Lanes>(i, 1) : *w.operand<Lanes>(i, 1)) & lanes;
    const Vote kind = static_cast<Vote>(i.variant);
    if (kind == Vote::ballot) {
        uint32_t* d = w.operand<uint32_t>(i, 0);
        for_lanes(lanes, [&](int l) { d[l] = yes; });
        return;
    }
    const bool all = yes == lanes;
    const bool none = yes == 0;
    bool result = all || none;  // uni
    if (kind == Vote::all) result = all;
    if (kind == Vote::any) result = !none;
    detail::set_predicate(*w.operand<Lanes>(i, 0), lanes, result ? kAllLanes : 0);
}

namespace {

// A register of all lanes as two vectors of 16 lanes each.
using Floats = float __attribute__((vector_size(64)));
using Words = int32_t __attribute__((vector_size(64)));
struct Register {
    Floats low, high;  // lanes 0 to 15, 16 to 31
};

Register load(const float* from) {
    Register r;
    std::memcpy(&r, from, sizeof r);
    return r;
}

// Sets element l of `to` to element indices[l] of `from`, whose 32 elements are numbered from low to high.
void select(Floats& to, const Register& from, const Words& indices) {
#ifdef __clang__  // has no __builtin_shuffle
    for (int l = 0; l < 16; ++l) to[l] = (indices[l] < 16 ? from.low : from.high)[indices[l] % 16];
#else
    to = __builtin_shuffle(from.low, from.high, indices);
#endif
}

// Converts the lower (part 0) or upper (part 1) 16 bits of each lane to floats.
template <typename H>
Register widen(const uint32_t* x, int part) {
    float wide[32];
    for (int l = 0; l < 32; ++l) wide[l] = H::widen(static_cast<uint16_t>(x[l] >> 16 * part));
    return load(wide);
}

// D (16 x 8) = A (16 x 16) B (16 x 8) + C. Fragments as in "Matrix Fragments for mma.m16n8k16 with floating point
// type". Of D, lane l holds rows l / 4 and l / 4 + 8, and columns 2 (l % 4) and 2 (l % 4) + 1. Of A it holds the same
// rows, and columns k = 2 (l % 4), k + 1, k + 8 and k + 9. Of B it holds these k as rows, and column l / 4. Products
// are exact in float and are added one after the other by increasing k. A GPU adds them in an order of its own.
template <typename H>
void mma(Warp& w, const Instruction& i) {
    constexpr Words kQuad = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    constexpr Words kColumns = {0, 8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24};
    Register D[4];
    for (int e = 0; e < 4; ++e) D[e] = load(w.operand<float>(i, 10 + e));
    for (int upper_k = 0; upper_k < 2; ++upper_k) {
        Register A[2][2];
        Register B[2];  // A: [half of the rows][parity of k]; B: [parity of k]
        for (int odd = 0; odd < 2; ++odd) {
            for (int half = 0; half < 2; ++half)
                A[half][odd] = widen<H>(w.operand<uint32_t>(i, 4 + half + 2 * upper_k), odd);
            B[odd] = widen<H>(w.operand<uint32_t>(i, 8 + upper_k), odd);
        }
        for (int k = 0; k < 8; ++k) {
            const int holder = k / 2;
            const int odd = k % 2;
            Floats b[2];
            for (int column = 0; column < 2; ++column) select(b[column], B[odd], kColumns + holder + 4 * column);
            for (int half = 0; half < 2; ++half) {
                Floats low;
                Floats high;
                select(low, A[half][odd], kQuad + holder);
                select(high, A[half][odd], kQuad + holder + 16);
                for (int column = 0; column < 2; ++column) {
                    D[2 * half + column].low += low * b[column];
                    D[2 * half + column].high += high * b[column];
                }
            }
        }
    }
    for (int e = 0; e < 4; ++e) std::memcpy(w.operand<float>(i, e), &D[e], sizeof D[e]);
}

}  // namespace

void mma_bf16(Warp& w, const Instruction& i, Lanes) { mma<HalfBf16>(w, i); }
void mma_f16(Warp& w, const Instruction& i, Lanes) { mma<HalfF16>(w, i); }

}  // namespace teon::gpusim
