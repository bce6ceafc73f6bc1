// The shared memory of a block, and who has touched each two bytes of it last, to find reads of what was never written
// or is still being copied, and accesses of two threads that nothing orders.
//
// A thread's accesses are ordered among themselves. bar.sync orders those of all threads of the block, bar.warp.sync
// those of the lanes in its mask ("PTX ISA", "Parallel Synchronization and Communication Instructions": shfl, vote,
// mma and ldmatrix order no memory). Named barriers and mbarriers order what a warp did before it arrived before what
// another does after it waited.
//
// Bulk copies and wgmma access the memory through the asynchronous proxy ("Proxies"): a read sees what a thread stored
// only if that thread executed fence.proxy.async in between.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace teon::gpusim {

// Of each warp of a block, a time until which its accesses are ordered before something.
using View = std::array<uint32_t, 32>;
void merge(View& into, const View& more);

// What a warp has synchronized since the block's last barrier.
struct SyncClock {
    uint32_t now = 0;        // counts synchronizations
    uint32_t last_full = 0;  // `now` after the last one of all live lanes
    bool touched = false;    // shared memory, since `now` began
    struct Partial {
        uint32_t at = 0, lanes = 0;
    };
    bool any_partial = false;
    std::array<Partial, 32> partial{};  // the last one of only some lanes, by lane

    uint32_t unreleased = 0;  // lanes that accessed shared memory since they last arrived somewhere or synchronized
    uint32_t time = 1;        // counts arrivals; those of the whole block, too
    View seen{};              // what is ordered before the warp's next access
};

class SharedMemory {
public:
    // For blocks of `bytes` each; nothing is written yet. `asynchronous`: something uses the asynchronous proxy.
    void resize(size_t bytes, bool asynchronous = false);
    void begin_block();
    void barrier();
    // The lanes wait for each other; `all`: they are all that live.
    void sync_warp(SyncClock& clock, uint32_t lanes, bool all, int warp);
    // Lanes of the warp arrive: who joins what this returns to what it has seen is behind the warp's accesses until it
    // last synchronized, and until now if the lanes that made them have arrived.
    View release(SyncClock& clock, int warp, uint32_t lanes);

    size_t size() const { return size_; }
    uint8_t* data() { return data_.data(); }

    // Note an access within the memory, aligned to its size; false: it is an error, of which wrong() has the words.
    // `value` is what a write will store (two threads may store the same), null where that does not matter.
    bool read(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes);
    bool write(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, const void* value);
    // The same check of a read that is not noted: of an mbarrier.
    bool sees(const SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes);
    // cp.async has begun to write there; `bulk`: through the asynchronous proxy.
    bool begin_copy(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, bool bulk = false);
    const std::string& wrong() const { return wrong_; }
    void end_copy(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes);
    void forget(uint32_t at, uint32_t bytes);  // as if never written

    // wgmma of the warp reads these bytes through the asynchronous proxy, from now until end_async_reads with the same
    // list, to which they are added.
    using Reads = std::vector<uint32_t>;
    bool begin_async_read(SyncClock& clock, int warp, uint32_t at, uint32_t bytes, Reads& reads);
    void end_async_reads(const SyncClock& clock, int warp, const Reads& reads);
    void keep_async_reads(int warp, const Reads& reads);  // which another list has ended
    void fence_proxy(int warp) { unfenced_[static_cast<size_t>(warp)].clear(); }
    // Whether the asynchronous proxy sees what was stored there.
    bool is_fenced(uint32_t at, uint32_t bytes);

private:
    // A stamp: epoch (barriers) 12 bits, clock 8, several lanes 1, several warps 1, warp 5, lane 5. Later epochs are
    // larger numbers.
    using Stamp = uint32_t;
    static constexpr Stamp kCopying = ~Stamp{0};
    static constexpr Stamp kSeveralLanes = 1 << 11, kSeveralWarps = 1 << 10;
    static constexpr int kClockShift = 12, kEpochShift = 20;
    static constexpr uint32_t kLastClock = 255, kLastEpoch = 4094;

    Stamp stamp(SyncClock& clock, int warp, int lane) {
        clock.touched = true;
        clock.unreleased |= 1u << lane;
        return epoch_ << kEpochShift | clock.now << kClockShift | static_cast<Stamp>(warp << 5 | lane);
    }
    bool ordered(const SyncClock& clock, Stamp before, Stamp me) const;
    bool race(const char* now, const char* then, Stamp before, uint32_t at);
    bool read_slowly(const SyncClock& clock, Stamp me, uint32_t first, uint32_t last);
    bool write_slowly(const SyncClock& clock, Stamp me, uint32_t first, uint32_t last, const void* value);
    void restart_epochs();
    void advance(SyncClock& clock, int warp);
    void renumber(SyncClock& clock, int warp);
    bool not_read_by_wgmma(const SyncClock& clock, int warp, uint32_t at, uint32_t bytes);
    bool all_have_read(const SyncClock& clock, int warp, uint32_t g) const;

    static constexpr uint32_t kUnit = 128;  // bytes whose asynchronous readers are noted as one
    static constexpr uint32_t kReading = ~uint32_t{0};
    struct Stored {
        uint32_t at, end;
    };

    size_t size_ = 0;
    std::string wrong_;
    std::vector<uint8_t> data_;
    std::vector<Stamp> writer_, reader_;
    uint32_t epoch_ = 0;
    Stamp block_begin_ = 0, barrier_ = 0;  // the first stamps since
    // The time at which a warp ended each value of its clock; kReading: it has not.
    std::array<std::array<uint32_t, kLastClock + 1>, 32> ended_{};
    bool asynchronous_ = false;
    std::vector<View> async_readers_;  // of each unit: when the warps ended to read it
    std::array<std::vector<Stored>, 32> unfenced_;
    // Of what several warps read, by 8 bytes: when each did last.
    std::unordered_map<uint32_t, View> readers_;
};

}  // namespace teon::gpusim
