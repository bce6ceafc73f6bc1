#include "optim/stack_updater.h"

#include <algorithm>

#include "runtime/vec.h"

namespace teon {

StackUpdater::StackUpdater(const ParamStore& params, const ParamTable& table, const OptimizerPlan& plan,
                           const Placement& placement, const OptimizerOptions& options, int rank, const Stream& stream)
    : table_(table), plan_(plan), options_(options), state_at_(static_cast<size_t>(table.count())) {
    int64_t floats = 0;
    for (size_t s = 0; s < plan.stacks.size(); ++s) {
        if (placement.owner[s] != rank) continue;
        for (int param : plan.stacks[s].params)
            for (const StateShape& shape : matrix_state(options, table[param])) {
                state_at_[static_cast<size_t>(param)].push_back(floats);
                floats += shape.stride();
            }
    }
    state_ = OffloadableBuffer<float>(floats, params.offloads());
    zero(state_.data(), floats, stream);

    int64_t partials = 0;
    int64_t slices = 0;
    int64_t rows = 0;
    int64_t neurons = 0;
    int64_t scratch = 0;
    for (StackGroup& stacks : group_stacks(plan.stacks, options, placement.ranks, placement.owner)) {
        groups_.push_back(make_group(std::move(stacks), params, placement, rank, stream));
        const StackGroup& own = groups_.back().stacks;
        if (own.stacks.empty()) continue;
        const SliceBatch chunk = groups_.back().batch(0, own.chunk);
        partials = std::max(partials, int64_t{chunk.count} * momentum_parts(chunk));
        slices = std::max<int64_t>(slices, chunk.count);
        if (options.equalize_rows) rows = std::max(rows, int64_t{chunk.count} * chunk.m);
        if (has_neuron_norm(options)) neurons = std::max(neurons, neuron_scales_floats(chunk));
        scratch = std::max(scratch, own.scratch_bytes());
    }
    scratch_ = Buffer<std::byte>(scratch);
    partial_ = Buffer<float>(partials);
    scales_ = Buffer<float>(slices);
    rows_ = Buffer<float>(rows);
    neurons_ = Buffer<float>(neurons);
}

SliceBatch StackUpdater::Group::batch(int first_stack, int count) const {
    const Unfolding& u = stacks.unfolding;
    return {slices.data() + stacks.slices(first_stack),
            stacks.slices(count),
            u.m,
            u.n,
            aligned,
            stacks.logical.m,
            stacks.logical.n,
            by_columns};
}

StackUpdater::Group StackUpdater::make_group(StackGroup stacks, const ParamStore& params, const Placement& placement,
                                             int rank, const Stream& stream) const {
    const bool aligned = all_aligned(stacks);
    const bool by_columns = has_column_neurons(options_, stacks.logical.m, stacks.logical.n);
    std::vector<std::vector<Part>> updated = take_stacks_of(rank, stacks, placement);
    const std::vector<Slice> slices = slices_of(stacks, params);
    Group group{.stacks = std::move(stacks),
                .updated = std::move(updated),
                .slices = Buffer<Slice>(std::ssize(slices)),
                .nonfinite = {},
                .aligned = aligned,
                .by_columns = by_columns};
    upload(group.slices.data(), slices.data(), std::ssize(slices), stream);
    stream.synchronize();  // the upload reads `slices`
    group.nonfinite = Buffer<int>(std::ssize(group.stacks.stacks) * group.stacks.heads);
    zero(group.nonfinite.data(), group.nonfinite.size(), stream);
    return group;
}

// Returns whether all slices of a group, on all ranks, start at full vectors. The vector width decides the order of
// sums, so it must not depend on which other slices a rank owns.
bool StackUpdater::all_aligned(const StackGroup& group) const {
    const int64_t size = int64_t{group.unfolding.m} * group.unfolding.n;
    if (group.heads > 1 && size % kVecWidth<float> != 0) return false;
    for (int s : group.stacks)
        for (int param : plan_.stacks[s].params)
            if (table_[param].offset % kVecWidth<float> != 0) return false;
    return true;
}

// Reduces a group to the stacks of `rank`, with several ranks first layers first, and returns Group::updated.
std::vector<std::vector<Part>> StackUpdater::take_stacks_of(int rank, StackGroup& group,
                                                            const Placement& placement) const {
    const std::vector<Stack>& all = plan_.stacks;
    if (placement.ranks > 1)
        std::stable_sort(group.stacks.begin(), group.stacks.end(),
                         [&](int a, int b) { return table_[all[a].params[0]].layer < table_[all[b].params[0]].layer; });
    std::vector<std::vector<int>> rounds;           // the parameters of each
    std::vector<size_t> assigned(placement.ranks);  // stacks of each rank
    for (int s : group.stacks) {
        const size_t round = assigned[placement.owner[s]]++ / static_cast<size_t>(group.chunk);
        if (round == rounds.size()) rounds.emplace_back();
        rounds[round].insert(rounds[round].end(), all[s].params.begin(), all[s].params.end());
    }
    std::erase_if(group.stacks, [&](int s) { return placement.owner[s] != rank; });
    std::vector<std::vector<Part>> updated;
    for (std::vector<int>& params : rounds) {
        std::sort(params.begin(), params.end());
        updated.push_back(placement.parts_of(params));
    }
    return updated;
}

std::vector<Slice> StackUpdater::slices_of(const StackGroup& group, const ParamStore& params) const {
    const int64_t size = int64_t{group.unfolding.m} * group.unfolding.n;
    std::vector<Slice> slices;
    for (int s : group.stacks) {
        const Stack& stack = plan_.stacks[s];
        const double decay_scale = options_.decay_at == DecayAt::adjusted ? rate_scale(stack, options_) : 1.0;
        const int neurons = has_column_neurons(options_, stack.logical_m, stack.logical_n) ? stack.n : stack.m;
        const float weight_decay = static_cast<float>(options_.weight_decay * decay_scale);
        for (int head = 0; head < stack.heads; ++head)
            for (int param : stack.params) {
                const ParamRow& row = table_[param];
                const std::vector<int64_t>& at =
                    state_at_[static_cast<size_t>(param)];  // as matrix_state() orders them
                const int64_t of_head = head * size;
                slices.push_back({.grad = params.sums().layout().at(row.offset) + of_head,
                                  .master = params.masters().layout().at(row.offset) + of_head,
                                  .work = params.weights().layout().at(row.offset) + of_head,
                                  .state = at[0] + of_head,
                                  .rate = {.lr = options_.lr,
                                           .lr_scale = static_cast<float>(update_scale(stack, options_)),
                                           .weight_decay = row.decay ? weight_decay : 0.0f,
                                           .cautious = options_.cautious_weight_decay},
                                  .neurons = at.size() > 1 ? at[1] + int64_t{head} * neurons : 0});
            }
    }
    return slices;
}

void StackUpdater::update(ParamStore& params, const StepControl* control,
                          const std::function<void(const std::vector<Part>&)>& exchange, Context& context) {
    for (const Group& group : groups_) {
        int first = 0;
        for (const std::vector<Part>& updated : group.updated) {
            const int count = std::clamp(static_cast<int>(group.stacks.stacks.size()) - first, 0, group.stacks.chunk);
            visit_dtype(group.stacks.method.dtype, [&]<typename T>(T) {
                if (count > 0) update_chunk<T>(group, first, count, params, control, context);
            });
            exchange(updated);
            first += count;
        }
    }
}

void StackUpdater::check_finite(const Stream& stream) const {
    for (const Group& group : groups_) {
        std::vector<int> nonfinite(static_cast<size_t>(group.nonfinite.size()));
        download(nonfinite.data(), group.nonfinite.data(), std::ssize(nonfinite), stream);
        stream.synchronize();
        for (size_t i = 0; i < nonfinite.size(); ++i) {
            const Stack& stack = plan_.stacks[group.stacks.stacks[i / group.stacks.heads]];
            CHECK(!nonfinite[i],
                  "the momentum of {} ({} stacked) is not finite: reduce the learning rate or resume from an earlier "
                  "checkpoint",
                  table_[stack.params[0]].name, stack.K());
        }
    }
}

// Momentum, unfolding, orthogonalization and update of stacks [first, first + count) of a group.
template <typename T>
void StackUpdater::update_chunk(const Group& group, int first, int count, ParamStore& params,
                                const StepControl* control, Context& context) {
    const StackGroup& stacks = group.stacks;
    const SliceBatch slices = group.batch(first, count);
    const SliceLayout layout = stacks.unfolding.layout();
    const MatrixBatch batch = stacks.batch(count);
    const Stream& stream = context.stream;
    const MomentumRule rule{options_.momentum, options_.nesterov, options_.nesterov_form, options_.momentum_start,
                            options_.momentum_warmup};
    const float margin = static_cast<float>(stacks.method.margin());
    T* Z = reinterpret_cast<T*>(scratch_.data());
    std::byte* rest = scratch_.data() + aligned(batch.size() * sizeof(T));

    momentum_update(state_.data(), partial_.data(), params.sums().data<float>(), control, slices, rule, stream);
    slice_scales(scales_.data(), group.nonfinite.data() + int64_t{first} * stacks.heads, partial_.data(), control,
                 momentum_parts(slices), batch.count, layout.K, margin, options_.teon_normalize_slices, stream);
    const float* grad = options_.nesterov ? params.sums().data<float>() : nullptr;
    const float* row_factors = nullptr;
    if (options_.equalize_rows) {
        equal_rows(rows_.data(), state_.data(), grad, partial_.data(), control, slices, rule, stream);
        row_factors = rows_.data();
    }
    unfold(Z, state_.data(), grad, scales_.data(), control, slices, layout, rule, stream, row_factors);
    const T* O = static_cast<const T*>(orthogonalize(Z, rest, batch, stacks.method, context));
    const float* neuron_factors = nullptr;
    if (has_neuron_norm(options_)) {
        neuron_scales(neurons_.data(), state_.data(), O, control, slices, layout,
                      {options_.neuron_beta2, options_.update_rms > 0, options_.renormalize}, stream);
        neuron_factors = neurons_.data();
    }
    fold_update(params.masters().data<float>(), params.work_copy(), O, control, slices, layout, stream, neuron_factors);
}

}  // namespace teon
