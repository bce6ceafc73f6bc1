// "Data Movement and Conversion Instructions": ld, st, cp.async, ldmatrix. All accesses are checked: they must be
// aligned and within an allocation and, in shared memory, obey the rules of gpusim/shared_memory.h.
#include "gpusim/memory.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpusim/cluster.h"
#include "gpusim/counts.h"

namespace teon::gpusim {

namespace {

// Returns whether the range contains [address, address + bytes). The sum may exceed 2^64.
bool holds(const Range& r, uint64_t address, uint64_t bytes) {
    return address >= r.begin && address < r.end && r.end - address >= bytes;
}

// Returns the allocation that contains [address, address + bytes), or null.
const Range* find_range(const std::vector<Range>& memory, uintptr_t address, size_t bytes) {
    const auto after = std::upper_bound(memory.begin(), memory.end(), address,
                                        [](uintptr_t a, const Range& r) { return a < r.begin; });
    if (after == memory.begin() || !holds(*(after - 1), address, bytes)) return nullptr;
    return &*(after - 1);
}

std::string describe(const std::vector<Range>& memory, uintptr_t address) {
    const auto after = std::upper_bound(memory.begin(), memory.end(), address,
                                        [](uintptr_t a, const Range& r) { return a < r.begin; });
    if (after == memory.begin()) return "which is in no allocation";
    const Range& r = *(after - 1);
    return fmt::format("byte {} of an allocation of {} bytes", address - r.begin, r.end - r.begin);
}

void check_alignment(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes) {
    if (address % bytes != 0) fail(w, i, lane, "the address {:#x} is not a multiple of {} bytes", address, bytes);
}

void check_waited(Warp& w, const Instruction& i, int lane) {
    if (w.block->launch->early && !w.waited) fail(w, i, lane, "device memory is touched before griddepcontrol.wait");
}

// Returns whether the accesses of all lanes to device memory are aligned and within one allocation: the one that the
// warp accessed last, or one that is looked up and becomes it.
bool all_in_one_allocation(Warp& w, const Addresses& a, Lanes lanes, uint32_t bytes) {
    uint64_t lowest_address = ~uint64_t{0};
    uint64_t highest_address = 0;
    uint64_t any = 0;
    for (int l = 0; l < 32; ++l) {
        const bool on = lanes >> l & 1;
        lowest_address = std::min(lowest_address, on ? a.of[l] : ~uint64_t{0});
        highest_address = std::max(highest_address, on ? a.of[l] : 0);
        any |= on ? a.of[l] : 0;
    }
    if (any % bytes != 0) return false;
    if (holds(w.near, lowest_address, highest_address - lowest_address + bytes)) return true;
    const Range* range = find_range(*w.block->memory, lowest_address, highest_address - lowest_address + bytes);
    if (range) w.near = *range;
    return range != nullptr;
}

}  // namespace

Addresses addresses(Warp& w, const Instruction& i, int operand) {
    Addresses a;
    if (i.address_width == 8) {
        const uint64_t* from = w.operand<uint64_t>(i, operand);
        for (int l = 0; l < 32; ++l) a.of[l] = from[l] + static_cast<uint64_t>(i.offset);
    } else {
        const uint32_t* from = w.operand<uint32_t>(i, operand);
        for (int l = 0; l < 32; ++l) a.of[l] = static_cast<uint32_t>(from[l] + static_cast<uint32_t>(i.offset));
    }
    return a;
}

void count_access(Warp& w, const Instruction& i, Lanes lanes, Addresses a, uint32_t bytes) {
    if (!w.counts || !lanes) return;
    Space space = i.space;
    if (space == Space::generic) {
        const uint64_t first = a.of[first_lane(lanes)];
        space = first >= kSharedWindow ? Space::shared : Space::global;
        if (first >= kLocalWindow) space = Space::local;
    }
    Count& count = w.counts[&i - w.program->code.data()];
    if (space == Space::shared) return count_wavefronts(count, a.of, lanes, bytes);
    if (space != Space::local) count_sectors(count, a.of, lanes, bytes);
}

uint8_t* checked_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes, bool writes,
                        const void* value) {
    Space space = i.space;
    if (space == Space::generic) {
        if (address >= kLocalWindow) {
            space = Space::local;
            address -= kLocalWindow;
        } else if (address >= kSharedWindow) {
            space = Space::shared;
            address -= kSharedWindow;
        }
    }
    if (space == Space::shared && address >= kOwnShared) {
        uint64_t at = address;
        if (&block_of_address(w, i, lane, at) != w.block) return remote_memory(w, i, lane, address, bytes, writes);
        address = at;
    }
    if (space == Space::shared)
        return writes ? shared_for_write(w, i, lane, address, bytes, value)
                      : shared_for_read(w, i, lane, address, bytes);
    if (space != Space::local) return device_memory(w, i, lane, address, bytes);
    const size_t size = w.program->local_bytes;
    if (address + bytes > size || address + bytes < address)
        fail(w, i, lane, "byte {} of local memory, of which a thread has {}", address, size);
    check_alignment(w, i, lane, address, bytes);
    return w.local + static_cast<size_t>(lane) * size + address;
}

