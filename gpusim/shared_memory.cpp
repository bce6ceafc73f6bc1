#include "gpusim/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace teon::gpusim {

namespace {

constexpr uint32_t kOfWarp = 31u << 5;
constexpr uint32_t kOfLane = 31u;

// Returns whether all `n` stamps are in [low, high).
inline bool all_within(const uint32_t* x, uint32_t n, uint32_t low, uint32_t high) {
    uint32_t outside = 0;
    const auto add = [&](uint32_t k) { outside |= static_cast<uint32_t>(x[k] - low >= high - low); };
    if (n == 8) {  // 16 bytes: one vector
        for (uint32_t k = 0; k < 8; ++k) add(k);
    } else {
        for (uint32_t k = 0; k < n; ++k) add(k);
    }
    return !outside;
}

}  // namespace

void merge(View& into, const View& more) {
    for (size_t k = 0; k < into.size(); ++k) into[k] = std::max(into[k], more[k]);
}

void SharedMemory::resize(size_t bytes, bool asynchronous, bool joins_warps, bool in_cluster) {
    size_ = bytes;
    in_cluster_ = in_cluster;
    asynchronous_ = asynchronous;
    joins_warps_ = asynchronous || joins_warps;
    if (asynchronous) {
        async_readers_.assign(bytes / kUnit + 1, {});
        stored_.assign(bytes / 2 + 8, 0);
    }
    if (data_.size() >= bytes) return;
    data_.assign(bytes + 16, 0xff);
    writer_.assign(bytes / 2 + 8, 0);
    reader_.assign(bytes / 2 + 8, 0);
    epoch_ = 0;
}

void SharedMemory::begin_block() {
    if (epoch_ > kLastEpoch / 2 || epoch_ == 0) {
        std::fill(writer_.begin(), writer_.end(), 0);
        std::fill(reader_.begin(), reader_.end(), 0);
        epoch_ = 0;
    }
    ++epoch_;
    block_begin_ = epoch_ << kEpochShift;
    if (in_cluster_) ++epoch_;  // the first epoch is of what everybody sees
    barrier_ = epoch_ << kEpochShift;
    first_epoch_ = epoch_;
    barriers_.clear();
    for (auto& of_warp : ended_) of_warp[0] = kReading;
    std::fill(async_readers_.begin(), async_readers_.end(), View{});
    copy_readers_.clear();
    byte_writers_.clear();
    if (*std::ranges::max_element(steps_) > kMostSteps) {
        std::ranges::fill(stored_, 0);
        steps_ = {};
    }
    for (uint32_t& of_warp : steps_) ++of_warp;
    fenced_ = steps_;  // what other blocks stored counts as fenced
    for (auto& of_warp : steps_at_) of_warp.clear();
    readers_.clear();
}

void SharedMemory::barrier(const View& times) {
    if (epoch_ == kLastEpoch) restart_epochs();
    if (in_cluster_) barriers_.push_back(times);
    ++epoch_;
    barrier_ = epoch_ << kEpochShift;
    for (auto& of_warp : ended_) of_warp[0] = kReading;
}

// Everything that this block has written moves to its first epoch; earlier reads no longer matter.
void SharedMemory::restart_epochs() {
    const Stamp first = 1u << kEpochShift;
    for (Stamp& w : writer_)
        if (w != kCopying) w = w >= block_begin_ ? first : 0;
    std::fill(reader_.begin(), reader_.end(), 0);
    byte_writers_.clear();
    epoch_ = 1;
    block_begin_ = first;
    first_epoch_ = epoch_ + 1;  // what came before counts as seen by everybody
    barriers_.clear();
}

void SharedMemory::sync_warp(SyncClock& clock, uint32_t lanes, bool all, int warp) {
    if (!clock.touched) return;
    if (all) clock.unreleased = 0;
    clock.touched = !all;
    advance(clock, warp);
    if (all) {
        clock.last_full = clock.now;
    } else {
        clock.any_partial = true;
        for (int l = 0; l < 32; ++l)
            if (lanes >> l & 1) clock.partial[l] = {clock.now, lanes};
    }
}

// Gives the warp's next accesses a new value of its clock.
void SharedMemory::advance(SyncClock& clock, int warp) {
    auto& ended = ended_[static_cast<size_t>(warp)];
    ended[clock.now] = clock.time;
    if (clock.now == kLastClock) renumber(clock, warp);
    ended[++clock.now] = kReading;
}

