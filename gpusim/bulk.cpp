// Copies into shared memory end as late as possible (gpusim/run.cpp). Copies out of it take place when they begin, but
// count as reading until their thread waits for them.
#include "gpusim/bulk.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "gpusim/atomic.h"
#include "gpusim/cluster.h"
#include "gpusim/counts.h"
#include "gpusim/half.h"
#include "gpusim/mbarrier.h"
#include "gpusim/memory.h"
#include "gpusim/tensor_map.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kTileAlignment = 128;
constexpr uint32_t kUnit = 16;  // bytes: of addresses and sizes of copies of bytes

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

// Bytes as a tensor of one row.
TensorMap map_of_bytes(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t shared, uint32_t bytes) {
    if (address % kUnit != 0 || shared % kUnit != 0 || bytes % kUnit != 0)
        fail(w, i, lane, "{} bytes at {:#x} and at byte {} of shared memory: all must be multiples of 16", bytes,
             address, shared);
    TensorMap map;
    map.rank = 1;
    map.element_bytes = kUnit;
    map.address = address;
    map.strides[0] = kUnit;
    map.extents[0] = map.box[0] = bytes / kUnit;
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
    const uint32_t rows = row_bytes ? bytes_of(map) / row_bytes : 0;
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

// Where the 16 bytes at `offset` of a tile at `tile` are in shared memory.
uint32_t place_in_tile(const TensorMap& map, uint32_t tile, uint32_t offset) {
    return map.swizzle_bytes ? swizzled(tile + offset, map.swizzle_bytes) : tile + offset;
}

// Reads coordinates from the operands after the map's, and checks the tile.
void read_tile(Warp& w, const Instruction& i, int lane, const TensorMap& map, int first, int coordinates, int32_t* at,
               uint32_t tile) {
    if (coordinates != map.rank) fail(w, i, lane, "{} coordinates for a tensor map of rank {}", coordinates, map.rank);
    for (int d = 0; d < map.rank; ++d) at[d] = w.operand<int32_t>(i, first + d)[lane];
    if (tile % kTileAlignment != 0)
        fail(w, i, lane, "the tile at byte {} of shared memory is not aligned to 128 bytes", tile);
}

void check_tile(Warp& w, const Instruction& i, int lane, const TensorMap& map, const int32_t* at, uint32_t tile,
                const SharedMemory& shared) {
    const uint64_t bytes = bytes_of(map);
    if (tile + bytes > shared.size())
        fail(w, i, lane, "{} bytes at byte {} of shared memory, of which the block has {}", bytes, tile, shared.size());
    for_rows(map, at, [&](uint32_t, uint64_t address, uint32_t begin, uint32_t end) {
        if (begin == end) return;
        device_memory(w, i, lane, address + begin, 1);
        device_memory(w, i, lane, address + end - 1, 1);
    });
}

void count_bytes(Warp& w, const Instruction& i, uint32_t bytes) {
    if (!w.counts) return;
    Count& count = w.counts[&i - w.program->code.data()];
    count.transactions += bytes / 32;
    count.at_least += bytes / 32;
}

template <typename F>
void for_receivers(Block& block, uint32_t ranks, F f) {
    if (!block.cluster) return f(block);
    for (Block* receiver : block.cluster->blocks)
        if (ranks >> receiver->rank & 1) f(*receiver);
}

}  // namespace