namespace {

// Loads an element of i.bytes bytes into a register of i.width bytes; extends the sign if i.sign is set.
void into_register(uint8_t* d, const uint8_t* from, const Instruction& i) {
    uint64_t x = 0;
    std::memcpy(&x, from, i.bytes);
    if (i.sign && i.bytes < 8 && x >> (8 * i.bytes - 1) & 1) x |= ~uint64_t{0} << 8 * i.bytes;
    std::memcpy(d, &x, i.width);
}

// The common case, in which registers are as wide as elements: the compiler makes it fast for each width.
template <typename T, bool Stores>
void move_elements(Warp& w, const Instruction& i, Lanes lanes, uint8_t* const* where) {
    const int first = Stores ? 1 : 0;
    for (int k = 0; k < i.vector; ++k) {
        T* r = w.operand<T>(i, first + k);
        for_lanes(lanes, [&](int l) {
            if constexpr (Stores)
                std::memcpy(where[l] + k * sizeof(T), r + l, sizeof(T));
            else
                std::memcpy(r + l, where[l] + k * sizeof(T), sizeof(T));
        });
    }
}

template <bool Stores>
void move_all(Warp& w, const Instruction& i, Lanes lanes, uint8_t* const* where) {
    if (i.width == i.bytes) {
        switch (i.bytes) {
            case 2:
                return move_elements<uint16_t, Stores>(w, i, lanes, where);
            case 4:
                return move_elements<uint32_t, Stores>(w, i, lanes, where);
            case 8:
                return move_elements<uint64_t, Stores>(w, i, lanes, where);
            default:
                break;
        }
    }
    for (int k = 0; k < i.vector; ++k) {
        uint8_t* r = w.operand<uint8_t>(i, (Stores ? 1 : 0) + k);
        for_lanes(lanes, [&](int l) {
            if constexpr (Stores)
                std::memcpy(where[l] + k * i.bytes, r + l * i.width, i.bytes);
            else
                into_register(r + l * i.width, where[l] + k * i.bytes, i);
        });
    }
}

// The bytes that a lane will store. Stores of equal values do not race.
struct Value {
    uint8_t bytes[16];
};
Value value_of(Warp& w, const Instruction& i, int lane) {
    Value v;
    for (int k = 0; k < i.vector && (k + 1) * i.bytes <= 16; ++k)
        std::memcpy(v.bytes + k * i.bytes, w.operand<uint8_t>(i, 1 + k) + lane * i.width, i.bytes);
    return v;
}

template <bool Stores>
void access(Warp& w, const Instruction& i, Lanes lanes) {
    const Addresses a = addresses(w, i, Stores ? 0 : i.vector);
    const uint32_t bytes = static_cast<uint32_t>(i.bytes) * i.vector;
    count_access(w, i, lanes, a, bytes);
    uint8_t* where[32];
    const bool device = i.space == Space::global || i.space == Space::constant || i.space == Space::generic;
    if (device && (!w.block->launch->early || w.waited) && all_in_one_allocation(w, a, lanes, bytes)) {
        for (int l = 0; l < 32; ++l) where[l] = reinterpret_cast<uint8_t*>(a.of[l]);
    } else if (Stores && i.space != Space::local) {
        // Two lanes of an instruction that store different values to the same place race, so each lane stores before
        // the next one is checked.
        for_lanes(lanes, [&](int l) {
            const Value v = value_of(w, i, l);
            where[l] = checked_memory(w, i, l, a.of[l], bytes, true, v.bytes);
            std::memcpy(where[l], v.bytes, bytes);
        });
        return;
    } else {
        for_lanes(lanes, [&](int l) { where[l] = checked_memory(w, i, l, a.of[l], bytes, Stores, nullptr); });
    }
    move_all<Stores>(w, i, lanes, where);
}

}  // namespace

