#include "optim/optimizer.h"

#include <algorithm>

#include "optim/diagnostics.h"
#include "optim/placement.h"
#include "optim/stacks.h"
#include "runtime/integer.h"

namespace teon {

namespace {

// One launch of adamw_update, on what this rank owns of a run, and where the moments of that lie.
struct AdamwState {
    AdamwRun run;
    int64_t offset, size;
    Buffer<float> m, v;
};

// In each round every rank updates some of its stacks, [first, first + count) of them. Their weights then travel to the
// other ranks while the next round is computed.
struct Round {
    int first = 0, count = 0;
    std::vector<Part> updated;  // of all ranks
};

// This rank's stacks of a group, their momentum (slice after slice, in the group's order) and what kernels know of each
// slice.
struct GroupState {
    StackGroup group;
    std::vector<Round> rounds;
    Buffer<float> momentum;
    Buffer<Slice> slices;
    Buffer<int> nonfinite;  // per stack: 1 once its momentum was not finite
    bool aligned = true;
    SliceBatch batch(int first_stack, int count) const {
        const Unfolding& u = group.unfolding;
        return {slices.data() + first_stack * u.K, count * u.K, u.m, u.n, aligned};
    }
};

Buffer<float> zeros(int64_t n, const Stream& stream) {
    Buffer<float> buffer(n);
    zero(buffer.data(), n, stream);
    return buffer;
}

// Cuts a group of all stacks to those of `rank`, and into rounds. Several ranks take a few rounds, so that there is
// something to compute while weights travel, and the first layers come first.
std::vector<Round> share_group(StackGroup& group, const OptimizerPlan& plan, const ParamTable& table,
                               const Ownership& ownership, int rank) {
    const Placement& placement = ownership.placement();
    if (placement.ranks > 1) {
        std::stable_sort(group.stacks.begin(), group.stacks.end(), [&](int a, int b) {
            return table[plan.stacks[a].rows[0]].layer < table[plan.stacks[b].rows[0]].layer;
        });
    }
    std::vector<std::vector<int>> stacks(placement.ranks);
    for (int s : group.stacks) stacks[placement.owner[s]].push_back(s);
    size_t most = 0;
    for (auto& own : stacks) most = std::max(most, own.size());
    constexpr size_t kRounds = 4;
    if (placement.ranks > 1) group.chunk = std::min(group.chunk, static_cast<int>(ceil_div(most, kRounds)));
    const size_t chunk = group.chunk;
    group.stacks = stacks[rank];

    std::vector<Round> rounds;
    for (size_t begin = 0; begin < most; begin += chunk) {
        std::vector<int> rows;
        auto end_of = [&](auto& own) { return std::clamp(own.size(), begin, begin + chunk); };
        for (auto& own : stacks) {
            for (size_t i = begin; i < end_of(own); ++i)
                rows.insert(rows.end(), plan.stacks[own[i]].rows.begin(), plan.stacks[own[i]].rows.end());
        }
        std::sort(rows.begin(), rows.end());
        const size_t count = end_of(group.stacks) - begin;
        rounds.push_back({static_cast<int>(begin), static_cast<int>(count), ownership.parts(rows)});
    }
    return rounds;
}

GroupState make_group(const StackGroup& group, std::vector<Round> rounds, const OptimizerPlan& plan,
                      const ParamTable& table, const OptimizerOptions& options, const Stream& stream) {
    GroupState state{.group = group,
                     .rounds = std::move(rounds),
                     .momentum = {},
                     .slices = Buffer<Slice>(group.slices()),
                     .nonfinite = Buffer<int>(static_cast<int64_t>(group.stacks.size()))};
    const int64_t stride = momentum_stride(group.unfolding.m, group.unfolding.n);
    std::vector<Slice> slices;
    for (int s : group.stacks) {
        const Stack& stack = plan.stacks[s];
        const float step = static_cast<float>(step_factor(table, stack, options));
        for (int row : stack.rows) {
            const float decay = table[row].decay ? options.weight_decay : 0.0f;
            slices.push_back({table[row].offset, static_cast<int64_t>(slices.size()) * stride, step, decay});
            state.aligned = state.aligned && table[row].offset % kVecWidth<float> == 0;
        }
    }
    state.momentum = zeros(static_cast<int64_t>(slices.size()) * stride, stream);
    upload(state.slices.data(), slices.data(), std::ssize(slices), stream);
    stream.synchronize();  // slices end here
    zero(state.nonfinite.data(), state.nonfinite.size(), stream);
    return state;
}

}  // namespace

struct Optimizer::Impl {
    OptimizerOptions options;
    ParamTable table;
    OptimizerPlan plan;
    Ownership ownership;
    std::vector<Part> adamw_parts;  // of all ranks, in the flat buffers
    std::vector<AdamwState> adamw;
    std::vector<GroupState> groups;
    Buffer<std::byte> scratch;      // one chunk of unfoldings, then orthogonalize()'s own
    Buffer<float> partial, scales;  // of one chunk of slices

