// Shared memory's other readers and writers: the asynchronous proxy, for wgmma and bulk copies, and other blocks of the
// cluster.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpusim/shared_memory.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kOfStoringWarp = 31u;
constexpr size_t kWarpgroup = 4;  // warps

}  // namespace

// ---- the asynchronous proxy -----------------------------------------------------------------------------------------

void SharedMemory::store(int warp, uint32_t at, uint32_t bytes, bool by_cp_async) {
    const Stored mark =
        steps_[static_cast<size_t>(warp)] << kStepsShift | (by_cp_async ? kByCpAsync : 0) | static_cast<Stored>(warp);
    std::fill(stored_.begin() + at / 2, stored_.begin() + (at + bytes - 1) / 2 + 1, mark);
}

void SharedMemory::fence_stores(int warp, uint32_t at, uint32_t bytes) {
    if (stored_.empty()) return;  // nothing reads through the asynchronous proxy
    for (uint32_t g = at / 2; g <= (at + bytes - 1) / 2; ++g)
        if ((stored_[g] & kOfStoringWarp) == static_cast<Stored>(warp)) stored_[g] = 0;  // older than every fence
}

void SharedMemory::fence_proxy(const SyncClock& clock, int warp) {
    const auto self = static_cast<size_t>(warp);
    fenced_[self] = ++steps_[self];
    for (size_t other = 0; other < fenced_.size(); ++other) {
        const auto& arrivals = steps_at_[other];
        if (other == self || clock.seen[other] < 2 || arrivals.empty()) continue;
        const size_t last = std::min<size_t>(clock.seen[other] - 2, arrivals.size() - 1);
        fenced_[other] = std::max(fenced_[other], arrivals[last]);
    }
}

SharedMemory::Fenced SharedMemory::is_fenced(uint32_t at, uint32_t bytes) {
    Fenced outcome = Fenced::yes;
    Stored fenced = 0;  // a mark that is known to be fenced
    for (uint32_t g = at / 2; g <= (at + bytes - 1) / 2; ++g) {
        const Stored s = stored_[g];
        if (s == fenced) continue;
        const uint32_t warp = s & kOfStoringWarp;
        if (s >> kStepsShift < fenced_[warp]) {
            fenced = s;
            continue;
        }
        const bool by_cp_async = s & kByCpAsync;
        if (by_cp_async && outcome != Fenced::yes) continue;
        outcome = by_cp_async ? Fenced::not_cp_async : Fenced::not_thread;
        wrong_ = fmt::format("byte {} of shared memory, which {}warp {} stored without fence.proxy.async after it",
                             std::max(2 * g, at), by_cp_async ? "cp.async of " : "", warp);
        if (!by_cp_async) break;
    }
    return outcome;
}

bool SharedMemory::begin_async_read(SyncClock& clock, int warp, uint32_t at, uint32_t bytes, Reads& reads,
                                    bool& is_doubtful) {
    const Fenced fenced = is_fenced(at, bytes);
    if (fenced == Fenced::not_thread) return false;
    if (!sees(clock, warp, 0, at, bytes)) return false;
    is_doubtful |= fenced == Fenced::not_cp_async;
    for (uint32_t unit = at / kUnit; unit <= (at + bytes - 1) / kUnit; ++unit) {
        async_readers_[unit][static_cast<size_t>(warp)] = kReading;
        if (reads.empty() || reads.back() != unit) reads.push_back(unit);
    }
    return true;
}

void SharedMemory::end_async_reads(const SyncClock& clock, int warp, const Reads& reads) {
    const auto first = static_cast<size_t>(warp) / kWarpgroup * kWarpgroup;
    for (const uint32_t unit : reads) {
        View& readers = async_readers_[unit];
        for (size_t other = first; other < first + kWarpgroup; ++other)
            if (readers[other] == kReading) readers[other] = 0;
        readers[static_cast<size_t>(warp)] = clock.time;
    }
}

void SharedMemory::keep_async_reads(int warp, const Reads& reads) {
    for (const uint32_t unit : reads) async_readers_[unit][static_cast<size_t>(warp)] = kReading;
}

bool SharedMemory::begin_copy_reads(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, Reads& reads) {
    if (!sees(clock, warp, lane, at, bytes)) return false;
    if (copy_readers_.empty()) copy_readers_.resize(async_readers_.size());
    for (uint32_t unit = at / kUnit; unit <= (at + bytes - 1) / kUnit; ++unit) {
        copy_readers_[unit][static_cast<size_t>(warp)] = kReading;
        if (reads.empty() || reads.back() != unit) reads.push_back(unit);
    }
    return true;
}