// Renumbers the warp's clock from 0. Merges consecutive values unless a synchronization that still matters separates
// them; a merged value ends when the oldest of its values ended. A race with another warp may then be missed, but no
// false one is reported.
void SharedMemory::renumber(SyncClock& clock, int warp) {
    std::array<bool, kLastClock + 1> begins{true};
    begins[clock.last_full] = true;
    for (const SyncClock::Partial& p : clock.partial) begins[p.at] = true;
    auto& ended = ended_[static_cast<size_t>(warp)];
    std::array<uint32_t, kLastClock + 1> renamed;
    clock.now = 0;
    for (uint32_t old = 0; old <= kLastClock; ++old) {
        if (begins[old] && old > 0) ended[++clock.now] = ended[old];
        renamed[old] = clock.now;
    }
    const Stamp mine = static_cast<Stamp>(warp) << 5;
    const auto rename = [&](Stamp& s) {
        if (s >= barrier_ && s != kCopying && (s & kOfWarp) == mine)
            s = (s & ~(kLastClock << kClockShift)) | renamed[s >> kClockShift & kLastClock] << kClockShift;
    };
    for (auto* stamps : {&writer_, &reader_}) std::ranges::for_each(*stamps, rename);
    for (auto& [byte, stamp] : byte_writers_) rename(stamp);
    clock.last_full = renamed[clock.last_full];
    for (SyncClock::Partial& p : clock.partial) p.at = renamed[p.at];
}

View SharedMemory::release(SyncClock& clock, int warp, uint32_t lanes) {
    const uint32_t some = std::exchange(clock.unreleased, clock.unreleased & ~lanes);
    if (some && !clock.unreleased) advance(clock, warp);
    View view = clock.seen;
    view[static_cast<size_t>(warp)] = ++clock.time;
    if (asynchronous_) steps_at_[static_cast<size_t>(warp)].push_back(++steps_[static_cast<size_t>(warp)]);
    return view;
}

// Returns whether an access of this epoch is ordered before an access that `me` makes now.
bool SharedMemory::ordered(const SyncClock& clock, Stamp before, Stamp me) const {
    const uint32_t then = before >> kClockShift & kLastClock;
    const uint32_t warp = before >> 5 & 31;
    if (before & kSeveralWarps) return false;
    if (clock.seen[warp] > ended_[warp][then]) return true;
    if ((before ^ me) & kOfWarp) return false;
    if (!(before & kSeveralLanes) && !((before ^ me) & kOfLane)) return true;
    if (then < clock.last_full) return true;
    const SyncClock::Partial& mine = clock.partial[me & kOfLane];
    return !(before & kSeveralLanes) && mine.at > then && mine.lanes >> (before & kOfLane) & 1;
}

bool SharedMemory::is_written(Stamp writer, uint32_t at) {
    if (writer != kCopying && writer >= block_begin_) return true;
    wrong_ = fmt::format("reads byte {} of shared memory, which {}", at,
                         writer == kCopying ? "cp.async still writes" : "nothing has written");
    return false;
}

bool SharedMemory::race(const char* now, const char* then, Stamp before, uint32_t at) {
    std::string who = fmt::format("lane {} of warp {}", before & kOfLane, before >> 5 & 31);
    if (before & kSeveralLanes) who = fmt::format("several lanes of warp {}", before >> 5 & 31);
    if (before & kSeveralWarps) who = "several warps";
    wrong_ =
        fmt::format("a race: {} byte {} of shared memory, which {} {} with no barrier between", now, at, who, then);
    return false;
}

bool SharedMemory::read(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes) {
    const Stamp me = stamp(clock, warp, lane);
    const uint32_t first = at / 2;
    const uint32_t last = (at + bytes - 1) / 2;
    const uint32_t n = last - first + 1;
    for (uint32_t g = first / 4; joins_warps_ && g <= last / 4; ++g)
        readers_[g][static_cast<size_t>(warp)] = clock.time;
    if (clock.any_partial || !all_within(writer_.data() + first, n, block_begin_, barrier_))
        return read_slowly(clock, me, at, bytes);
    // Everything was written before the last barrier. It remains to record the reader, as read_slowly does.
    const Stamp full = barrier_ | clock.last_full << kClockShift;
    const Stamp barrier = barrier_;
    const auto note = [=](Stamp& r) {
        const bool other_warp = (r ^ me) & kOfWarp || r & kSeveralWarps;
        const bool other_lane = (r ^ me) & kOfLane || r & kSeveralLanes;
        const Stamp of_lanes = other_lane && r >= full ? kSeveralLanes : 0;
        const Stamp flags = other_warp ? kSeveralWarps : of_lanes;
        r = r < barrier ? me : me | flags;
    };
    Stamp* const r = reader_.data() + first;
    if (n == 8) {
        for (uint32_t k = 0; k < 8; ++k) note(r[k]);
    } else {
        for (uint32_t k = 0; k < n; ++k) note(r[k]);
    }
    return true;
}

// Returns the stamp of the last write to a byte, or one that is ordered before everything if that is not known: the
// stamp of its two bytes may be of a write to the other byte alone.
SharedMemory::Stamp SharedMemory::writer_of_byte(uint32_t at) const {
    const Stamp of_both = writer_[at / 2];
    const auto other = byte_writers_.find(at ^ 1);
    if (other == byte_writers_.end() || other->second != of_both) return of_both;
    const auto it = byte_writers_.find(at);
    return it == byte_writers_.end() ? kUnknown : it->second;
}

