// "Parallel Synchronization and Communication Instructions: mbarrier, bar", "Data Movement and Conversion Instructions:
// cp.async.bulk.tensor", "setmaxnreg", "membar / fence".
#include "gpusim/mbarrier.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpusim/counts.h"
#include "gpusim/memory.h"
#include "gpusim/tensor_map.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kMbarrierBytes = 8;
constexpr uint32_t kMostArrivals = (1u << 20) - 1;
constexpr int64_t kMostTransactions = (1 << 20) - 1;
constexpr uint32_t kTileAlignment = 128;

uint32_t address_of(Warp& w, const Instruction& i, int operand, int lane) {
    return w.operand<uint32_t>(i, operand)[lane] + static_cast<uint32_t>(i.offset);
}

Mbarrier& find(Warp& w, const Instruction& i, int lane, uint32_t address) {
    const auto it = w.block->mbarriers.find(address);
    if (it == w.block->mbarriers.end())
        fail(w, i, lane, fmt::format("there is no mbarrier at byte {} of shared memory", address));
    SharedMemory& shared = w.block->shared;
    if (!shared.sees(w.clock, w.index, lane, address, kMbarrierBytes)) fail(w, i, lane, shared.wrong());
    return it->second;
}

// Ends the phase if all have arrived.
void advance(Mbarrier& m) {
    if (m.pending || m.transactions) return;
    m.pending = m.expected;
    m.released = m.arrived;
    ++m.phase;
}

void add_transactions(Warp& w, const Instruction& i, int lane, Mbarrier& m, int64_t bytes) {
    m.transactions += bytes;
    if (std::abs(m.transactions) > kMostTransactions)
        fail(w, i, lane,
             fmt::format("{} bytes outstanding at an mbarrier; at most {}", m.transactions, kMostTransactions));
}

// Returns whether the phase that a wait identifies by its parity (operand 2), the current or the previous one, has
// ended.
bool has_ended(Warp& w, const Instruction& i, int lane, const Mbarrier& m) {
    const uint32_t parity = w.operand<uint32_t>(i, 2)[lane];
    if (parity > 1) fail(w, i, lane, fmt::format("the parity {} is neither 0 nor 1", parity));
    return (m.phase & 1) != parity;
}

int register_pool(const Warp& w) { return w.program->registers * static_cast<int>(w.block->launch->block.count()); }

}  // namespace

void mbarrier_init(Warp& w, const Instruction& i, Lanes lanes) {  // [a], count
    for_lanes(lanes, [&](int l) {
        const uint32_t a = address_of(w, i, 0, l);
        const uint32_t count = w.operand<uint32_t>(i, 1)[l];
        if (count == 0 || count > kMostArrivals)
            fail(w, i, l, fmt::format("{} arrivals; it must be 1 to {}", count, kMostArrivals));
        std::memset(shared_for_write(w, i, l, a, kMbarrierBytes, nullptr), 0, kMbarrierBytes);
        Mbarrier m;
        m.expected = m.pending = count;
        if (!w.block->mbarriers.emplace(a, m).second) fail(w, i, l, "there is an mbarrier already");
    });
}

void mbarrier_inval(Warp& w, const Instruction& i, Lanes lanes) {
    for_lanes(lanes, [&](int l) {
        const uint32_t a = address_of(w, i, 0, l);
        find(w, i, l, a);
        shared_for_write(w, i, l, a, kMbarrierBytes, nullptr);
        w.block->mbarriers.erase(a);
    });
}

void mbarrier_arrive(Warp& w, const Instruction& i, Lanes lanes) {  // [a], count or bytes
    const View view = w.block->shared.release(w.clock, w.index, lanes);
    for_lanes(lanes, [&](int l) {
        Mbarrier& m = find(w, i, l, address_of(w, i, 0, l));
        const uint32_t operand = w.operand<uint32_t>(i, 1)[l];
        const uint32_t count = i.variant ? 1 : operand;
        if (i.variant) add_transactions(w, i, l, m, operand);
        if (count > m.pending)
            fail(w, i, l,
                 fmt::format("{} arrivals at an mbarrier that expects {} more of {} in this phase", count, m.pending,
                             m.expected));
        m.pending -= count;
        merge(m.arrived, view);
        advance(m);
    });
}

void mbarrier_wait(Warp& w, const Instruction& i, Lanes lanes) {  // p, [a], parity
    Lanes ended = 0;
    for_lanes(lanes, [&](int l) {
        const Mbarrier& m = find(w, i, l, address_of(w, i, 1, l));
        if (!has_ended(w, i, l, m)) return;
        merge(w.clock.seen, m.released);
        ended |= Lanes{1} << l;
    });
    Lanes& p = *w.operand<Lanes>(i, 0);
    p = (p & ~lanes) | ended;
}

