#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/integer.h"
#include "data/row_sorter.h"
#include "data/sample_order.h"

namespace teon {

namespace {

// The arrays of a batch, in their order within a slot.
enum Array { kTokens, kTargets, kTokenOrder, kPositions, kPositionOrder, kDocStart };
constexpr int kArraysWithoutMask = 3;
constexpr int kArraysWithMask = 6;
constexpr int kSampleInts = 2;  // the number of the first sample follows the arrays

// Reads samples into the arrays of a batch in host memory. Used from one thread at a time.
class BatchReader {
public:
    BatchReader(std::vector<ShardInfo> shards, const LoaderOptions& o)
        : o_(o),
          order_(shards, o.T, o.shuffle, o.seed, o.mixture, o.mixture_in_turn),
          reader_(std::move(shards), o.vocab_size),
          places_(o.B),
          window_(size_t(o.T) + 1) {}

    int64_t windows() const { return order_.windows(); }
    const std::vector<ShardInfo>& shards() const { return reader_.shards(); }

    // Distance between the arrays of a batch in elements. It aligns each array to 256 bytes, like a Buffer.
    int64_t stride() const { return round_up(int64_t{o_.B} * o_.T, 64); }
    int64_t arrays_size() const { return stride() * (o_.document_mask ? kArraysWithMask : kArraysWithoutMask); }

    void read_first_windows() {
        for (size_t s = 0; s < shards().size(); ++s) {
            reader_.read(window_.data(), static_cast<int>(s), 0,
                         std::min<int64_t>(shards()[s].tokens, o_.T + int64_t{1}));
        }
    }

    // arrays = the batch of the samples first_sample .. first_sample + B - 1.
    void read(int* arrays, int64_t first_sample) {
        const int T = o_.T;
        for (int b = 0; b < o_.B; ++b) {
            places_[b] = order_.place(first_sample + b);
            reader_.will_need(places_[b].shard, places_[b].first, int64_t{T} + 1);
        }
        for (int b = 0; b < o_.B; ++b) {
            reader_.read(window_.data(), places_[b].shard, places_[b].first, int64_t{T} + 1);
            std::copy_n(window_.data(), T, array(arrays, kTokens) + int64_t{b} * T);
            std::copy_n(window_.data() + 1, T, array(arrays, kTargets) + int64_t{b} * T);
        }
        sorter_.sort(array(arrays, kTokenOrder), array(arrays, kTokens), o_.B * T, o_.vocab_size);
        if (o_.document_mask) set_positions(arrays);
        std::memcpy(arrays + arrays_size(), &first_sample, sizeof first_sample);
    }

    // Sets the arrays of positions. Without a mask they do not depend on the tokens.
    void set_positions(int* arrays) {
        const int T = o_.T;
        for (int b = 0; b < o_.B; ++b) {
            const int* tokens = array(arrays, kTokens) + int64_t{b} * T;
            int* positions = array(arrays, kPositions) + int64_t{b} * T;
            int* doc_start = array(arrays, kDocStart) + int64_t{b} * T;
            for (int t = 0, start = 0; t < T; ++t) {
                if (o_.document_mask && tokens[t] == o_.delimiter) start = t;
                doc_start[t] = start;
                positions[t] = t - start;
            }
        }
        sorter_.sort(array(arrays, kPositionOrder), array(arrays, kPositions), o_.B * T, T);
    }

    template <typename Int>  // int or const int
    Int* array(Int* arrays, Array which) const {
        return arrays + which * stride();
    }

private:
    LoaderOptions o_;
    SampleOrder order_;
    ShardReader reader_;
    RowSorter sorter_;
    std::vector<SourceOrder::Place> places_;
    std::vector<int> window_;
};

const LoaderOptions& checked(const LoaderOptions& o) {
    CHECK_USAGE(o.B >= 1 && o.T >= 1 && int64_t{o.B} * o.T <= INT_MAX,
                "batch of {} sequences of {} tokens: both must be at least 1, and their product below 2^31", o.B, o.T);
    CHECK_USAGE(o.vocab_size >= 1, "vocabulary of {} tokens: expected at least 1", o.vocab_size);
    CHECK_USAGE(o.mixture.empty() || o.shuffle,
                "--shuffle off does not work with a mixture of sources, which has no order of files");
    CHECK_USAGE(o.ranks >= 1 && o.rank >= 0 && o.rank < o.ranks, "rank {} of {}: expected 0 to ranks - 1", o.rank,
                o.ranks);
    CHECK_USAGE(
        !o.document_mask || (o.delimiter >= 0 && o.delimiter < o.vocab_size),
        "--document-mask needs the token that begins a document, within the vocabulary of {}; it is {}: prepare the "
        "data with a delimiter, or leave the flag out",
        o.vocab_size, o.delimiter);
    return o;
}

}  // namespace

void check_loadable(const std::vector<ShardInfo>& shards, const LoaderOptions& options) {
    BatchReader(shards, checked(options)).read_first_windows();
}

// Batches use a ring of slots, each with a pinned and a device buffer. Call c of next() returns slot c mod kSlots:
//
//     calls        c - 2        c - 1         c            c + 1        c + 2
//     slot is      free again   in use        returned     being filled by the thread
//
// Two events per slot order the copies while the host runs ahead of the device:
//   copied   on the loader's stream, after the upload. The batch's stream waits for it, and so does call c + 2
//            before the thread fills the pinned buffer again.
//   passed   on the batch's stream, at call c, after all work queued before. Later work does not read the batch of
//            call c - 2, so the upload of call c + 2 to the same slot waits for this event.
//
// The thread makes no CUDA calls; next() starts the uploads. So the thread cannot disturb the capture of a graph and
// needs no current device, and a copy still overlaps the work already queued.
struct Loader::Impl {
    static constexpr int kSlots = 4;
    static constexpr int kBatchesAhead = 2;
    struct Slot {
        PinnedBuffer<int> pinned;
        Buffer<int> device;
        Event copied, passed;
    };