void bulk_load(Warp& w, const Instruction& i, Lanes lanes) {
    const bool is_tensor = i.variant & bulk::kTensor;
    const bool multicasts = i.variant & bulk::kMulticast;
    for_lanes(lanes, [&](int l) {
        Block& sender = *w.block;
        BulkCopy c = {&i, &w, l, 0, 0, 1u << sender.rank, {}, {}};
        const int at_mbarrier = i.count - 1 - multicasts;
        uint64_t to = w.operand<uint32_t>(i, 0)[l];
        uint64_t mbarrier = w.operand<uint32_t>(i, at_mbarrier)[l];
        if (&block_of_address(w, i, l, to) != &sender || &block_of_address(w, i, l, mbarrier) != &sender)
            fail(w, i, l, "a copy to the shared memory of another block, which is only modelled with .multicast");
        c.to = static_cast<uint32_t>(to);
        c.mbarrier = static_cast<uint32_t>(mbarrier);
        const uint64_t from = w.operand<uint64_t>(i, 1)[l];
        if (is_tensor) {
            c.map = read_map(w, i, l, from);
            read_tile(w, i, l, c.map, 2, at_mbarrier - 2, c.at, c.to);
        } else {
            c.map = map_of_bytes(w, i, l, from, c.to, w.operand<uint32_t>(i, 2)[l]);
        }
        if (multicasts) c.ranks = w.operand<uint16_t>(i, i.count - 1)[l];
        const uint32_t bytes = bytes_of(c.map);
        find_mbarrier(w, i, l, c.mbarrier);
        // NVIDIA's sender examples omit this fence between mbarrier.init and the first copy.
        if (sender.shared.is_fenced(c.mbarrier, kMbarrierBytes) != SharedMemory::Fenced::yes)
            note(w, i, l, "signals " + sender.shared.wrong());
        check_tile(w, i, l, c.map, c.at, c.to, sender.shared);
        const uint32_t ranks_there = sender.cluster ? (uint32_t{1} << sender.cluster->blocks.size()) - 1 : 1;
        if (c.ranks == 0 || c.ranks & ~ranks_there)
            fail(w, i, l, "the receivers {:#x} of a cluster with the blocks {:#x}", c.ranks, ranks_there);
        for_receivers(sender, c.ranks, [&](Block& receiver) {
            if (receiver.has_ended) fail(w, i, l, "receiver {} of the copy has ended", receiver.rank);
            if (&receiver != &sender)
                find_mbarrier(w, i, l, ((uint64_t{receiver.rank} + 1) << kRankShift) + c.mbarrier);
            const bool begins = &receiver == &sender
                                    ? sender.shared.begin_copy(w.clock, w.index, l, c.to, bytes, true)
                                    : receiver.shared.begin_remote_copy(w.seen_of[receiver.rank], c.to, bytes);
            if (!begins) fail(w, i, l, receiver.shared.wrong());
        });
        count_bytes(w, i, bytes);
        sender.bulk.push_back(c);
    });
}

void land(Block& b, size_t k) {
    const BulkCopy c = b.bulk[k];
    b.bulk.erase(b.bulk.begin() + static_cast<std::ptrdiff_t>(k));
    Warp& w = *c.warp;
    const uint32_t bytes = bytes_of(c.map);
    for_receivers(b, c.ranks, [&](Block& receiver) {
        if (receiver.has_ended)
            fail(w, *c.instruction, c.lane,
                 "block {} of the cluster has ended while the copy still writes its shared memory", receiver.rank);
        uint8_t* const data = receiver.shared.data();
        for_rows(c.map, c.at, [&](uint32_t offset, uint64_t address, uint32_t begin, uint32_t end) {
            const uint32_t row = c.map.box[0] * c.map.element_bytes;
            for (uint32_t chunk = 0; chunk < row; chunk += kUnit) {
                uint8_t piece[kUnit] = {};  // zeros outside of the tensor
                const uint32_t first = std::max(begin, chunk);
                const uint32_t last = std::min(end, chunk + kUnit);
                if (first < last)
                    std::memcpy(piece + (first - chunk), reinterpret_cast<const uint8_t*>(address) + first,
                                last - first);
                std::memcpy(data + place_in_tile(c.map, c.to, offset + chunk), piece, std::min(kUnit, row - chunk));
            }
        });
        const auto it = receiver.mbarriers.find(c.mbarrier);
        if (it == receiver.mbarriers.end()) fail(w, *c.instruction, c.lane, "its mbarrier is there no more");
        if (&receiver == &b) {
            b.shared.end_copy(w.clock, w.index, c.lane, c.to, bytes);
            // Who waits sees the copy, but not what its thread has done since.
            const auto self = static_cast<size_t>(w.index);
            Views only_copy;
            only_copy.of_block[self] = b.shared.release(w.clock, w.index, kAllLanes)[self];
            if (b.cluster) {
                only_copy.of_ranks.resize(b.cluster->blocks.size());
                only_copy.of_ranks[b.rank] = only_copy.of_block;
            }
            merge(it->second.arrived, only_copy);
        } else {
            receiver.shared.write_remotely(c.to, bytes);
        }
        complete_transactions(w, *c.instruction, c.lane, it->second, bytes);
    });
}

// ---- out of shared memory -------------------------------------------------------------------------------------------

namespace {

// Combines one element in memory with one of the copy, atomically.
template <typename T>
void reduce(AtomicOp how, uint8_t* to, const uint8_t* from) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    auto* const p = reinterpret_cast<Bits*>(to);
    Bits more;
    std::memcpy(&more, from, sizeof more);
    const T other = std::bit_cast<T>(more);
    update(p, [&](Bits old) { return std::bit_cast<Bits>(combine(how, std::bit_cast<T>(old), other, other)); });
}

