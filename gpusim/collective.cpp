// What lanes of a warp do together: "Parallel Synchronization and Communication Instructions" and "Warp Level Matrix
// Multiply-Accumulate Instructions".
#include <cstring>

#include "base/check.h"
#include "gpusim/lanes.h"

namespace teon::gpusim {

void sync_warp(Warp& w, const Instruction&, Lanes lanes) {
    w.block->shared.sync_warp(w.clock, lanes, lanes == w.live, w.index);
}

// "shfl.sync": c holds the clamp and, in bits 8 to 12, the mask of the segments.
void shuffle(Warp& w, const Instruction& i, Lanes lanes) {  // d[, p], a, b, c, mask
    const int k = i.destinations;
    uint32_t a[32], got[32];
    Lanes in_range = 0;
    std::memcpy(a, w.operand<uint32_t>(i, k), sizeof a);
    const uint32_t *b = w.operand<uint32_t>(i, k + 1), *c = w.operand<uint32_t>(i, k + 2);
    for_lanes(lanes, [&](int lane) {
        const int by = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
        const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
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
        if (!(lanes >> from & 1)) fail(w, i, lane, fmt::format("reads lane {}, which is not in the mask", from));
        got[lane] = a[from];
        in_range |= static_cast<Lanes>(valid) << lane;
    });
    uint32_t* d = w.operand<uint32_t>(i, 0);
    for_lanes(lanes, [&](int lane) { d[lane] = got[lane]; });
    if (k == 2) detail::set_predicate(*w.operand<Lanes>(i, 1), lanes, in_range);
}

void vote(Warp& w, const Instruction& i, Lanes lanes) {  // d, p, mask
    const Lanes yes = (i.sign ? ~*w.operand<Lanes>(i, 1) : *w.operand<Lanes>(i, 1)) & lanes;
    const Vote kind = static_cast<Vote>(i.variant);
    if (kind == Vote::ballot) {
        uint32_t* d = w.operand<uint32_t>(i, 0);
        for_lanes(lanes, [&](int l) { d[l] = yes; });
        return;
    }
    const bool result = kind == Vote::all ? yes == lanes : kind == Vote::any ? yes != 0 : yes == lanes || yes == 0;
    detail::set_predicate(*w.operand<Lanes>(i, 0), lanes, result ? kAllLanes : 0);
}

namespace {

inline float widen_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
inline float widen_f16(uint32_t bits) {
    return static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)));
}

// D (16 x 8) = A (16 x 16) B (16 x 8) + C, fragments as in "Matrix Fragments for mma.m16n8k16 with floating point type".
// Products are exact in float; they are added one after the other. A GPU adds them in an order of its own.
template <float (*Widen)(uint32_t)>
void mma(Warp& w, const Instruction& i) {
    alignas(64) float A[16][16], B[16][8], D[16][8];
    for (int e = 0; e < 4; ++e) {  // a register of A holds two neighbours of a row
        const uint32_t* a = w.operand<uint32_t>(i, 4 + e);
        for (int l = 0; l < 32; ++l) {
            float* to = &A[l / 4 + 8 * (e % 2)][2 * (l % 4) + 8 * (e / 2)];
            to[0] = Widen(a[l] & 0xffff);
            to[1] = Widen(a[l] >> 16);
        }
    }
    for (int e = 0; e < 2; ++e) {  // and of B, of a column
        const uint32_t* b = w.operand<uint32_t>(i, 8 + e);
        for (int l = 0; l < 32; ++l) {
            const int k = 2 * (l % 4) + 8 * e;
            B[k][l / 4] = Widen(b[l] & 0xffff);
            B[k + 1][l / 4] = Widen(b[l] >> 16);
        }
    }
    const auto at = [&D](int l, int e) -> float& { return D[l / 4 + 8 * (e / 2)][2 * (l % 4) + e % 2]; };
    for (int e = 0; e < 4; ++e)
        for (int l = 0; l < 32; ++l) at(l, e) = w.operand<float>(i, 10 + e)[l];
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) D[row][column] += A[row][k] * B[k][column];
    for (int e = 0; e < 4; ++e)
        for (int l = 0; l < 32; ++l) w.operand<float>(i, e)[l] = at(l, e);
}

}  // namespace

void mma_bf16(Warp& w, const Instruction& i, Lanes) { mma<widen_bf16>(w, i); }
void mma_f16(Warp& w, const Instruction& i, Lanes) { mma<widen_f16>(w, i); }

}  // namespace teon::gpusim
