// From token shards to batches on the device.
//
// The data set is a list of shards, each cut into windows of T + 1 tokens that begin every T tokens (neighbours share
// one token: the last target of one is the first input of the next); a shard's remainder shorter than that is left out.
// Sample i of the run is window permute(seed, epoch, i mod windows) with epoch = i / windows: a pure function of its
// index, so that any index can be sought in O(1), every window comes exactly once an epoch, and ranks and resumed runs
// share one order. With a mixture of sources every source has epochs of its own, and every 10,000 samples hold exactly
// its share of each, in an order permuted anew. Batch r of step s on rank k of n takes samples first + s * n * B + k *
// B ... + B - 1.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch.h"
#include "data/shards.h"
#include "runtime/device.h"

namespace teon {

struct LoaderOptions {
    int B = 1, T = 1;
    int vocab_size = 0;   // a token outside [0, vocab_size) is an error naming shard and position
    bool shuffle = true;  // false: windows in the order of the files
    uint64_t seed = 0;
    int rank = 0, ranks = 1;
    // Share of each source (ShardInfo::source), in all 1; empty: one source. Needs shuffle.
    std::vector<double> mixture = {};
    bool document_mask = false;  // fill doc_start and positions from the delimiters
    int delimiter = -1;          // token that begins a document; -1: none known
    bool prefetch = true;        // a thread reads up to two batches ahead; the batches are the same without
};

// Used from one thread, and with one stream.
class Loader {
public:
    // Reads the first window of every shard, so that shards of another tokenizer are an Error here. Throws UsageError
    // where the options contradict each other or the shards hold no window.
    Loader(std::vector<ShardInfo> shards, const LoaderOptions& options);
    ~Loader();

    int64_t windows() const;  // per epoch, over all shards; at least 1 (UsageError otherwise)
    int64_t tokens() const;   // over all shards

    // The batch of the samples [next_sample() + rank * B, ... + B); advances by ranks * B. Views stay valid until the
    // call after the next. The batch is ready on `stream` (ordered by event, the host does not wait for the copy).
    // Throws Error naming the file where a shard vanished, shrank or cannot be read, again at each call until seek();
    // the batches before it come first.
    //
    // Every target counts. That of a document's last token is the delimiter that begins the next, with document_mask
    // too: it is how a model learns to end a text. With document_mask a delimiter begins a document, and so does each
    // row: what comes before the window is not seen.
    Batch next(const Stream& stream);
    int64_t next_sample() const;  // the global index that next() will begin at: the position to save
    void seek(int64_t sample);    // continue from this global index, in O(1)

    double wait_ms() const;  // host time that the last next() waited for its tokens

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
