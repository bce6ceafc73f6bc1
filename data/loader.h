// From token shards to batches on the device.
//
// The data set is a list of shards. Each is cut into windows of T + 1 tokens that begin every T tokens, so the last
// target of a window is the first input of the next; a shorter remainder is left out. Sample i of the run is window
// permute(seed, epoch, i mod windows) with epoch = i / windows. This is a pure function of i: seek() is O(1), every
// window comes exactly once per epoch, and ranks and resumed runs share one order. In a mixture every source has its
// own epochs, and every 10,000 samples contain exactly the share of each source, in a new order (sample_order.h). Step
// s on rank k of n takes samples first + s * n * B + k * B ... + B - 1.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch.h"
#include "data/shards.h"
#include "runtime/cuda/device.h"

namespace teon {

struct LoaderOptions {
    int B = 1, T = 1;
    int vocab_size = 0;   // a token outside [0, vocab_size) is an error naming shard and position
    bool shuffle = true;  // false: windows in the order of the files
    uint64_t seed = 0;
    int rank = 0, ranks = 1;
    // Share of each source (ShardInfo::source), with the sum 1; empty: one source. Needs shuffle.
    std::vector<double> mixture = {};
    // Whether the windows of each source come in turn. false: as in version 0.2, whose 10,000 samples have a source's
    // next windows in another order, so that a source may repeat windows within an epoch.
    bool mixture_in_turn = true;
    bool document_mask = false;  // fill doc_start and positions from the delimiters
    int delimiter = -1;          // token that begins a document; -1: none known
    bool prefetch = true;        // a thread reads up to two batches ahead; does not change the batches
};

// Reads the first window of every shard, so that shards of another tokenizer cause an Error here. Throws UsageError if
// the options contradict each other or the shards contain no window. Needs no device.
void check_loadable(const std::vector<ShardInfo>& shards, const LoaderOptions& options);

// Not thread-safe: to be used from one thread and with one stream.
class Loader {
public:
    // Throws what check_loadable() throws.
    Loader(std::vector<ShardInfo> shards, const LoaderOptions& options);
    ~Loader();

    int64_t windows() const;  // per epoch, over all shards; at least 1 (UsageError otherwise)
    int64_t tokens() const;   // over all shards

    // Returns the batch of the samples [next_sample() + rank * B, ... + B) and advances by ranks * B. The views stay
    // valid until the call after the next. The batch is ready on `stream`: an event orders the copy, the host does not
    // wait. Throws Error naming a shard that vanished, shrank or cannot be read, after the batches before it, and again
    // at each call until seek().
    //
    // Every target counts. The target of a document's last token is the delimiter that begins the next document, also
    // with document_mask: this teaches a model to end a text. With document_mask a document begins at a delimiter and
    // at the start of each row.
    Batch next(const Stream& stream);
    int64_t next_sample() const;  // global index of the next step's first sample: the position to save
    void seek(int64_t sample);    // continue from this global index, in O(1)

    double wait_ms() const;  // host time that the last next() waited for its tokens

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
