#include "optim/optimizer.h"

#include <algorithm>

#include "optim/diagnostics.h"
#include "optim/stacks.h"

namespace teon {

namespace {

// One launch of adamw_update and where its moments lie.
struct AdamwState {
    AdamwRun run;
    Buffer<float> m, v;
};

// The stacks of a group, their momentum (slice after slice, in the group's order) and what kernels know of each slice.
struct GroupState {
    StackGroup group;
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

GroupState make_group(const StackGroup& group, const OptimizerPlan& plan, const ParamTable& table,
                      const OptimizerOptions& options, const Stream& stream) {
    GroupState state{.group = group,
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
    zero(state.nonfinite.data(), state.nonfinite.size(), stream);
    return state;
}

}  // namespace

struct Optimizer::Impl {
    OptimizerOptions options;
    ParamTable table;
    OptimizerPlan plan;
    std::vector<AdamwState> adamw;
    std::vector<GroupState> groups;
    Buffer<std::byte> scratch;      // one chunk of unfoldings, then orthogonalize()'s own
    Buffer<float> partial, scales;  // of one chunk of slices

    template <typename W>
    void step(ParamStore& params, const StepControl* control, float lr_factor, Context& context);
    template <typename T, typename W>
    void step_chunk(const GroupState& state, int first, int count, ParamStore& params, W* work,
                    const StepControl* control, float lr, Context& context);
};

Optimizer::Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context)
    : impl_(std::make_unique<Impl>()) {
    Impl& self = *impl_;
    self.options = options;
    self.table = params.table();
    self.plan = plan_optimizer(self.table, options);
    for (AdamwRun& run : adamw_runs(self.table, self.plan, options)) {
        Buffer<float> m = zeros(run.size, context.stream), v = zeros(run.size, context.stream);
        self.adamw.push_back({std::move(run), std::move(m), std::move(v)});
    }
    int64_t partials = 0, slices = 0;
    for (const StackGroup& group : group_stacks(self.plan, options)) {
        self.groups.push_back(make_group(group, self.plan, self.table, options, context.stream));
        const SliceBatch chunk = self.groups.back().batch(0, group.chunk);
        partials = std::max(partials, int64_t{chunk.count} * momentum_parts(chunk));
        slices = std::max<int64_t>(slices, chunk.count);
    }
    self.scratch = Buffer<std::byte>(self.plan.scratch_bytes);
    self.partial = Buffer<float>(partials);
    self.scales = Buffer<float>(slices);
    context.stream.synchronize();  // uploads read host memory that ends here
}

Optimizer::~Optimizer() = default;

const OptimizerPlan& Optimizer::plan() const { return impl_->plan; }

// Momentum, unfolding, orthogonalization and update of stacks [first, first + count) of a group.
template <typename T, typename W>
void Optimizer::Impl::step_chunk(const GroupState& state, int first, int count, ParamStore& params, W* work,
                                 const StepControl* control, float lr, Context& context) {
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
    fold_update(params.master_all(), work, O, control, slices, layout, lr, stream);
}

template <typename W>
void Optimizer::Impl::step(ParamStore& params, const StepControl* control, float lr_factor, Context& context) {
    // In float the master weights are the work weights.
    W* work = std::is_same_v<W, float> ? nullptr : static_cast<W*>(params.work_all());
    const float adamw_lr = options.adamw_lr * lr_factor, lr = options.lr * lr_factor;
    for (const AdamwState& s : adamw) {
        const int64_t at = s.run.offset;
        // Weight decay goes with the learning rate before the role's factor.
        const float decay = s.run.decay ? options.weight_decay / s.run.lr_scale : 0.0f;
        adamw_update(params.master_all() + at, work ? work + at : nullptr, s.m.data(), s.v.data(),
                     params.grad_all() + at, control, s.run.size, adamw_lr * s.run.lr_scale, options.beta1,
                     options.beta2, options.eps, decay, context.stream);
    }
    for (const GroupState& state : groups) {
        const int stacks = static_cast<int>(state.group.stacks.size());
        for (int first = 0; first < stacks; first += state.group.chunk) {
            const int count = std::min(state.group.chunk, stacks - first);
            switch (state.group.method.dtype) {
                case DType::f32:
                    step_chunk<float>(state, first, count, params, work, control, lr, context);
                    break;
                case DType::bf16:
                    step_chunk<bf16>(state, first, count, params, work, control, lr, context);
                    break;
                case DType::f16:
                    step_chunk<f16>(state, first, count, params, work, control, lr, context);
                    break;
            }
        }
    }
}

void Optimizer::step(ParamStore& params, const StepControl* control, float lr_factor, Context& context) {
    CHECK(control != nullptr, "Optimizer::step: control is null");
    CHECK(params.table().size() == impl_->table.size(),
          "Optimizer::step: parameters of another table: {} elements, not {}", params.table().size(),
          impl_->table.size());
    if (params.dtype() == DType::f32) {
        impl_->step<float>(params, control, lr_factor, context);
    } else {
        impl_->step<bf16>(params, control, lr_factor, context);
    }
}

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
    std::vector<MomentumSlice> slices;
    for (const StateTensor& tensor : state()) {
        const ParamRow& row = impl_->table[tensor.param];
        if (tensor.name.ends_with(".momentum"))
            slices.push_back({row.role, row.layer, tensor.data, row.rows, row.cols});
    }
    check_finite(context);
    std::stable_sort(slices.begin(), slices.end(),
                     [](auto& a, auto& b) { return std::pair(a.role, a.layer) < std::pair(b.role, b.layer); });
    return measure_alignment(slices, impl_->options.method == Method::teon ? impl_->options.teon_mode : 1, context);
}

std::vector<StateTensor> Optimizer::state() {
    std::vector<StateTensor> tensors;
    auto add = [&](int row, const char* what, float* data) {
        const ParamRow& r = impl_->table[row];
        tensors.push_back({r.name + what, data, r.rows, r.cols, row});
    };
    for (const AdamwState& s : impl_->adamw) {
        for (int row : s.run.rows) {
            const int64_t at = impl_->table[row].offset - s.run.offset;
            add(row, ".m", s.m.data() + at);
            add(row, ".v", s.v.data() + at);
        }
    }
    for (const GroupState& state : impl_->groups) {
        const int64_t stride = momentum_stride(state.group.unfolding.m, state.group.unfolding.n);
        float* next = state.momentum.data();
        for (int s : state.group.stacks) {
            for (int row : impl_->plan.stacks[s].rows) add(row, ".momentum", next), next += stride;
        }
    }
    return tensors;
}

}  // namespace teon
