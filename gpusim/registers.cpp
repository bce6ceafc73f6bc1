// Placement of registers. PTX uses a register for each value; the registers of a warp would not fit in a CPU's
// first-level cache. Therefore values that are never live at the same time share a place ("linear scan" over the code).
#include "gpusim/registers.h"

#include <algorithm>
#include <vector>

#include "base/integer.h"
#include "gpusim/program.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kRow = 32;  // places except predicates' are multiples of this, for vector instructions

uint32_t bytes_of(const Virtual& r) { return r.bytes == 0 ? 4 : kRow * static_cast<uint32_t>(r.bytes); }

class Liveness {
public:
    Liveness(const Program& program, size_t registers) : code_(program.code), words_((registers + 63) / 64) {
        const uint32_t* at = program.operands.data();
        for (const Instruction& i : code_) {
            operands_.push_back(at);
            at += i.count;
        }
        first_.assign(registers, static_cast<int>(code_.size()));
        last_.assign(registers, -1);
        find_blocks();
        solve();
        for (size_t b = 0; b + 1 < begins_.size(); ++b) walk(b, true);
    }
    // The first and last instruction at which the register is live or is written.
    int first(size_t r) const { return first_[r]; }
    int last(size_t r) const { return last_[r]; }

private:
    using Bits = std::vector<uint64_t>;

    void find_blocks() {
        std::vector<bool> begins(code_.size() + 1);
        begins[0] = begins[code_.size()] = true;
        for (size_t k = 0; k < code_.size(); ++k) {
            if (code_[k].target != kNone) begins[static_cast<size_t>(code_[k].target)] = true;
            if (code_[k].kind == Kind::branch || code_[k].kind == Kind::exit) begins[k + 1] = true;
        }
        block_of_.resize(code_.size() + 1);
        for (size_t k = 0; k <= code_.size(); ++k) {
            if (begins[k]) begins_.push_back(k);
            block_of_[k] = begins_.size() - 1;
        }
        live_in_.assign(begins_.size(), Bits(words_));
    }

    void solve() {
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t b = begins_.size() - 1; b-- > 0;) {
                Bits live = walk(b, false);
                if (live == live_in_[b]) continue;
                live_in_[b] = std::move(live);
                changed = true;
            }
        }
    }

    // Walks block b backwards; returns the registers that are live at its begin. `note`: extends the ranges of first()
    // to last().
    Bits walk(size_t b, bool note) {
        Bits live(words_);
        const size_t end = begins_[b + 1];
        const Instruction& tail = code_[end - 1];
        const auto join = [&](size_t block) {
            for (size_t k = 0; k < words_; ++k) live[k] |= live_in_[block][k];
        };
        if (tail.target != kNone) join(block_of_[static_cast<size_t>(tail.target)]);
        const bool leaves = (tail.kind == Kind::branch || tail.kind == Kind::exit) && tail.guard == kNone;
        if (!leaves && end < code_.size()) join(b + 1);
        if (note) extend_all(live, end - 1);
        for (size_t k = end; k-- > begins_[b];) {
            const Instruction& i = code_[k];
            for (int o = 0; o < i.count; ++o) {
                const uint32_t r = operands_[k][o];
                if (note) extend(r, k);
                if (o < i.destinations && i.guard == kNone) live[r / 64] &= ~(uint64_t{1} << r % 64);
            }
            for (int o = i.destinations; o < i.count; ++o) set(live, operands_[k][o]);
            if (i.guard != kNone) {
                set(live, static_cast<uint32_t>(i.guard));
                if (note) extend(static_cast<uint32_t>(i.guard), k);
            }
        }
        if (note) extend_all(live, begins_[b]);
        return live;
    }

    static void set(Bits& bits, uint32_t r) { bits[r / 64] |= uint64_t{1} << r % 64; }
    void extend(uint32_t r, size_t at) {
        first_[r] = std::min(first_[r], static_cast<int>(at));
        last_[r] = std::max(last_[r], static_cast<int>(at));
    }
    void extend_all(const Bits& live, size_t at) {
        for (size_t k = 0; k < words_; ++k)
            for (uint64_t bits = live[k]; bits; bits &= bits - 1)
                extend(static_cast<uint32_t>(64 * k) + static_cast<uint32_t>(__builtin_ctzll(bits)), at);
    }

    const std::vector<Instruction>& code_;
    const size_t words_;
    std::vector<const uint32_t*> operands_;
    std::vector<size_t> begins_, block_of_;
    std::vector<Bits> live_in_;
    std::vector<int> first_, last_;
};

}  // namespace

void place_registers(Program& program, const std::vector<Virtual>& registers) {
    const Liveness live(program, registers.size());
    std::vector<size_t> order;
    for (size_t r = 0; r < registers.size(); ++r)
        if (live.last(r) >= 0) order.push_back(r);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return live.first(a) < live.first(b); });

    struct Slot {
        uint32_t place;
        int free_after;
    };
    std::vector<Slot> slots[9];  // by bytes per lane; a place is used for one width only
    std::vector<uint32_t> places(registers.size());
    uint32_t end = 0;
    const auto new_place = [&](const Virtual& r) {
        const uint32_t place = round_up(end, std::min(bytes_of(r), 64u));
        end = place + bytes_of(r);
        return place;
    };
    // Predicates first: they are small.
    std::stable_partition(order.begin(), order.end(), [&](size_t r) { return registers[r].bytes == 0; });
    for (const size_t r : order) {
        const Virtual& v = registers[r];
        if (v.is_constant) {
            places[r] = new_place(v);
            program.constants.push_back({places[r], v.bytes, v.bits, v.from_dynamic});
            continue;
        }
        auto& same = slots[v.bytes];
        auto slot = std::find_if(same.begin(), same.end(), [&](const Slot& s) { return s.free_after < live.first(r); });
        if (slot == same.end()) slot = same.insert(same.end(), {new_place(v), 0});
        slot->free_after = live.last(r);
        places[r] = slot->place;
    }
    program.register_bytes = round_up<size_t>(end, size_t{64});
    for (uint32_t& operand : program.operands) operand = places[operand];
    for (Instruction& i : program.code)
        if (i.guard != kNone) i.guard = static_cast<int32_t>(places[static_cast<size_t>(i.guard)]);
}

}  // namespace teon::gpusim