uint8_t* device_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes) {
    check_waited(w, i, lane);
    if (!holds(w.near, address, bytes)) {
        const Range* range = find_range(*w.block->memory, address, bytes);
        if (!range)
            fail(w, i, lane, "{} bytes at {:#x} of device memory, {}", bytes, address,
                 describe(*w.block->memory, address));
        w.near = *range;
    }
    check_alignment(w, i, lane, address, bytes);
    return reinterpret_cast<uint8_t*>(address);
}

const uint8_t* generic_memory(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes) {
    return checked_memory(w, i, lane, address, bytes, false, nullptr);
}

static void check_shared(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes) {
    const size_t size = w.block->shared.size();
    if (address + bytes > size || address + bytes < address)
        fail(w, i, lane, "{} bytes at byte {} of shared memory, of which the block has {}", bytes, address, size);
    check_alignment(w, i, lane, address, bytes);
}

uint8_t* shared_for_read(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes) {
    check_shared(w, i, lane, address, bytes);
    SharedMemory& shared = w.block->shared;
    if (w.block->cluster) check_against_remote(w, i, lane, static_cast<uint32_t>(address), bytes, false);
    if (!shared.read(w.clock, w.index, lane, static_cast<uint32_t>(address), bytes)) alarm(w, i, lane, shared.wrong());
    return shared.data() + address;
}

uint8_t* shared_for_write(Warp& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes,
                          const void* value) {
    check_shared(w, i, lane, address, bytes);
    SharedMemory& shared = w.block->shared;
    if (w.block->cluster) check_against_remote(w, i, lane, static_cast<uint32_t>(address), bytes, true);
    if (!shared.write(w.clock, w.index, lane, static_cast<uint32_t>(address), bytes, value))
        alarm(w, i, lane, shared.wrong());
    return shared.data() + address;
}

void load(Warp& w, const Instruction& i, Lanes lanes) { access<false>(w, i, lanes); }
void store(Warp& w, const Instruction& i, Lanes lanes) { access<true>(w, i, lanes); }

