// From token shards to batches on the device.
//
// The data set is a list of shards, each cut into windows of T + 1 tokens that begin every T tokens (neighbours share one
// token: the last target of one is the first input of the next); a shard's remainder shorter than that is left out.
// Sample i of the run is window permute(seed, epoch, i mod windows) with epoch = i / windows: a pure function of its index,
// so that any index can be sought in O(1), every window comes exactly once an epoch, and ranks and resumed runs share one
// order. Batch r of step s on rank k of n takes samples first + s * n * B + k * B ... + B - 1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/batch.h"
#include "runtime/context.h"

namespace teon {

// One shard file: its header agrees with its size (CHECKed on opening, before any token is read).
struct ShardInfo {
    std::string path;
    int64_t tokens = 0;
    int bytes_per_token = 2;   // 2: magic 20240520 version 1; 4: magic 20240801 version 7
};

// The shards that a folder, file, glob or comma-separated list of these names, sorted by path. `split` ("train" or "val") picks
// the files with _train_ or _val_ in their name from a folder. Throws UsageError naming the file and the fault: not found, no
// shard, wrong magic or version, fewer or more bytes than the header says, empty, a directory, not readable, mixed token sizes.
std::vector<ShardInfo> open_shards(const std::string& pattern, const std::string& split);

struct LoaderOptions {
    int B = 1, T = 1;
    int vocab_size = 0;            // a token outside [0, vocab_size) is an error naming shard and position
    bool shuffle = true;           // false: windows in the order of the files
    uint64_t seed = 0;
    int rank = 0, ranks = 1;
    bool document_mask = false;    // fill doc_start and positions from the delimiters
    int delimiter = -1;            // token that begins a document; -1: none known
    bool prefetch = true;          // a thread fills pinned double buffers and copies on its own stream
};

class Loader {
public:
    Loader(std::vector<ShardInfo> shards, const LoaderOptions& options);
    ~Loader();

    int64_t windows() const;                 // per epoch, over all shards; at least 1 (UsageError otherwise)
    int64_t tokens() const;                  // over all shards

    // The batch of the samples [next_sample() + rank * B, ... + B); advances by ranks * B. Views stay valid until the call after
    // the next. The batch is ready on `stream` (ordered by event, the host does not wait for the copy).
    Batch next(const Stream& stream);
    int64_t next_sample() const;             // the global index that next() will begin at: the position to save
    void seek(int64_t sample);               // continue from this global index

    double wait_ms() const;                  // host time that the last next() waited for the prefetch thread

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