bool is_ready(Warp& w, const Instruction& i, Lanes lanes) {
    if (static_cast<Poll>(i.variant) == Poll::registers) {
        int others = 0;
        for (const Warp& other : w.block->warps) others += &other != &w ? 32 * other.registers_held : 0;
        return others + 32 * static_cast<int>(i.offset) <= register_pool(w);
    }
    bool ready = true;
    for_lanes(lanes, [&](int l) { ready &= has_ended(w, i, l, find(w, i, l, address_of(w, i, 1, l))); });
    return ready;
}

std::string what_is_missing(Warp& w, const Instruction& i, Lanes lanes) {
    if (static_cast<Poll>(i.variant) == Poll::registers)
        return fmt::format("{} registers a thread, of which the block has {}", i.offset, register_pool(w));
    const int lane = first_lane(lanes);
    const uint32_t a = address_of(w, i, 1, lane);
    const Mbarrier& m = find(w, i, lane, a);
    return fmt::format(
        "phase {} of the mbarrier at byte {} of shared memory, which lacks {} of {} arrivals and {} bytes", m.phase, a,
        m.pending, m.expected, m.transactions);
}

void fence_proxy(Warp& w, const Instruction&, Lanes) { w.block->shared.fence_proxy(w.index); }

// ---- bulk copies ----------------------------------------------------------------------------------------------------

namespace {

TensorMap read_map(Warp& w, const Instruction& i, int lane, uint64_t address) {
    TensorMap map;
    if (address % 64 != 0) fail(w, i, lane, "the tensor map is not aligned to 64 bytes");
    const bool parameter = address >= kParameterWindow && address - kParameterWindow < w.program->parameter_bytes;
    if (parameter && address - kParameterWindow + sizeof map > w.program->parameter_bytes)
        fail(w, i, lane, "the tensor map is not within the parameters");
    const uint8_t* const from =
        parameter ? w.block->parameters + (address - kParameterWindow) : device_memory(w, i, lane, address, 1);
    if (!parameter) device_memory(w, i, lane, address + sizeof map - 1, 1);
    std::memcpy(&map, from, sizeof map);
    if (map.magic != TensorMap::kMagic) fail(w, i, lane, "there is no tensor map that cuTensorMapEncodeTiled made");
    return map;
}

uint32_t bytes_of(const TensorMap& map) {
    uint32_t bytes = map.element_bytes;
    for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
    return bytes;
}

// Calls f(offset in the tile, address, begin, end) for each row of the box: [begin, end) are the bytes of the row that
// exist in the tensor.
template <typename F>
void for_rows(const TensorMap& map, const int32_t* at, F f) {
    const uint32_t row_bytes = map.box[0] * map.element_bytes;
    const uint32_t rows = bytes_of(map) / row_bytes;
    for (uint32_t row = 0; row < rows; ++row) {
        uint64_t address = map.address;
        bool exists = true;
        for (uint32_t d = 1, left = row; d < map.rank; left /= map.box[d], ++d) {
            const int64_t x = int64_t{at[d]} + left % map.box[d];
            exists &= x >= 0 && x < map.extents[d];
            address += static_cast<uint64_t>(x) * map.strides[d];
        }
        const int64_t first = std::clamp<int64_t>(-int64_t{at[0]}, 0, map.box[0]);
        const int64_t last = std::clamp<int64_t>(int64_t{map.extents[0]} - at[0], first, map.box[0]);
        const auto begin = static_cast<uint32_t>(first) * map.element_bytes;
        const auto end = static_cast<uint32_t>(last) * map.element_bytes;
        f(row * row_bytes, address + static_cast<uint64_t>(int64_t{at[0]} * map.element_bytes), begin,
          exists ? end : begin);
    }
}

}  // namespace

void bulk_copy(Warp& w, const Instruction& i, Lanes lanes) {  // [to], [map, {x, y, ...}], [mbarrier]
    for_lanes(lanes, [&](int l) {
        BulkCopy c = {&i,
                      &w,
                      l,
                      w.operand<uint32_t>(i, 0)[l],
                      w.operand<uint32_t>(i, i.count - 1)[l],
                      read_map(w, i, l, w.operand<uint64_t>(i, 1)[l]),
                      {}};
        const uint32_t bytes = bytes_of(c.map);
        if (i.count != c.map.rank + 3)
            fail(w, i, l, fmt::format("{} coordinates for a tensor map of rank {}", i.count - 3, c.map.rank));
        for (int d = 0; d < c.map.rank; ++d) c.at[d] = w.operand<int32_t>(i, 2 + d)[l];
        if (c.to % kTileAlignment != 0)
            fail(w, i, l, fmt::format("the tile at byte {} of shared memory is not aligned to 128 bytes", c.to));
        if (c.to + uint64_t{bytes} > w.block->shared.size())
            fail(w, i, l,
                 fmt::format("{} bytes at byte {} of shared memory, of which the block has {}", bytes, c.to,
                             w.block->shared.size()));
        find(w, i, l, c.mbarrier);
        SharedMemory& shared = w.block->shared;
        // NVIDIA's own examples omit this fence between mbarrier.init and the first copy.
        if (!shared.is_fenced(c.mbarrier, kMbarrierBytes)) note(w, i, l, "signals " + shared.wrong());
        for_rows(c.map, c.at, [&](uint32_t, uint64_t address, uint32_t begin, uint32_t end) {
            if (begin == end) return;
            device_memory(w, i, l, address + begin, 1);
            device_memory(w, i, l, address + end - 1, 1);
        });
        if (!shared.begin_copy(w.clock, w.index, l, c.to, bytes, true)) fail(w, i, l, shared.wrong());
        if (w.counts) {
            Count& count = w.counts[&i - w.program->code.data()];
            count.transactions += bytes / 32;
            count.at_least += bytes / 32;
        }
        w.block->bulk.push_back(c);
    });
}

