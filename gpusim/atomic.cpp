// "atom" and "red".
#include "gpusim/atomic.h"

#include <bit>
#include <type_traits>

#include "gpusim/half.h"
#include "gpusim/memory.h"

namespace teon::gpusim {

namespace {

template <typename T>
void atomic_of(Warp& w, const Instruction& i, Lanes lanes) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    const int first = i.destinations;  // 1; 0 for red
    const Addresses a = addresses(w, i, first);
    const T* b = w.operand<T>(i, first + 1);
    const T* c = i.count > first + 2 ? w.operand<T>(i, first + 2) : b;
    const AtomicOp op = static_cast<AtomicOp>(i.variant);
    count_access(w, i, lanes, a, sizeof(T));
    for_lanes(lanes, [&](int l) {
        // An atomic counts as a read by the thread, of memory that must have been written. It does not race with other
        // atomics.
        auto* p = reinterpret_cast<Bits*>(checked_memory(w, i, l, a.of[l], sizeof(T), false, nullptr));
        const auto next = [&](Bits old) { return std::bit_cast<Bits>(combine(op, std::bit_cast<T>(old), b[l], c[l])); };
        const Bits old = update(p, next);
        if (first) w.operand<Bits>(i, 0)[l] = old;
    });
}

template <typename H, typename Bits>
void add_halves(Warp& w, const Instruction& i, Lanes lanes) {
    const int first = i.destinations;
    const Addresses a = addresses(w, i, first);
    const Bits* b = w.operand<Bits>(i, first + 1);
    count_access(w, i, lanes, a, sizeof(Bits));
    const auto sum = [](Bits x, Bits y) {
        Bits result = 0;
        for (size_t shift = 0; shift < 8 * sizeof(Bits); shift += 16) {
            const auto half = [&](Bits v) { return H::widen(static_cast<uint16_t>(v >> shift)); };
            result |= static_cast<Bits>(Bits{H::narrow(half(x) + half(y))} << shift);
        }
        return result;
    };
    for_lanes(lanes, [&](int l) {
        auto* p = reinterpret_cast<Bits*>(checked_memory(w, i, l, a.of[l], sizeof(Bits), false, nullptr));
        const Bits old = update(p, [&](Bits x) { return sum(x, b[l]); });
        if (first) w.operand<Bits>(i, 0)[l] = old;
    });
}

}  // namespace

void atomic(Warp& w, const Instruction& i, Lanes lanes) {
    if (i.width) return i.bytes == 4 ? atomic_of<float>(w, i, lanes) : atomic_of<double>(w, i, lanes);
    if (i.sign) return i.bytes == 4 ? atomic_of<int32_t>(w, i, lanes) : atomic_of<int64_t>(w, i, lanes);
    return i.bytes == 4 ? atomic_of<uint32_t>(w, i, lanes) : atomic_of<uint64_t>(w, i, lanes);
}

void atomic_add_half(Warp& w, const Instruction& i, Lanes lanes) {
    if (i.bytes == 4)
        return i.width ? add_halves<HalfBf16, uint32_t>(w, i, lanes) : add_halves<HalfF16, uint32_t>(w, i, lanes);
    return i.width ? add_halves<HalfBf16, uint16_t>(w, i, lanes) : add_halves<HalfF16, uint16_t>(w, i, lanes);
}

}  // namespace teon::gpusim
