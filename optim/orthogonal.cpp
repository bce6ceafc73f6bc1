// Muon, Teon (Zhang et al., arXiv 2601.23261, algorithm 1) and NorMuon (Li et al., arXiv 2510.05491, algorithm 1):
// momentum, unfolding, orthogonalization and update. NorMuon scales the update by row.
#include <algorithm>

#include "base/integer.h"
#include "optim/methods.h"
#include "optim/placement.h"
#include "optim/stacks.h"
#include "runtime/vec.h"

namespace teon {

namespace {

enum State { kMomentum, kNeurons };  // order of state_of's result

std::vector<StateShape> state_of(const OptimizerOptions& options, const ParamRow& row) {
    std::vector<StateShape> state = {{"momentum", row.rows, row.cols}};
    if (has_neuron_norm(options)) state.push_back({"neurons", row.rows, 1});
    return state;
}

void plan_stack(Stack& stack, const OptimizerOptions& options) {
    const OrthoMethod method = method_of(options, NsForm::standard);
    const Unfolding u = unfolding_of(stack, method);
    stack.form = resolve_form(options.ns_form, method, u.rows(), u.cols());
    stack.flops = stack.heads * ortho_flops(method_of(options, stack.form), u.rows(), u.cols());
}

int64_t scratch_of(const OptimizerPlan& plan, const OptimizerOptions& options, const Placement* placement) {
    int64_t bytes = 0;
    for (const StackGroup& group : group_stacks(plan, options, placement))
        bytes = std::max(bytes, scratch_bytes(group));
    return bytes;
}

std::string describe(const Stack& stack, const OptimizerOptions& options) {
    const OrthoMethod method = method_of(options, stack.form);
    const std::string neurons = has_neuron_norm(options) ? ", neurons normalized" : "";
    if (method.ortho == Ortho::svd) return "svd" + neurons;
    return fmt::format("{} x{}{}, {}, {}{}", name_of(method.ortho), method.ns_steps, method.aol ? " AOL" : "",
                       name_of(stack.form), name_of(method.dtype), neurons);
}

// In each round every rank updates its stacks [first, first + count). Their weights are sent to the other ranks while
// the next round is computed.
struct Round {
    int first = 0, count = 0;
    std::vector<Part> updated;  // on all ranks
};

// This rank's stacks of a group and the kernels' description of each slice.
struct GroupState {
    StackGroup group;
    std::vector<Round> rounds;
    Buffer<Slice> slices;
    Buffer<int> nonfinite;  // per unfolding: 1 if its momentum was ever not finite
    bool aligned = false;
    SliceBatch batch(int first_stack, int count) const {
        const Unfolding& u = group.unfolding;
        return {slices.data() + group.slices(first_stack),
                group.slices(count),
                u.m,
                u.n,
                aligned,
                group.logical.m,
                group.logical.n};
    }
};

// Reduces a group to the stacks of `rank` and divides them into rounds, first layers first.
std::vector<Round> divide_group(StackGroup& group, const MatrixSetup& setup, int rank) {
    const Placement& placement = setup.ownership.placement();
    const std::vector<Stack>& all = setup.plan.stacks;
    if (placement.ranks > 1) {
        std::stable_sort(group.stacks.begin(), group.stacks.end(), [&](int a, int b) {
            return setup.table[all[a].params[0]].layer < setup.table[all[b].params[0]].layer;
        });
    }
    std::vector<std::vector<int>> stacks(placement.ranks);
    for (int s : group.stacks) stacks[placement.owner[s]].push_back(s);
    size_t largest_count = 0;
    for (const std::vector<int>& of_rank : stacks) largest_count = std::max(largest_count, of_rank.size());
    const size_t chunk = group.chunk;
    group.stacks = stacks[rank];

    std::vector<Round> rounds;
    for (size_t begin = 0; begin < largest_count; begin += chunk) {
        std::vector<int> params;
        auto end_of = [&](const std::vector<int>& of_rank) { return std::clamp(of_rank.size(), begin, begin + chunk); };
        for (const std::vector<int>& of_rank : stacks) {
            for (size_t i = begin; i < end_of(of_rank); ++i)
                params.insert(params.end(), all[of_rank[i]].params.begin(), all[of_rank[i]].params.end());
        }
        std::sort(params.begin(), params.end());
        const size_t count = end_of(group.stacks) - begin;
        rounds.push_back({static_cast<int>(begin), static_cast<int>(count), setup.ownership.parts(params)});
    }
    return rounds;
}

// Returns whether all slices of a group, on all ranks, start at full vectors. The vector width decides the order of
// sums, so it must not depend on which other slices a rank owns.
bool all_aligned(const StackGroup& group, const MatrixSetup& setup) {
    const int64_t size = int64_t{group.unfolding.m} * group.unfolding.n;
    if (group.heads > 1 && size % kVecWidth<float> != 0) return false;
    for (int s : group.stacks)
        for (int param : setup.plan.stacks[s].params)
            if (setup.table[param].offset % kVecWidth<float> != 0) return false;
    return true;
}

GroupState make_group(StackGroup group, const MatrixSetup& setup) {
    const Stream& stream = setup.context.stream;
    const bool aligned = all_aligned(group, setup);
    std::vector<Round> rounds = divide_group(group, setup, setup.rank);
    const int count = static_cast<int>(group.stacks.size());
    GroupState state{
        .group = std::move(group), .rounds = std::move(rounds), .slices = {}, .nonfinite = {}, .aligned = aligned};
    const int64_t size = int64_t{state.group.unfolding.m} * state.group.unfolding.n;
    std::vector<Slice> slices;
    for (int s : state.group.stacks) {
        const Stack& stack = setup.plan.stacks[s];
        for (int head = 0; head < stack.heads; ++head)
            for (int param : stack.params) {
                const ParamRow& row = setup.table[param];
                const ParamStore& p = setup.params;
                const int64_t begin = row.offset;
                const int64_t grad = p.sums().layout().at(begin);
                const int64_t master = p.masters().layout().at(begin);
                const int64_t work = p.weights().layout().at(begin);
                const std::vector<int64_t>& at = setup.at[param];
                const int64_t neurons = at.size() > kNeurons ? at[kNeurons] + int64_t{head} * stack.m : 0;
                const int64_t of_head = head * size;
                slices.push_back({grad + of_head, master + of_head, work + of_head, at[kMomentum] + of_head,
                                  rate_of(row, setup.options, update_scale(stack, setup.options)), neurons});
            }
    }
    state.slices = Buffer<Slice>(std::ssize(slices));
    upload(state.slices.data(), slices.data(), std::ssize(slices), stream);
    stream.synchronize();  // the upload reads `slices`
    state.nonfinite = Buffer<int>(int64_t{count} * state.group.heads);
    zero(state.nonfinite.data(), state.nonfinite.size(), stream);
    return state;
}

class OrthogonalUpdater : public MatrixUpdater {
public:
    explicit OrthogonalUpdater(const MatrixSetup& setup)
        : table_(setup.table), plan_(setup.plan), options_(setup.options), state_(setup.state) {
        int64_t partials = 0;
        int64_t slices = 0;
        int64_t neurons = 0;
        int64_t scratch = 0;
        for (StackGroup& group : group_stacks(setup.plan, options_, &setup.ownership.placement())) {
            groups_.push_back(make_group(std::move(group), setup));
            const StackGroup& of_rank = groups_.back().group;
            if (of_rank.stacks.empty()) continue;
            const SliceBatch chunk = groups_.back().batch(0, of_rank.chunk);
            partials = std::max(partials, int64_t{chunk.count} * momentum_parts(chunk));
            slices = std::max<int64_t>(slices, chunk.count);
            if (has_neuron_norm(options_)) neurons = std::max(neurons, neuron_scales_floats(chunk));
            scratch = std::max(scratch, scratch_bytes(of_rank));
        }
        scratch_ = Buffer<std::byte>(scratch);
        partial_ = Buffer<float>(partials);
        scales_ = Buffer<float>(slices);
        neurons_ = Buffer<float>(neurons);
    }