void land(Block& b, size_t k) {
    const BulkCopy c = b.bulk[k];
    b.bulk.erase(b.bulk.begin() + static_cast<std::ptrdiff_t>(k));
    uint8_t* const data = b.shared.data();
    for_rows(c.map, c.at, [&](uint32_t offset, uint64_t address, uint32_t begin, uint32_t end) {
        const uint32_t row = c.map.box[0] * c.map.element_bytes;
        for (uint32_t chunk = 0; chunk < row; chunk += 16) {
            const uint32_t plain = c.to + offset + chunk;
            const uint32_t at = c.map.swizzle_bytes ? swizzled(plain, c.map.swizzle_bytes) : plain;
            uint8_t piece[16] = {};  // zeros outside of the tensor
            const uint32_t first = std::max(begin, chunk);
            const uint32_t last = std::min(end, chunk + 16);
            if (first < last)
                std::memcpy(piece + (first - chunk), reinterpret_cast<const uint8_t*>(address) + first, last - first);
            std::memcpy(data + at, piece, std::min(16u, row - chunk));
        }
    });
    Warp& w = *c.warp;
    const auto bytes = bytes_of(c.map);
    b.shared.end_copy(w.clock, w.index, c.lane, c.to, bytes);
    const auto it = b.mbarriers.find(c.mbarrier);
    if (it == b.mbarriers.end()) fail(w, *c.instruction, c.lane, "its mbarrier is there no more");
    const auto self = static_cast<size_t>(w.index);
    it->second.arrived[self] = b.shared.release(w.clock, w.index, kAllLanes)[self];
    add_transactions(w, *c.instruction, c.lane, it->second, -int64_t{bytes});
    advance(it->second);
}

// ---- named barriers -------------------------------------------------------------------------------------------------

void barrier_arrive(Warp& w, const Instruction& i, Lanes) {  // a, b
    const uint32_t id = *w.operand<uint32_t>(i, 0);
    const uint32_t count = *w.operand<uint32_t>(i, 1);
    if (id >= w.block->named.size()) fail(w, i, 0, fmt::format("barrier {} of 16", id));
    NamedBarrier& b = w.block->named[id];
    if (b.arrived && b.count != count)
        fail(w, i, 0, fmt::format("{} threads at barrier {}, but {} for others", count, id, b.count));
    b.count = count;
    b.arrived += 32;
    if (b.arrived > b.count) fail(w, i, 0, fmt::format("{} threads arrive at barrier {} of {}", b.arrived, id, count));
    merge(b.view, w.block->shared.release(w.clock, w.index, kAllLanes));
}

bool pass_named_barriers(Block& block) {
    bool any = false;
    for (uint32_t id = 0; id < block.named.size(); ++id) {
        NamedBarrier& b = block.named[id];
        std::vector<Warp*> here;
        for (Warp& w : block.warps) {
            if (!w.live || !w.at_barrier) continue;
            const Instruction& i = w.program->code[static_cast<size_t>(w.groups[0].at)];
            if (i.count == 0 || *w.operand<uint32_t>(i, 0) != id) continue;
            const uint32_t count = *w.operand<uint32_t>(i, 1);
            if ((b.arrived || !here.empty()) && b.count != count)
                fail(w, i, 0, fmt::format("{} threads at barrier {}, but {} for others", count, id, b.count));
            b.count = count;
            here.push_back(&w);
            if (b.arrived + 32 * here.size() > count)
                fail(w, i, 0, fmt::format("{} threads at barrier {} of {}", b.arrived + 32 * here.size(), id, count));
        }
        if (b.count == 0 || b.arrived + 32 * here.size() != b.count) continue;
        for (Warp* w : here) merge(b.view, block.shared.release(w->clock, w->index, kAllLanes));
        for (Warp* w : here) {
            merge(w->clock.seen, b.view);
            w->groups[0].waits = w->at_barrier = false;
            ++w->groups[0].at;
        }
        b = {};
        any = true;
    }
    return any;
}

// ---- registers ------------------------------------------------------------------------------------------------------

void set_max_registers(Warp& w, const Instruction& i, Lanes) {
    const int to = static_cast<int>(i.offset);
    if (i.kind == Kind::poll ? to < w.registers_held : to > w.registers_held)
        fail(w, i, 0, fmt::format("a thread holds {} registers already", w.registers_held));
    w.registers_held = to;
}

}  // namespace teon::gpusim
