#include "gpusim/warp.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <mutex>
#include <set>

#include "base/check.h"
#include "gpusim/opcodes.h"
#include "gpusim/report.h"

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

namespace {

std::string place_and(const Warp& w, const Instruction& i, int lane, const std::string& what) {
    const Extent3& b = w.block->index;
    return fmt::format("kernel {}: {}: {}: block ({}, {}, {}), warp {}, lane {}: {}", w.program->name,
                       w.program->place_in_kernel(i), opcode_name(i.opcode), b.x, b.y, b.z, w.index, lane, what);
}

std::string line_of(const Warp& w, const Instruction& i) {
    return fmt::format("{} {} {}", w.program->name, w.program->place_in_kernel(i), opcode_name(i.opcode));
}

struct Notes {
    std::mutex mutex;
    std::set<std::string> places, alarms;  // what was reported, by line and opcode: loops are unrolled
    std::vector<std::string> texts;
};
Notes& all_notes() {  // never destroyed: work may run while the process ends
    static auto* all = new Notes;
    return *all;
}

}  // namespace

void fail(const Warp& w, const Instruction& i, int lane, const std::string& what) {
    throw Error(place_and(w, i, lane, what));
}

void alarm(const Warp& w, const Instruction& i, int lane, const std::string& what) {
    if (!goes_on()) fail(w, i, lane, what);
    Notes& all = all_notes();
    const std::lock_guard lock(all.mutex);
    if (all.alarms.insert(line_of(w, i)).second) report_alarm(place_and(w, i, lane, what));
}

void note(const Warp& w, const Instruction& i, int lane, const std::string& what) {
    Notes& all = all_notes();
    const std::lock_guard lock(all.mutex);
    if (!all.places.insert(line_of(w, i)).second) return;
    all.texts.push_back(place_and(w, i, lane, what));
    fmt::print(stderr, "note: {}\n", all.texts.back());
    report_note();
}

std::vector<std::string> notes() {
    const std::lock_guard lock(all_notes().mutex);
    return all_notes().texts;
}

}  // namespace teon::gpusim
