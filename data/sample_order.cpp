#include "data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace teon {

namespace {

// Parts of [0, ends.back()) end at `ends`. Returns the index of the part that contains `at`, and where it begins.
std::pair<size_t, int64_t> part_of(const std::vector<int64_t>& ends, int64_t at) {
    const auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
    return {i, i == 0 ? 0 : ends[i - 1]};
}

}  // namespace

void SourceOrder::add(int shard, int64_t tokens) {
    shards_.push_back(shard);
    end_.push_back(windows() + (tokens - 1) / T_);
}

SourceOrder::Place SourceOrder::place(int64_t sample) {
    const int64_t epoch = sample / windows();
    int64_t window = sample % windows();
    if (shuffle_) {
        if (epoch != epoch_) permutation_.emplace(windows(), seed_, epoch);
        epoch_ = epoch;
        window = (*permutation_)(window);
    }
    const auto [i, begin] = part_of(end_, window);
    return {shards_[i], (window - begin) * T_};
}

SampleOrder::SampleOrder(const std::vector<ShardInfo>& shards, int T, bool shuffle, uint64_t seed,
                         const std::vector<double>& mixture, bool mixture_in_turn)
    : seed_(seed), in_turn_(mixture_in_turn) {
    const size_t sources = std::max<size_t>(1, mixture.size());
    for (size_t s = 0; s < sources; ++s) sources_.emplace_back(T, shuffle, seed + s * 0x9e3779b97f4a7c15);
    int64_t longest = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
        CHECK(shards[i].source >= 0 && static_cast<size_t>(shards[i].source) < sources,
              "{}: of source {}, but there are {}", shards[i].path, shards[i].source, sources);
        sources_[shards[i].source].add(static_cast<int>(i), shards[i].tokens);
        longest = std::max(longest, shards[i].tokens);
    }
    for (size_t s = 0; s < sources; ++s)
        CHECK_USAGE(sources_[s].windows() >= 1,
                    "data: no window of {} tokens (sequence length + 1) in {} shards{}, the longest has {} tokens; "
                    "reduce --seq-len or add data",
                    int64_t{T} + 1, shards.size(), sources > 1 ? fmt::format(" of source {}", s + 1) : "", longest);
    if (!mixture.empty()) set_quotas(mixture);
}

int64_t SampleOrder::windows() const {
    int64_t n = 0;
    for (const SourceOrder& source : sources_) n += source.windows();
    return n;
}

SourceOrder::Place SampleOrder::place(int64_t sample) {
    if (quota_end_.empty()) return sources_[0].place(sample);
    const int64_t block = sample / kBlock;
    if (block != block_) draw_block(block);
    const Draw draw = draws_[static_cast<size_t>(sample % kBlock)];
    const int64_t quota = quota_end_[draw.source] - (draw.source == 0 ? 0 : quota_end_[draw.source - 1]);
    return sources_[draw.source].place(block * quota + draw.index);
}

void SampleOrder::draw_block(int64_t block) {
    const Permutation mixing(kBlock, ~seed_, static_cast<uint64_t>(block));
    std::vector<int64_t> earlier(sources_.size(), 0);  // samples of each source in the block so far
    draws_.clear();
    for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t at = mixing(i);
        const auto [s, begin] = part_of(quota_end_, at);
        const int64_t index = in_turn_ ? earlier[s]++ : at - begin;
        draws_.push_back({static_cast<uint16_t>(s), static_cast<uint16_t>(index)});
    }
    block_ = block;
}

// Divides a block: rounds every share down to an integer, then the shares with the largest remainders up.
void SampleOrder::set_quotas(const std::vector<double>& mixture) {
    std::vector<int64_t> quotas;
    std::vector<size_t> order(mixture.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (double share : mixture) quotas.push_back(static_cast<int64_t>(std::floor(share * kBlock)));
    auto remainder = [&](size_t s) { return mixture[s] * kBlock - static_cast<double>(quotas[s]); };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder(a) > remainder(b); });
    int64_t rest = kBlock - std::accumulate(quotas.begin(), quotas.end(), int64_t{0});
    CHECK_USAGE(rest >= 0 && rest <= std::ssize(quotas), "data: the shares of a mixture must sum to 1");
    for (size_t s : order)
        if (rest-- > 0) ++quotas[s];
    int64_t end = 0;
    for (size_t s = 0; s < quotas.size(); ++s) {
        CHECK_USAGE(quotas[s] > 0, "data: source {} has a share of {:.2g}; the smallest share is 0.0001", s + 1,
                    mixture[s]);
        quota_end_.push_back(end += quotas[s]);
    }
}

}  // namespace teon