    template <typename W>
    void step(ParamStore& params, const StepControl* control, Context& context);
    template <typename T, typename W>
    void step_chunk(const GroupState& state, int first, int count, ParamStore& params, W* work,
                    const StepControl* control, Context& context);

    Impl(const ParamTable& t, const OptimizerOptions& o, int ranks)
        : options(o), table(t), plan(plan_optimizer(t, o)), ownership(t, plan, o, ranks) {}
};

Optimizer::Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(params.table(), options, context.comm->size())) {
    Impl& self = *impl_;
    const int rank = context.comm->rank();
    const Part own = self.ownership.placement().adamw[rank];
    self.adamw_parts = self.ownership.parts(self.plan.adamw_rows);
    int64_t begin = 0;  // of the run among the elements of all runs
    for (AdamwRun& run : adamw_runs(self.table, self.plan, options)) {
        const int64_t from = std::clamp(own.offset - begin, int64_t{0}, run.size);
        const int64_t to = std::clamp(own.offset + own.size - begin, from, run.size);
        begin += run.size;
        const int64_t offset = run.offset + from, size = to - from;
        Buffer<float> m = zeros(size, context.stream), v = zeros(size, context.stream);
        self.adamw.push_back({std::move(run), offset, size, std::move(m), std::move(v)});
    }
    int64_t partials = 0, slices = 0, scratch = 0;
    for (StackGroup& group : group_stacks(self.plan, options)) {
        std::vector<Round> rounds = share_group(group, self.plan, self.table, self.ownership, rank);
        self.groups.push_back(make_group(group, std::move(rounds), self.plan, self.table, options, context.stream));
        if (group.stacks.empty()) continue;
        const SliceBatch chunk = self.groups.back().batch(0, group.chunk);
        partials = std::max(partials, int64_t{chunk.count} * momentum_parts(chunk));
        slices = std::max<int64_t>(slices, chunk.count);
        scratch = std::max(scratch, scratch_bytes(group));
    }
    self.scratch = Buffer<std::byte>(scratch);
    self.partial = Buffer<float>(partials);
    self.scales = Buffer<float>(slices);
    context.stream.synchronize();
}

Optimizer::~Optimizer() = default;

const OptimizerPlan& Optimizer::plan() const { return impl_->plan; }
const Ownership& Optimizer::ownership() const { return impl_->ownership; }

// Momentum, unfolding, orthogonalization and update of stacks [first, first + count) of a group.
template <typename T, typename W>
void Optimizer::Impl::step_chunk(const GroupState& state, int first, int count, ParamStore& params, W* work,
                                 const StepControl* control, Context& context) {
    if (count == 0) return;
    const StackGroup& group = state.group;
    const SliceBatch slices = state.batch(first, count);
    const SliceLayout layout = group.unfolding.layout();
    const MatrixBatch batch = group.batch(count);
    const Stream& stream = context.stream;
    const float mu = options.momentum, margin = static_cast<float>(group.method.margin());
    T* Z = reinterpret_cast<T*>(scratch.data());
    std::byte* rest = scratch.data() + Arena::aligned(batch.size() * sizeof(T));

    momentum_update(state.momentum.data(), partial.data(), params.grad_all(), control, slices, mu, options.nesterov,
                    stream);
    slice_scales(scales.data(), state.nonfinite.data() + first, partial.data(), control, momentum_parts(slices), count,
                 layout.K, margin, options.teon_normalize_slices, stream);
    unfold(Z, state.momentum.data(), options.nesterov ? params.grad_all() : nullptr, scales.data(), control, slices,
           layout, mu, stream);
    const T* O = static_cast<const T*>(orthogonalize(Z, rest, batch, group.method, context));
    fold_update(params.master_all(), work, O, control, slices, layout, options.lr, stream);
}

template <typename W>
void Optimizer::Impl::step(ParamStore& params, const StepControl* control, Context& context) {
    // In float the master weights are the work weights.
    W* work = std::is_same_v<W, float> ? nullptr : static_cast<W*>(params.work_all());
    auto exchange = [&](const std::vector<Part>& updated) {
        if (context.comm->size() > 1)
            context.comm->broadcast(params.work_all(), params.dtype(), updated, context.stream);
    };
    for (const AdamwState& s : adamw) {
        if (s.size == 0) continue;
        const int64_t at = s.offset;
        // Weight decay goes with the learning rate before the role's factor.
        const float decay =
            s.run.decay ? options.adamw_weight_decay.value_or(options.weight_decay) / s.run.lr_scale : 0;
        adamw_update(params.master_all() + at, work ? work + at : nullptr, s.m.data(), s.v.data(),
                     params.grad_all() + at, control, s.size, options.adamw_lr, s.run.lr_scale, options.beta1,
                     options.beta2, options.eps, decay, context.stream);
    }
    exchange(adamw_parts);
    for (const GroupState& state : groups) {
        for (const Round& round : state.rounds) {
            switch (state.group.method.dtype) {
                case DType::f32:
                    step_chunk<float>(state, round.first, round.count, params, work, control, context);
                    break;
                case DType::bf16:
                    step_chunk<bf16>(state, round.first, round.count, params, work, control, context);
                    break;
                case DType::f16:
                    step_chunk<f16>(state, round.first, round.count, params, work, control, context);
                    break;
            }
            exchange(round.updated);
        }
    }
    context.comm->join(context.stream);
}