bool SharedMemory::read_slowly(const SyncClock& clock, Stamp me, uint32_t at, uint32_t bytes) {
    for (uint32_t g = at / 2; g <= (at + bytes - 1) / 2; ++g) {
        const Stamp w = bytes == 1 ? writer_of_byte(at) : writer_[g];
        if (w == kUnknown) continue;
        if (!is_written(w, 2 * g)) return false;
        if (w >= barrier_ && !ordered(clock, w, me)) return race("reads", "wrote", w, 2 * g);
        Stamp& r = reader_[g];
        if (r < barrier_ || ordered(clock, r, me))
            r = me;
        else
            r = me | ((r ^ me) & kOfWarp || r & kSeveralWarps ? kSeveralWarps : kSeveralLanes);
    }
    return true;
}

bool SharedMemory::write(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, const void* value) {
    if (asynchronous_) store(warp, at, bytes, false);
    return overwrite(clock, warp, lane, at, bytes, value);
}

bool SharedMemory::overwrite(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, const void* value) {
    if (asynchronous_ && !not_read_asynchronously(clock.seen, warp, at, bytes)) return false;
    const Stamp me = stamp(clock, warp, lane);
    const uint32_t first = at / 2;
    const uint32_t last = (at + bytes - 1) / 2;
    const uint32_t n = last - first + 1;
    if (!all_within(writer_.data() + first, n, 0, barrier_) || !all_within(reader_.data() + first, n, 0, barrier_)) {
        // Two neighbouring bytes share a stamp, so writes of single bytes would seem to race.
        if (bytes > 1 || writer_[first] == kCopying) return write_slowly(clock, me, first, last, value);
    }
    std::fill(writer_.data() + first, writer_.data() + last + 1, me);
    if (bytes == 1) byte_writers_[at] = me;
    return true;
}

bool SharedMemory::write_slowly(const SyncClock& clock, Stamp me, uint32_t first, uint32_t last, const void* value) {
    for (uint32_t g = first; g <= last; ++g) {
        const Stamp w = writer_[g];
        const Stamp r = reader_[g];
        if (w == kCopying) {
            wrong_ = fmt::format("writes byte {} of shared memory, which cp.async still writes", 2 * g);
            return false;
        }
        if (w >= barrier_ && !ordered(clock, w, me)) {
            const auto* two = static_cast<const uint8_t*>(value) + 2 * (g - first);
            if (!value || std::memcmp(two, data_.data() + 2 * g, 2) != 0) return race("writes", "wrote", w, 2 * g);
        }
        const bool after =
            r < barrier_ || ordered(clock, r, me) ||
            (joins_warps_ && r & kSeveralWarps && all_have_read(clock.seen, static_cast<int>(me >> 5 & 31), g));
        if (!after) return race("writes", "read", r, 2 * g);
        writer_[g] = me;
    }
    return true;
}

bool SharedMemory::begin_copy(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes, bool bulk) {
    if (asynchronous_ && !bulk) store(warp, at, bytes, true);
    if (!overwrite(clock, warp, lane, at, bytes, nullptr)) return false;
    std::fill(writer_.data() + at / 2, writer_.data() + (at + bytes) / 2, kCopying);
    std::memset(data_.data() + at, 0xff, bytes);
    return true;
}

void SharedMemory::end_copy(SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes) {
    std::fill(writer_.data() + at / 2, writer_.data() + (at + bytes) / 2, stamp(clock, warp, lane));
}

bool SharedMemory::all_have_read(const View& seen, int warp, uint32_t g) const {
    const View& times = readers_.at(g / 4);
    for (size_t other = 0; other < times.size(); ++other)
        if (times[other] && times[other] >= seen[other] && static_cast<int>(other) != warp) return false;
    return true;
}

bool SharedMemory::sees(const SyncClock& clock, int warp, int lane, uint32_t at, uint32_t bytes) {
    const Stamp me = epoch_ << kEpochShift | clock.now << kClockShift | static_cast<Stamp>(warp << 5 | lane);
    uint64_t ordered_stamp = ~uint64_t{0};  // a stamp that is known to be ordered
    for (uint32_t g = at / 2; g < (at + bytes) / 2; ++g) {
        const Stamp w = writer_[g];
        if (w == ordered_stamp) continue;
        if (!is_written(w, 2 * g)) return false;
        if (w >= barrier_ && !ordered(clock, w, me)) return race("reads", "wrote", w, 2 * g);
        ordered_stamp = w;
    }
    return true;
}

void SharedMemory::forget(uint32_t at, uint32_t bytes) {
    std::fill(writer_.data() + at / 2, writer_.data() + (at + bytes) / 2, 0);
}

}  // namespace teon::gpusim
