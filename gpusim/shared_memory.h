// The shared memory of a block. For every two bytes it records the last accesses, to find reads of bytes that were
// never written or are still being copied, and accesses of two threads that nothing orders.
//
// The accesses of a thread are ordered among themselves. bar.sync orders those of all threads of the block,
// bar.warp.sync those of the lanes in its mask ("PTX ISA", "Parallel Synchronization and Communication Instructions":
// shfl, vote, mma and ldmatrix order no memory accesses). With named barriers and mbarriers, the accesses of a warp
// until its arrival come before the accesses of another warp after its wait.
//
// Bulk copies and wgmma access shared memory through the asynchronous proxy ("Proxies"): a read sees the store of a
// thread only if that thread executed fence.proxy.async in between.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace teon::gpusim {

// For each warp of a block, the time up to which its accesses are ordered before some point.
using View = std::array<uint32_t, 32>;
void merge(View& into, const View& more);

// The synchronizations of a warp since the block's last barrier.
struct SyncClock {
    uint32_t now = 0;        // counts synchronizations
    uint32_t last_full = 0;  // `now` after the last synchronization of all live lanes
    bool touched = false;    // accesses since the last synchronization of all live lanes
    struct Partial {
        uint32_t at = 0, lanes = 0;
    };
    bool any_partial = false;
    std::array<Partial, 32> partial{};  // the last synchronization of only some lanes, by lane

    uint32_t unreleased = 0;  // lanes that accessed shared memory since they last arrived, or all lanes synchronized
    uint32_t time = 1;        // counts arrivals, including those at barriers of the whole block
    View seen{};              // the accesses that are ordered before the warp's next access
};

class SharedMemory {
public:
    // Prepares for blocks of `bytes` each, with nothing written. `asynchronous`: the kernel uses the asynchronous
    // proxy. `joins_warps`: it has named barriers or mbarriers.
    // `in_cluster`: other blocks may access it.
    void resize(size_t bytes, bool asynchronous, bool joins_warps, bool in_cluster = false);
    void begin_block();
    void barrier(const View& times = {});  // `times`: of the warps' clocks, for blocks in a cluster
    // Synchronizes the lanes with each other. `all`: they are all live lanes of the warp.
    void sync_warp(SyncClock& clock, uint32_t lanes, bool all, int warp);
    // Records the arrival of lanes of the warp, and returns what a waiter merges into its `seen`. This orders the
    // warp's accesses before its last synchronization ahead of the waiter's next access, and also the later ones if all
    // lanes that made them have arrived.
    View release(SyncClock& clock, int warp, uint32_t lanes);

    size_t size() const { return size_; }
    uint8_t* data() { return data_.data(); }

    // Record an access within the memory, aligned to its size. Return false if it is an error, which wrong() describes.
    // `value` is what a write will store, because two threads may store the same value; null if that does not matter.
    bool read(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes);
    bool write(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, const void* value);
    // Checks a read like read(), without recording it: for mbarriers.
    bool sees(const SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes);
    // Begins a write by cp.async, or, if `bulk`, through the asynchronous proxy.
    bool begin_copy(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, bool bulk = false);
    // Check an access of another block, which has this view of the memory, and begin a bulk copy by it. Once the copy
    // has ended, everybody sees it: it can only be waited for at an mbarrier.
    bool sees_remotely(const View& seen, uint32_t at, uint32_t bytes, bool writes);
    bool begin_remote_copy(const View& seen, uint32_t at, uint32_t bytes);
    void write_remotely(uint32_t at, uint32_t bytes);  // stores by another block, or ends its copy
    const std::string& wrong() const { return wrong_; }
    void end_copy(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes);
    void forget(uint32_t at, uint32_t bytes);  // as if never written