void load_parameter(Warp& w, const Instruction& i, Lanes lanes) {
    const Addresses a = addresses(w, i, i.vector);
    const uint32_t bytes = static_cast<uint32_t>(i.bytes) * i.vector;
    uint8_t* where[32];
    for_lanes(lanes, [&](int l) {
        if (a.of[l] + bytes > w.program->parameter_bytes)
            fail(w, i, l, "byte {} of {} of the parameters", a.of[l], w.program->parameter_bytes);
        where[l] = const_cast<uint8_t*>(w.block->parameters) + a.of[l];
    });
    move_all<false>(w, i, lanes, where);
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------

// The copy takes place as late as possible: when its thread waits for it. Until then its destination contains NaN.
void copy_async(Warp& w, const Instruction& i, Lanes lanes) {
    const uint32_t bytes = i.bytes;
    const uint32_t* to = w.operand<uint32_t>(i, 0);
    Addresses from;
    for (int l = 0; l < 32; ++l) from.of[l] = w.operand<uint64_t>(i, 1)[l] + static_cast<uint64_t>(i.offset);
    const auto filled_of = [&](int l) { return i.count > 2 ? w.operand<uint32_t>(i, 2)[l] : bytes; };
    if (w.counts) {
        Lanes reading = 0;
        for_lanes(lanes, [&](int l) { reading |= filled_of(l) ? Lanes{1} << l : 0; });
        count_sectors(w.counts[&i - w.program->code.data()], from.of, reading, bytes);
    }
    for_lanes(lanes, [&](int l) {
        const uint32_t filled = filled_of(l);
        const uint64_t source = from.of[l];
        if (filled > bytes) fail(w, i, l, "{} bytes are to be read of a copy of {}", filled, bytes);
        if (filled) {
            check_alignment(w, i, l, source, bytes);
            device_memory(w, i, l, source, filled == bytes ? bytes : 1);
            if (filled < bytes) device_memory(w, i, l, source + filled - 1, 1);
        }
        check_shared(w, i, l, to[l], bytes);
        if (!w.block->shared.begin_copy(w.clock, w.index, l, to[l], bytes)) fail(w, i, l, w.block->shared.wrong());
        w.copies[static_cast<size_t>(l)].push_back({to[l], reinterpret_cast<const void*>(source),
                                                    static_cast<uint8_t>(bytes), static_cast<uint8_t>(filled),
                                                    w.committed[static_cast<size_t>(l)]});
    });
}

void copy_commit(Warp& w, const Instruction&, Lanes lanes) {
    for_lanes(lanes, [&](int l) { ++w.committed[static_cast<size_t>(l)]; });
}

void copy_wait(Warp& w, const Instruction& i, Lanes lanes) {
    SharedMemory& shared = w.block->shared;
    for_lanes(lanes, [&](int l) {
        auto& copies = w.copies[static_cast<size_t>(l)];
        const int64_t first_in_flight =
            i.offset < 0 ? w.committed[static_cast<size_t>(l)] + 1 : w.committed[static_cast<size_t>(l)] - i.offset;
        std::erase_if(copies, [&](const Copy& c) {
            if (c.group >= first_in_flight) return false;
            std::memcpy(shared.data() + c.to, c.from, c.filled);
            std::memset(shared.data() + c.to + c.filled, 0, static_cast<size_t>(c.bytes - c.filled));
            shared.end_copy(w.clock, w.index, l, c.to, c.bytes);
            return true;
        });
    });
}

// ---- ldmatrix -------------------------------------------------------------------------------------------------------

// Lane 8 k + j holds the address of row j of matrix k. Each lane receives two adjacent elements of a row or, with
// .trans, of a column.
void load_matrix(Warp& w, const Instruction& i, Lanes) {
    const Addresses a = addresses(w, i, i.vector);
    count_access(w, i, static_cast<Lanes>((uint64_t{1} << 8 * i.vector) - 1), a, 16);
    const uint16_t* row[32];
    for (int l = 0; l < 8 * i.vector; ++l) {
        uint64_t address = a.of[l];
        if (i.address_width == 8 && address >= kSharedWindow) address -= kSharedWindow;
        row[l] = reinterpret_cast<const uint16_t*>(shared_for_read(w, i, l, address, 16));
    }
    for (int k = 0; k < i.vector; ++k) {
        uint32_t* d = w.operand<uint32_t>(i, k);
        for (int l = 0; l < 32; ++l) {
            const int j = l / 4;
            const int c = 2 * (l % 4);
            d[l] = i.variant ? row[8 * k + c][j] | uint32_t{row[8 * k + c + 1][j]} << 16
                             : row[8 * k + j][c] | uint32_t{row[8 * k + j][c + 1]} << 16;
        }
    }
}

// stmatrix: lane 8 k + j holds the address of row j of matrix k, and each lane two adjacent elements of a row or, with
// .trans, of a column.
void store_matrix(Warp& w, const Instruction& i, Lanes) {  // [a], registers
    const Addresses a = addresses(w, i, 0);
    count_access(w, i, static_cast<Lanes>((uint64_t{1} << 8 * i.vector) - 1), a, 16);
    for (int k = 0; k < i.vector; ++k) {
        const uint32_t* r = w.operand<uint32_t>(i, 1 + k);
        for (int j = 0; j < 8; ++j) {
            const int lane = 8 * k + j;
            uint64_t address = a.of[lane];
            if (i.address_width == 8 && address >= kSharedWindow) address -= kSharedWindow;
            uint16_t row[8];
            for (int c = 0; c < 8; ++c)
                row[c] = i.variant ? static_cast<uint16_t>(r[4 * c + j / 2] >> 16 * (j % 2))
                                   : static_cast<uint16_t>(r[4 * j + c / 2] >> 16 * (c % 2));
            std::memcpy(shared_for_write(w, i, lane, address, 16, row), row, sizeof row);
        }
    }
}

}  // namespace teon::gpusim