void Optimizer::step(ParamStore& params, const StepControl* control, Context& context) {
    CHECK(control != nullptr, "Optimizer::step: control is null");
    CHECK(params.table().size() == impl_->table.size(),
          "Optimizer::step: parameters of another table: {} elements, not {}", params.table().size(),
          impl_->table.size());
    if (params.dtype() == DType::f32) {
        impl_->step<float>(params, control, context);
    } else {
        impl_->step<bf16>(params, control, context);
    }
}

bool Optimizer::step_waits() const { return impl_->options.ortho == Ortho::svd && !impl_->plan.stacks.empty(); }

void Optimizer::check_finite(Context& context) {
    for (const GroupState& state : impl_->groups) {
        std::vector<int> nonfinite(state.group.stacks.size());
        download(nonfinite.data(), state.nonfinite.data(), std::ssize(nonfinite), context.stream);
        context.stream.synchronize();
        for (size_t i = 0; i < nonfinite.size(); ++i) {
            const Stack& stack = impl_->plan.stacks[state.group.stacks[i]];
            CHECK(!nonfinite[i],
                  "the momentum of {} ({} stacked) is not finite: lower the learning rate or resume from an "
                  "earlier checkpoint",
                  impl_->table[stack.rows[0]].name, stack.K());
        }
    }
}

std::vector<Alignment> Optimizer::diagnose(Context& context) {
    check_finite(context);
    Buffer<float> flat;  // of all ranks' momenta
    if (context.comm->size() > 1) {
        flat = Buffer<float>(impl_->table.size());
        collect_state(0, flat.data(), context);
    }
    std::vector<MomentumSlice> slices;
    for (const StateTensor& tensor : state()) {
        const ParamRow& row = impl_->table[tensor.param];
        float* data = flat.size() > 0 ? flat.data() + row.offset : tensor.data;
        if (tensor.name.ends_with(".momentum")) slices.push_back({row.role, row.layer, data, row.rows, row.cols});
    }
    std::stable_sort(slices.begin(), slices.end(),
                     [](auto& a, auto& b) { return std::pair(a.role, a.layer) < std::pair(b.role, b.layer); });
    return measure_alignment(slices, impl_->options.method == Method::teon ? impl_->options.teon_mode : 1, context);
}

std::vector<StateTensor> Optimizer::state() {
    const ParamTable& table = impl_->table;
    std::vector<StateTensor> tensors;
    auto add = [&](int row, const char* what, int slot, float* data, int64_t begin, int64_t end) {
        const ParamRow& r = table[row];
        tensors.push_back({r.name + what, data, r.rows, r.cols, row, slot, begin, end});
    };
    for (const AdamwState& s : impl_->adamw) {
        for (int row : s.run.rows) {
            const int64_t at = table[row].offset, size = table[row].size();
            const int64_t begin = std::clamp(s.offset - at, int64_t{0}, size);
            const int64_t end = std::clamp(s.offset + s.size - at, begin, size);
            const int64_t from = begin < end ? at + begin - s.offset : 0;
            add(row, ".m", 0, s.m.data() + from, begin, end);
            add(row, ".v", 1, s.v.data() + from, begin, end);
        }
    }
    std::vector<float*> momentum(table.count(), nullptr);
    for (const GroupState& state : impl_->groups) {
        const int64_t stride = momentum_stride(state.group.unfolding.m, state.group.unfolding.n);
        float* next = state.momentum.data();
        for (int s : state.group.stacks) {
            for (int row : impl_->plan.stacks[s].rows) momentum[row] = next, next += stride;
        }
    }
    for (const Stack& stack : impl_->plan.stacks) {
        for (int row : stack.rows) add(row, ".momentum", 0, momentum[row], 0, momentum[row] ? table[row].size() : 0);
    }
    return tensors;
}

void Optimizer::collect_state(int slot, float* flat, Context& context) {
    std::vector<int> rows;
    for (const StateTensor& tensor : state()) {
        if (tensor.slot != slot) continue;
        rows.push_back(tensor.param);
        copy(flat + impl_->table[tensor.param].offset + tensor.begin, tensor.data, tensor.end - tensor.begin,
             context.stream);
    }
    std::sort(rows.begin(), rows.end());
    context.comm->broadcast(flat, DType::f32, impl_->ownership.parts(rows), context.stream);
    context.comm->join(context.stream);
}

void Optimizer::collect_masters(ParamStore& params, Context& context) {
    context.comm->broadcast(params.master_all(), DType::f32, impl_->ownership.all(), context.stream);
    context.comm->join(context.stream);
}

}  // namespace teon
