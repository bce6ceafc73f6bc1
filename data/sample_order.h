// The order of a run's samples. Sample i of one source is window permute(seed, epoch, i mod windows) with
// epoch = i / windows. In a mixture each block of 10,000 samples has a fixed number of samples of each source, in an
// order that is a permutation keyed by the block's number; each source's windows come in turn, in its own epochs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/permutation.h"
#include "data/shards.h"

namespace teon {

// The windows of one source, numbered across its shards, in a new permutation each epoch.
class SourceOrder {
public:
    struct Place {
        int shard;
        int64_t first;  // token within the shard
    };
    SourceOrder(int T, bool shuffle, uint64_t seed) : T_(T), shuffle_(shuffle), seed_(seed) {}
    void add(int shard, int64_t tokens);
    int64_t windows() const { return end_.empty() ? 0 : end_.back(); }
    Place place(int64_t sample);

private:
    int T_;
    bool shuffle_;
    uint64_t seed_;
    std::vector<int> shards_;
    std::vector<int64_t> end_;  // windows up to and including each shard
    int64_t epoch_ = -1;
    std::optional<Permutation> permutation_;
};

// Maps samples to tokens.
class SampleOrder {
public:
    // The parameters are those of LoaderOptions. Throws UsageError if a source has no window or its share is too small.
    SampleOrder(const std::vector<ShardInfo>& shards, int T, bool shuffle, uint64_t seed,
                const std::vector<double>& mixture, bool mixture_in_turn);
    int64_t windows() const;  // of all sources
    SourceOrder::Place place(int64_t sample);

private:
    static constexpr int64_t kBlock = 10000;
    // A sample of a block: its source, and which of the block's samples of that source it is.
    struct Draw {
        uint16_t source, index;
    };
    void set_quotas(const std::vector<double>& mixture);
    void draw_block(int64_t block);

    uint64_t seed_;
    bool in_turn_;
    std::vector<SourceOrder> sources_;
    std::vector<int64_t> quota_end_;  // cumulative samples of the sources in a block; empty: one source
    int64_t block_ = -1;
    std::vector<Draw> draws_;  // of that block
};

}  // namespace teon