// Elements of 16 bits are computed in float, as one addition.
template <typename H>
struct HalfElement {
    uint16_t bits;
    friend HalfElement operator+(HalfElement a, HalfElement b) {
        return {H::narrow(H::widen(a.bits) + H::widen(b.bits))};
    }
    friend bool operator==(HalfElement a, HalfElement b) = default;
    friend bool operator<(HalfElement a, HalfElement b) { return H::widen(a.bits) < H::widen(b.bits); }
    friend bool operator>(HalfElement a, HalfElement b) { return b < a; }
};

using Reducer = void (*)(AtomicOp, uint8_t*, const uint8_t*);
Reducer reducer_of(int type) {
    switch (type) {
        case TensorMap::kU32:
            return &reduce<uint32_t>;
        case TensorMap::kS32:
            return &reduce<int32_t>;
        case TensorMap::kU64:
            return &reduce<uint64_t>;
        case TensorMap::kS64:
            return &reduce<int64_t>;
        case TensorMap::kF32:
            return &reduce<float>;
        case TensorMap::kF64:
            return &reduce<double>;
        case TensorMap::kF16:
            return &reduce<HalfElement<HalfF16>>;
        case TensorMap::kBf16:
            return &reduce<HalfElement<HalfBf16>>;
        default:
            return nullptr;
    }
}

}  // namespace

void bulk_store(Warp& w, const Instruction& i, Lanes lanes) {
    const bool is_tensor = i.variant & bulk::kTensor;
    const auto how = static_cast<AtomicOp>(i.vector);
    for_lanes(lanes, [&](int l) {
        SharedMemory& shared = w.block->shared;
        const uint64_t to = w.operand<uint64_t>(i, 0)[l];
        const uint32_t from = w.operand<uint32_t>(i, is_tensor ? i.count - 1 : 1)[l];
        TensorMap map;
        int32_t at[TensorMap::kMaxRank] = {};
        if (is_tensor) {
            map = read_map(w, i, l, to);
            read_tile(w, i, l, map, 1, i.count - 2, at, from);
        } else {
            map = map_of_bytes(w, i, l, to, from, w.operand<uint32_t>(i, 2)[l]);
        }
        check_tile(w, i, l, map, at, from, shared);
        const uint32_t bytes = bytes_of(map);
        BulkRead read = {w.bulk_committed[static_cast<size_t>(l)], {}};
        // Bytes for elements outside of the tensor are not read.
        for_rows(map, at, [&](uint32_t offset, uint64_t, uint32_t begin, uint32_t end) {
            for (uint32_t chunk = begin / kUnit * kUnit; chunk < end; chunk += kUnit) {
                const uint32_t place = place_in_tile(map, from, offset + chunk);
                if (shared.is_fenced(place, kUnit) != SharedMemory::Fenced::yes)
                    alarm(w, i, l, "copies " + shared.wrong());
                if (!shared.begin_copy_reads(w.clock, w.index, l, place, std::min(kUnit, end - chunk), read.reads))
                    fail(w, i, l, shared.wrong());
            }
        });
        const Reducer reducer = how == AtomicOp::none ? nullptr : reducer_of(is_tensor ? map.type : i.width);
        if (how != AtomicOp::none && !reducer) fail(w, i, l, "a reduction of a type that is not modelled");
        const int element = is_tensor ? map.element_bytes : static_cast<int>(i.bytes);
        for_rows(map, at, [&](uint32_t offset, uint64_t address, uint32_t begin, uint32_t end) {
            for (uint32_t b = begin; b < end;) {
                const uint32_t chunk = b / kUnit * kUnit;
                const uint8_t* const source = shared.data() + place_in_tile(map, from, offset + chunk) + (b - chunk);
                auto* const target = reinterpret_cast<uint8_t*>(address) + b;
                const uint32_t count = reducer ? static_cast<uint32_t>(element) : std::min(end, chunk + kUnit) - b;
                reducer ? reducer(how, target, source) : static_cast<void>(std::memcpy(target, source, count));
                b += count;
            }
        });
        count_bytes(w, i, bytes);
        w.bulk_reads[static_cast<size_t>(l)].push_back(std::move(read));
    });
}

void bulk_commit(Warp& w, const Instruction&, Lanes lanes) {
    for_lanes(lanes, [&](int l) { ++w.bulk_committed[static_cast<size_t>(l)]; });
}

void bulk_wait(Warp& w, const Instruction& i, Lanes lanes) {
    for_lanes(lanes, [&](int l) {
        const int64_t first_in_flight = w.bulk_committed[static_cast<size_t>(l)] - i.offset;
        std::erase_if(w.bulk_reads[static_cast<size_t>(l)], [&](const BulkRead& read) {
            if (read.group >= first_in_flight) return false;
            w.block->shared.end_copy_reads(w.clock, w.index, read.reads);
            return true;
        });
    });
}

}  // namespace teon::gpusim
