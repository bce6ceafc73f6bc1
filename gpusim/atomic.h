// Instructions that change memory in one step.
#pragma once

#include <type_traits>

#include "gpusim/warp.h"

namespace teon::gpusim {

enum class AtomicOp : uint8_t { add, min, max, and_, or_, xor_, exch, cas, inc, dec, none };

// The value that replaces `old`. Floats have no operations of bits.
template <typename T>
T combine(AtomicOp op, T old, T b, T c) {
    switch (op) {
        case AtomicOp::add:
            if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
                return static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) +
                                      static_cast<std::make_unsigned_t<T>>(b));
            else
                return old + b;
        case AtomicOp::min:
            return b < old ? b : old;
        case AtomicOp::max:
            return b > old ? b : old;
        case AtomicOp::exch:
            return b;
        case AtomicOp::cas:
            return old == b ? c : old;
        default:
            break;
    }
    if constexpr (std::is_integral_v<T>) {
        switch (op) {
            case AtomicOp::and_:
                return old & b;
            case AtomicOp::or_:
                return old | b;
            case AtomicOp::xor_:
                return old ^ b;
            case AtomicOp::inc:
                return old >= b ? 0 : old + 1;
            case AtomicOp::dec:
                return old == 0 || old > b ? b : old - 1;
            default:
                break;
        }
    }
    return old;
}

// Replaces *p by next(*p) in one step and returns the old value.
template <typename Bits, typename Next>
Bits update(Bits* p, Next next) {
    Bits old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, next(old), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {}
    return old;
}

void atomic(Warp&, const Instruction&, Lanes);
void atomic_add_half(Warp&, const Instruction&, Lanes);  // of one or two 16-bit floats; width: of bf16

}  // namespace teon::gpusim
