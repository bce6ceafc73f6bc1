#include "gpusim/warp.h"

#include <fmt/format.h>

#include <charconv>

#include "base/check.h"
#include "gpusim/opcodes.h"

namespace teon::gpusim {

Order parse_order(const std::string& text) {
    if (text == "forward") return {};
    if (text == "reverse") return {Order::Kind::reverse};
    uint64_t seed = 0;
    const char* const end = text.data() + text.size();
    const bool random = text.starts_with("random:") && text.size() > 7;
    if (random) {
        const auto [rest, error] = std::from_chars(text.data() + 7, end, seed);
        if (rest == end && error == std::errc()) return {Order::Kind::random, seed};
    }
    throw UsageError(fmt::format("SIMT_ORDER is \"{}\"; it must be forward, reverse or random:SEED", text));
}

void fail(const Warp& w, const Instruction& i, int lane, const std::string& what) {
    const Extent3& b = w.block->index;
    throw Error(fmt::format("kernel {}: {}: {}: block ({}, {}, {}), warp {}, lane {}: {}", w.program->name,
                            w.program->place(i), opcode_name(i.opcode), b.x, b.y, b.z, w.index, lane, what));
}

}  // namespace teon::gpusim