    // wgmma of the warp reads these bytes through the asynchronous proxy until end_async_reads is called with the same
    // list, to which this adds them, for a warp of its warpgroup. Sets `is_doubtful`, which wrong() then describes, if
    // cp.async stored some of them and no fence came after it: published kernels do so.
    using Reads = std::vector<uint32_t>;
    bool begin_async_read(SyncClock& clock, int warp, uint32_t at, uint32_t bytes, Reads& reads, bool& is_doubtful);
    void end_async_reads(const SyncClock& clock, int warp, const Reads& reads);
    void keep_async_reads(int warp, const Reads& reads);  // marks them as in flight after another list ended them
    // Likewise for bulk copies from shared memory, which a warp begins and waits for alone.
    bool begin_copy_reads(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, Reads& reads);
    void end_copy_reads(const SyncClock& clock, int warp, const Reads& reads);
    // Makes visible to the asynchronous proxy what the warp has stored, and what others have that is ordered before.
    void fence_proxy(const SyncClock& clock, int warp);
    void fence_stores(int warp, uint32_t at, uint32_t bytes);  // only those of the warp to these bytes
    // Whether the asynchronous proxy sees all stores to these bytes, or else by what they were stored.
    enum class Fenced { yes, not_thread, not_cp_async };
    Fenced is_fenced(uint32_t at, uint32_t bytes);

private:
    // A stamp: epoch (counts barriers) 12 bits, clock 8, several lanes 1, several warps 1, warp 5, lane 5. Later epochs
    // are larger numbers.
    using Stamp = uint32_t;
    static constexpr Stamp kCopying = ~Stamp{0};
    static constexpr Stamp kUnknown = kCopying - 1;  // of no access: the last epoch is kLastEpoch
    static constexpr Stamp kSeveralLanes = 1 << 11;
    static constexpr Stamp kSeveralWarps = 1 << 10;
    static constexpr int kClockShift = 12;
    static constexpr int kEpochShift = 20;
    static constexpr uint32_t kLastClock = 255;
    static constexpr uint32_t kLastEpoch = 4094;

    Stamp stamp(SyncClock& clock, int warp, int lane) {
        clock.touched = true;
        clock.unreleased |= 1u << lane;
        return epoch_ << kEpochShift | clock.now << kClockShift | static_cast<Stamp>(warp << 5 | lane);
    }
    bool ordered(const SyncClock& clock, Stamp before, Stamp me) const;
    bool is_written(Stamp writer, uint32_t at);
    bool race(const char* now, const char* then, Stamp before, uint32_t at);
    bool overwrite(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, const void* value);
    bool read_slowly(const SyncClock& clock, Stamp me, uint32_t at, uint32_t bytes);
    Stamp writer_of_byte(uint32_t at) const;
    bool write_slowly(const SyncClock& clock, Stamp me, uint32_t first, uint32_t last, const void* value);
    void restart_epochs();
    void advance(SyncClock& clock, int warp);
    void renumber(SyncClock& clock, int warp);
    bool not_read_asynchronously(const View& seen, int warp, uint32_t at, uint32_t bytes);
    bool all_have_read(const View& seen, int warp, uint32_t g) const;
    bool ordered_for(const View& seen, Stamp before) const;

    static constexpr uint32_t kUnit = 128;  // bytes whose asynchronous readers are recorded together
    static constexpr uint32_t kReading = ~uint32_t{0};
    // What the asynchronous proxy must know of the last store by a thread: the number of fences and arrivals that its
    // warp had executed (steps) 26 bits, by cp.async 1, warp 5. 0: none.
    using Stored = uint32_t;
    static constexpr Stored kByCpAsync = 1 << 5;
    static constexpr int kStepsShift = 6;
    static constexpr uint32_t kMostSteps = 1u << 25;  // at the beginning of a block
    void store(int warp, uint32_t at, uint32_t bytes, bool by_cp_async);

    size_t size_ = 0;
    std::string wrong_;
    std::vector<uint8_t> data_;
    std::vector<Stamp> writer_, reader_;
    uint32_t epoch_ = 0;
    Stamp block_begin_ = 0;  // the first stamp of the block
    Stamp barrier_ = 0;      // the first stamp after its last barrier
    // The time at which each value of a warp's clock ended; kReading if it has not.
    std::array<std::array<uint32_t, kLastClock + 1>, 32> ended_{};
    bool asynchronous_ = false;
    bool joins_warps_ = false;
    bool in_cluster_ = false;
    uint32_t first_epoch_ = 0;    // of the block
    std::vector<View> barriers_;  // in a cluster: the time at which each epoch of the block ended
    // For each unit, when each warp waited for the end of its warpgroup's reads; 0 if another warp of it did.
    std::vector<View> async_readers_;
    std::vector<View> copy_readers_;  // likewise of bulk copies, by warp; empty if there were none
    std::unordered_map<uint32_t, Stamp>
        byte_writers_;                   // of the last write to each byte alone, as two bytes share a stamp
    std::vector<Stored> stored_;         // for every two bytes; empty if the kernel does not use the asynchronous proxy
    std::array<uint32_t, 32> steps_{};   // of each warp
    std::array<uint32_t, 32> fenced_{};  // its stores before this step are fenced
    std::array<std::vector<uint32_t>, 32> steps_at_;  // its step at each arrival, from the time 2 on
    // When each warp last read each 8 bytes, to check writes to bytes that several warps have read.
    std::unordered_map<uint32_t, View> readers_;
};

}  // namespace teon::gpusim