    void update(ParamStore& params, const StepControl* control,
                const std::function<void(const std::vector<Part>&)>& exchange, Context& context) override {
        for (const GroupState& state : groups_) {
            for (const Round& round : state.rounds) {
                visit_dtype(state.group.method.dtype, [&]<typename T>(T) {
                    update_chunk<T>(state, round.first, round.count, params, control, context);
                });
                exchange(round.updated);
            }
        }
    }

    bool update_waits() const override { return options_.ortho == Ortho::svd && !plan_.stacks.empty(); }

    void check_finite(Context& context) const override {
        for (const GroupState& state : groups_) {
            std::vector<int> nonfinite(static_cast<size_t>(state.nonfinite.size()));
            download(nonfinite.data(), state.nonfinite.data(), std::ssize(nonfinite), context.stream);
            context.stream.synchronize();
            for (size_t i = 0; i < nonfinite.size(); ++i) {
                const Stack& stack = plan_.stacks[state.group.stacks[i / state.group.heads]];
                CHECK(!nonfinite[i],
                      "the momentum of {} ({} stacked) is not finite: reduce the learning rate or resume from an "
                      "earlier checkpoint",
                      table_[stack.params[0]].name, stack.K());
            }
        }
    }

private:
    // Momentum, unfolding, orthogonalization and update of stacks [first, first + count) of a group.
    template <typename T>
    void update_chunk(const GroupState& state, int first, int count, ParamStore& params, const StepControl* control,
                      Context& context) {
        if (count == 0) return;
        const StackGroup& group = state.group;
        const SliceBatch slices = state.batch(first, count);
        const SliceLayout layout = group.unfolding.layout();
        const MatrixBatch batch = group.batch(count);
        const Stream& stream = context.stream;
        const float mu = options_.momentum;
        const float margin = static_cast<float>(group.method.margin(batch.side()));
        T* Z = reinterpret_cast<T*>(scratch_.data());
        std::byte* rest = scratch_.data() + aligned(batch.size() * sizeof(T));

        momentum_update(state_, partial_.data(), params.sums().data<float>(), control, slices, mu, options_.nesterov,
                        stream);
        slice_scales(scales_.data(), state.nonfinite.data() + int64_t{first} * group.heads, partial_.data(), control,
                     momentum_parts(slices), batch.count, layout.K, margin, options_.teon_normalize_slices, stream);
        unfold(Z, state_, options_.nesterov ? params.sums().data<float>() : nullptr, scales_.data(), control, slices,
               layout, mu, stream);
        const T* O = static_cast<const T*>(orthogonalize(Z, rest, batch, group.method, context));
        const float* rows = nullptr;
        if (has_neuron_norm(options_)) {
            neuron_scales(neurons_.data(), state_, O, control, slices, layout, options_.neuron_beta2,
                          options_.update_rms > 0, stream);
            rows = neurons_.data();
        }
        fold_update(params.masters().data<float>(), params.work_copy(), O, control, slices, layout, stream, rows);
    }

    const ParamTable& table_;
    const OptimizerPlan& plan_;
    const OptimizerOptions& options_;
    float* state_;
    std::vector<GroupState> groups_;
    Buffer<std::byte> scratch_;                 // one chunk of unfoldings, then orthogonalize()'s scratch
    Buffer<float> partial_, scales_, neurons_;  // of one chunk of slices
};

}  // namespace

const MatrixRule kOrthogonal{
    "orthogonalizer", "orthogonalization", state_of, plan_stack, scratch_of, describe, make_updater<OrthogonalUpdater>};

}  // namespace teon