void SharedMemory::end_copy_reads(const SyncClock& clock, int warp, const Reads& reads) {
    for (const uint32_t unit : reads) copy_readers_[unit][static_cast<size_t>(warp)] = clock.time;
}

bool SharedMemory::not_read_asynchronously(const View& seen, int warp, uint32_t at, uint32_t bytes) {
    const auto refuse = [&](size_t reader, const char* what) {
        wrong_ = fmt::format("a race: writes byte {} of shared memory, which wgmma of warp {} {}", at, reader, what);
        return false;
    };
    for (uint32_t unit = at / kUnit; unit <= (at + bytes - 1) / kUnit; ++unit) {
        const View& readers = async_readers_[unit];
        for (size_t group = 0; group < readers.size(); group += kWarpgroup) {
            bool is_read = false;
            bool is_ordered = false;  // after the wait of any warp of the warpgroup
            for (size_t reader = group; reader < group + kWarpgroup; ++reader) {
                if (readers[reader] == kReading) return refuse(reader, "still reads");
                is_read |= readers[reader] > 0;
                is_ordered |=
                    readers[reader] > 0 && (static_cast<int>(reader) == warp || readers[reader] < seen[reader]);
            }
            if (is_read && !is_ordered) return refuse(group, "and its warpgroup read with no barrier between");
        }
    }
    for (uint32_t unit = at / kUnit; !copy_readers_.empty() && unit <= (at + bytes - 1) / kUnit; ++unit) {
        const View& readers = copy_readers_[unit];
        for (size_t reader = 0; reader < readers.size(); ++reader) {
            const bool is_reading = readers[reader] == kReading;
            if (readers[reader] == 0) continue;
            if (!is_reading && (static_cast<int>(reader) == warp || readers[reader] < seen[reader])) continue;
            wrong_ = fmt::format("a race: writes byte {} of shared memory, which a bulk copy of warp {} {}", at, reader,
                                 is_reading ? "still reads" : "read with no barrier between");
            return false;
        }
    }
    return true;
}

// ---- other blocks of the cluster ------------------------------------------------------------------------------------

// Returns whether an access by a warp of the block is ordered before one by another block that has this view. When in
// an earlier epoch it was made is not known: it counts as ordered if the view includes some of that epoch.
bool SharedMemory::ordered_for(const View& seen, Stamp before) const {
    const size_t warp = before >> 5 & 31;
    const uint32_t epoch = before >> kEpochShift;
    if (epoch < first_epoch_) return true;
    if (before >= barrier_) return seen[warp] > ended_[warp][before >> kClockShift & kLastClock];
    return epoch == first_epoch_ ? seen[warp] > 0 : seen[warp] >= barriers_[epoch - first_epoch_ - 1][warp];
}

bool SharedMemory::sees_remotely(const View& seen, uint32_t at, uint32_t bytes, bool writes) {
    for (uint32_t g = at / 2; g <= (at + bytes - 1) / 2; ++g) {
        const Stamp w = writer_[g];
        if (w == kCopying || (w < block_begin_ && !writes)) {
            wrong_ = fmt::format("{} byte {} of another block's shared memory, which {}", writes ? "writes" : "reads",
                                 2 * g, w == kCopying ? "a copy still writes" : "nothing has written");
            return false;
        }
        const char* const now = writes ? "writes another block's" : "reads another block's";
        if (w >= block_begin_ && !ordered_for(seen, w)) return race(now, "wrote", w, 2 * g);
        const Stamp r = reader_[g];
        if (!writes || r < block_begin_) continue;
        if (readers_.contains(g / 4) ? !all_have_read(seen, -1, g) : !ordered_for(seen, r))
            return race(now, "read", r, 2 * g);
    }
    return true;
}

bool SharedMemory::begin_remote_copy(const View& seen, uint32_t at, uint32_t bytes) {
    if (!not_read_asynchronously(seen, -1, at, bytes) || !sees_remotely(seen, at, bytes, true)) return false;
    std::fill(writer_.data() + at / 2, writer_.data() + (at + bytes) / 2, kCopying);
    std::memset(data_.data() + at, 0xff, bytes);
    return true;
}

void SharedMemory::write_remotely(uint32_t at, uint32_t bytes) {
    std::fill(writer_.data() + at / 2, writer_.data() + (at + bytes + 1) / 2, block_begin_);
}

}  // namespace teon::gpusim
