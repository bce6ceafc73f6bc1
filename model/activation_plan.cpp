#include "model/activation_plan.h"

#include <algorithm>
#include <climits>

namespace teon {

static constexpr const char* kMaxima = "absolute maxima for FP8";

ActivationPlan::ActivationPlan(const DecoderRun& run, Purpose purpose, int blocks)
    : run_(run),
      purpose_(purpose),
      policy_(run.recompute.others),
      device_blocks_(blocks - run.offloaded_blocks),
      offloaded_(static_cast<size_t>(run.offloaded_blocks)) {
    CHECK(run.offloaded_blocks == 0 || device_blocks_ >= 2, "{} of {} blocks cannot be offloaded", run.offloaded_blocks,
          blocks);
    CHECK(run.recompute.others != Recompute::automatic && run.attention != AttentionKind::automatic,
          "recompute policy and attention must be resolved before memory is laid out");
}

bool ActivationPlan::keeps(Drop drop) const {
    if (!trains()) return false;
    switch (drop) {
        case Drop::never:
            return true;
        case Drop::under_block:
            return policy_ != Recompute::block;
        case Drop::under_cheap:
            return policy_ == Recompute::none;
    }
    return true;
}

Tensor ActivationPlan::add(std::string_view name, int64_t bytes, int copies, Lifetime lifetime) {
    bytes = aligned(bytes);
    const auto row = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const ActivationRow& r) { return r.name == name && r.lifetime == lifetime; });
    const int index = static_cast<int>(row - rows_.begin());
    if (row == rows_.end()) {
        rows_.push_back({.name = std::string(name), .bytes = bytes, .lifetime = lifetime, .block = block_});
        return {index, 0};
    }
    row->bytes = std::max(row->bytes, bytes);
    const int copy = row->tensors++ % copies;
    row->copies = std::max(row->copies, copy + 1);
    row->block = block_;
    return {index, copy};
}

// A block's output is the input of the next block, which saves it with its own tensors. Inputs have one copy more,
// because a block reads its input while it writes the next block's.
Tensor ActivationPlan::save(const std::string& name, int64_t bytes, Drop drop) {
    for (const ActivationRow& row : rows_)
        CHECK(block_ < 0 || row.name != name || row.block != block_, "block {} declares '{}' twice", block_, name);
    if (!keeps(drop)) return add(name, bytes, 1, Lifetime::scratch);
    const int ahead = drop == Drop::never ? 1 : 0;
    const Tensor s = add(name, bytes, device_blocks_ + ahead, Lifetime::saved);
    if (const auto block = static_cast<size_t>(block_ + ahead); block < offloaded_.size())
        offloaded_[block].push_back(s);
    return s;
}

Tensor ActivationPlan::saved(const std::string& name, int64_t width, Drop drop) {
    return save(name, N() * width * size_of(run_.dtype), drop);
}
Tensor ActivationPlan::saved_floats(const std::string& name, int64_t width, Drop drop) {
    return save(name, N() * width * size_of(DType::f32), drop);
}
Edge ActivationPlan::edge(const std::string& name, int64_t width, Drop drop, Shared gradient_buffer) {
    return {.x = saved(name, width, drop), .dx = gradient(gradient_buffer, width)};
}
Tensor ActivationPlan::shared(Shared buffer, int64_t width) {
    return shared_bytes(buffer, N() * width * size_of(run_.dtype));
}
Tensor ActivationPlan::shared_bytes(Shared buffer, int64_t bytes) {
    return add(name_of(buffer), bytes, 1, Lifetime::scratch);
}
Tensor ActivationPlan::cache(const std::string& name, int64_t width) {
    return trains() ? Tensor{} : add(name, N() * width * size_of(run_.dtype), INT_MAX, Lifetime::scratch);
}
Tensor ActivationPlan::gradient(Shared buffer, int64_t width) { return trains() ? shared(buffer, width) : Tensor{}; }
Tensor ActivationPlan::gradient_bytes(Shared buffer, int64_t bytes) {
    return trains() ? shared_bytes(buffer, bytes) : Tensor{};
}

int64_t ActivationPlan::offloaded_bytes() const {
    int64_t sum = 0;
    for (const std::vector<Tensor>& block : offloaded_)
        for (const Tensor s : block) sum += rows_[static_cast<size_t>(s.row)].bytes;
    return sum;
}

Tensor ActivationPlan::own_bytes(const std::string& name, int64_t bytes) {
    return add(name, bytes, INT_MAX, Lifetime::saved);
}
Tensor ActivationPlan::maximum() {
    return run_.matmul_dtype == MatmulDType::same ? Tensor{} : own_bytes(kMaxima, size_of(DType::f32));
}
Tensor ActivationPlan::maxima() const {
    const auto row = std::find_if(rows_.begin(), rows_.end(), [](const ActivationRow& r) { return r.name == kMaxima; });
    return {row == rows_.end() ? -1 : static_cast<int>(row - rows_.begin()), 0};
}

int64_t ActivationPlan::shared_bytes(Shared buffer) const {
    int64_t bytes = 0;
    for (const ActivationRow& row : rows_)
        if (row.lifetime == Lifetime::scratch && row.name == name_of(buffer)) bytes += row.bytes;
    return bytes;
}

int64_t ActivationPlan::saved_bytes() const {
    int64_t sum = 0;
    for (const ActivationRow& row : rows_) sum += row.lifetime == Lifetime::saved ? row.total() : 0;
    return sum;
}

int64_t ActivationPlan::total_bytes() const {
    int64_t sum = 0;
    for (const ActivationRow& row : rows_) sum += row.total();
    return sum;
}

void ActivationPlan::set_offsets() {
    int64_t offset = 0;
    for (ActivationRow& row : rows_) {
        row.offset = offset;
        offset += row.total();
    }
}

}  // namespace teon