    LoaderOptions o;
    BatchReader reader;
    Stream copies;
    Slot slots[kSlots];
    Buffer<int> fixed_positions;  // positions and their order, constant without a document mask
    double wait_ms = 0;

    // Shared with the thread, under `mutex`.
    std::mutex mutex;
    std::condition_variable_any work;  // wakes the thread when a slot is free or it must stop
    std::condition_variable filled;
    int64_t calls = 0;           // completed calls of next()
    int64_t sample = 0;          // global index of the next step's first sample
    int ready = 0;               // slots filled beyond `calls`
    uint64_t seeks = 0;          // calls of seek(): the thread discards a batch that it reads during one
    std::exception_ptr failure;  // error of the batch after the `ready` batches

    std::jthread thread;  // the last member, so that it stops before the others are destroyed

    Impl(std::vector<ShardInfo> shards, const LoaderOptions& options)
        : o(checked(options)), reader(std::move(shards), o) {
        reader.read_first_windows();
        const int64_t stride = reader.stride();
        for (Slot& slot : slots) {
            const int64_t size = reader.arrays_size() + kSampleInts;
            slot.pinned = PinnedBuffer<int>(size);
            slot.device = Buffer<int>(size);
        }
        if (!o.document_mask) {
            std::vector<int> arrays(stride * kArraysWithMask);
            reader.set_positions(arrays.data());
            fixed_positions = Buffer<int>(2 * stride);
            upload(fixed_positions.data(), reader.array(arrays.data(), kPositions), 2 * stride, copies);
            copies.synchronize();
        }
        if (o.prefetch) thread = std::jthread([this](std::stop_token stop) { prefetch(stop); });
    }

    ~Impl() {
        try {
            copies.synchronize();  // uploads read the pinned buffers
        } catch (const Error&) {
            // The next read of a result reports a failed device.
        }
    }

    int64_t step() const { return int64_t{o.ranks} * o.B; }
    Slot& slot(int64_t call) { return slots[call % kSlots]; }
    void fill(int64_t call, int64_t of_sample) {
        reader.read(slot(call).pinned.data(), of_sample + int64_t{o.rank} * o.B);
    }

    void prefetch(std::stop_token stop) {
        std::unique_lock lock(mutex);
        while (work.wait(lock, stop, [&] { return ready < kBatchesAhead && !failure; }) && !stop.stop_requested()) {
            const uint64_t began = seeks;
            const int64_t call = calls + ready;
            const int64_t of_sample = sample + ready * step();
            std::exception_ptr error;
            lock.unlock();
            try {
                fill(call, of_sample);
            } catch (...) { error = std::current_exception(); }
            lock.lock();
            if (began != seeks) continue;
            if (error) {
                failure = error;
            } else {
                ++ready;
            }
            filled.notify_one();
        }
    }

    // Waits until the slot of this call contains its batch.
    void await() {
        auto start = std::chrono::steady_clock::now();
        if (o.prefetch) {
            std::unique_lock lock(mutex);
            filled.wait(lock, [&] { return ready > 0 || failure; });
            if (ready == 0) std::rethrow_exception(failure);
        } else {
            fill(calls, sample);
        }
        wait_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    }

    Batch next(const Stream& stream) {
        slot(calls + 2).copied.synchronize();
        await();
        Slot& now = slot(calls);
        now.passed.record(stream);
        slot(calls + 2).passed.make_wait(copies);
        upload(now.device.data(), now.pinned.data(), now.device.size(), copies);
        now.copied.record(copies);
        now.copied.make_wait(stream);
        {
            std::lock_guard lock(mutex);
            ++calls;
            sample += step();
            if (o.prefetch) --ready;
        }
        work.notify_one();
        return batch(now.device.data());
    }

    Batch batch(const int* arrays) const {
        Batch batch{.B = o.B, .T = o.T};
        batch.tokens = reader.array(arrays, kTokens);
        batch.targets = reader.array(arrays, kTargets);
        batch.token_order = reader.array(arrays, kTokenOrder);
        batch.first_sample = reinterpret_cast<const int64_t*>(arrays + reader.arrays_size());
        if (o.document_mask) {
            batch.positions = reader.array(arrays, kPositions);
            batch.position_order = reader.array(arrays, kPositionOrder);
            batch.doc_start = reader.array(arrays, kDocStart);
        } else {
            batch.positions = fixed_positions.data();
            batch.position_order = fixed_positions.data() + reader.stride();
        }
        return batch;
    }

    void seek(int64_t to) {
        CHECK(to >= 0, "seek to sample {}: expected at least 0", to);
        {
            std::lock_guard lock(mutex);
            sample = to;
            ready = 0;
            failure = nullptr;
            ++seeks;
        }
        work.notify_one();
    }
};

Loader::Loader(std::vector<ShardInfo> shards, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(shards), options)) {}
Loader::~Loader() = default;

int64_t Loader::windows() const { return impl_->reader.windows(); }
int64_t Loader::tokens() const {
    int64_t total = 0;
    for (const ShardInfo& shard : impl_->reader.shards()) total += shard.tokens;
    return total;
}
Batch Loader::next(const Stream& stream) { return impl_->next(stream); }
int64_t Loader::next_sample() const { return impl_->sample; }
void Loader::seek(int64_t sample) { impl_->seek(sample); }
double Loader::wait_ms() const { return impl_->wait_ms; }

}  // namespace teon
