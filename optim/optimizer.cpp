#include "optim/optimizer.h"

#include <algorithm>

#include "optim/methods.h"
#include "optim/placement.h"
#include "optim/stacks.h"

namespace teon {

namespace {

// The part [offset, offset + size) of a run that this rank owns, and its state.
struct RunState {
    ElementRun run;
    int64_t offset, size;
    std::vector<OffloadableBuffer<float>> state;
};

OffloadableBuffer<float> zeros(int64_t n, bool offload, const Stream& stream) {
    OffloadableBuffer<float> buffer(n, offload);
    zero(buffer.data(), n, stream);
    return buffer;
}

}  // namespace

struct Optimizer::Impl {
    OptimizerOptions options;
    ParamTable table;
    const MethodInfo& info;
    OptimizerPlan plan;
    bool divided;                     // among ranks; else every rank updates everything
    Ownership reduction;              // owners of the gradients' sums
    Ownership ownership;              // owners of state and updates
    int rank;                         // of this process in `ownership`
    std::vector<Part> element_parts;  // on all ranks
    std::vector<RunState> runs;
    OffloadableBuffer<float> matrix_state;              // state of this rank's stacks
    std::vector<std::vector<int64_t>> matrix_state_at;  // MatrixSetup::at
    std::unique_ptr<MatrixUpdater> matrices;

    Impl(const ParamStore& params, const OptimizerPlan& p, const Placement& placement, const OptimizerOptions& o,
         Context& context)
        : options(o),
          table(params.table()),
          info(info_of(o.method)),
          plan(p),
          divided(placement.ranks > 1 && params.sharding() != Sharding::none),
          reduction(table, plan, placement, o),
          ownership(table, plan, divided ? placement : place(table, plan, o, 1), o),
          rank(divided ? context.comm->rank() : 0),
          element_parts(ownership.parts(plan.element_params)),
          matrix_state_at(table.count()) {
        make_runs(ownership.placement().elements[rank], params.offloads(), context.stream);
        if (!info.matrices) return;
        int64_t floats = 0;
        for (size_t s = 0; s < plan.stacks.size(); ++s) {
            if (ownership.placement().owner[s] != rank) continue;
            for (int param : plan.stacks[s].params)
                for (const StateShape& shape : state_of(param)) {
                    matrix_state_at[param].push_back(floats);
                    floats += shape.stride();
                }
        }
        matrix_state = zeros(floats, params.offloads(), context.stream);
        matrices = info.matrices->make(
            {table, plan, options, ownership, params, rank, matrix_state.data(), matrix_state_at, context});
    }

    // elements: this rank's, numbered over all runs.
    void make_runs(const Part& elements, bool offload, const Stream& stream) {
        for (ElementRun& run : element_runs(table, plan, options)) {
            const int64_t from = std::clamp(elements.offset - run.begin, int64_t{0}, run.size);
            const int64_t to = std::clamp(elements.offset + elements.size - run.begin, from, run.size);
            const int64_t offset = run.offset + from;
            const int64_t size = to - from;
            std::vector<OffloadableBuffer<float>> state;
            for (size_t i = 0; i < info.elements->state.size(); ++i) state.push_back(zeros(size, offload, stream));
            runs.push_back({std::move(run), offset, size, std::move(state)});
        }
    }

    std::vector<StateShape> state_of(int param) const { return info.matrices->state(options, table[param]); }

    void update_elements(ParamStore& params, const StepControl* control, const Stream& stream) const {
        for (const RunState& s : runs) {
            if (s.size == 0) continue;
            const float weight_decay = s.run.decay ? options.adamw_weight_decay.value_or(options.weight_decay) : 0.0f;
            ElementUpdate u{.master = params.masters().at<float>(s.offset),
                            .work = params.work_copy_at(s.offset),
                            .state = {},
                            .grad = params.sums().at<float>(s.offset),
                            .control = control,
                            .n = s.size,
                            .rate = {options.adamw_lr, s.run.lr_scale, weight_decay, options.cautious_weight_decay}};
            for (const auto& state : s.state) u.state.push_back(state.data());
            info.elements->update(u, options, stream);
        }
    }
};

Optimizer::Optimizer(const ParamStore& params, const OptimizerPlan& plan, const Placement& placement,
                     const OptimizerOptions& options, Context& context)
    : impl_(std::make_unique<Impl>(params, plan, placement, options, context)) {
    context.stream.synchronize();
}

Optimizer::Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context)
    : Optimizer(params, plan_optimizer(params.table(), options),
                place(params.table(), plan_optimizer(params.table(), options), options, context.comm->size()), options,
                context) {}

Optimizer::~Optimizer() = default;

const OptimizerPlan& Optimizer::plan() const { return impl_->plan; }
const Ownership& Optimizer::ownership() const { return impl_->reduction; }

void Optimizer::step(ParamStore& params, const StepControl* control, Context& context) {
    CHECK(control != nullptr, "Optimizer::step: control is null");
    CHECK(params.table().size() == impl_->table.size(),
          "Optimizer::step: parameters of another table: {} elements, not {}", params.table().size(),
          impl_->table.size());
    auto exchange = [&](const std::vector<Part>& updated) {
        if (impl_->divided && !params.has_weight_windows())
            context.comm->broadcast(params.work_all(), params.dtype(), updated, context.stream);
    };
    impl_->update_elements(params, control, context.stream);
    exchange(impl_->element_parts);
    if (impl_->matrices) impl_->matrices->update(params, control, exchange, context);
    context.comm->join(context.stream);
}

bool Optimizer::step_waits() const { return impl_->matrices && impl_->matrices->update_waits(); }

void Optimizer::check_finite(Context& context) {
    if (impl_->matrices) impl_->matrices->check_finite(context);
}

std::vector<Alignment> Optimizer::diagnose(Context& context) {
    check_finite(context);
    std::vector<StateTensor> momenta = state();
    std::erase_if(momenta, [](const StateTensor& t) { return !t.name.ends_with(".momentum"); });
    const auto place = [&](const StateTensor& t) {
        return std::pair(impl_->table[t.param].role, impl_->table[t.param].layer);
    };
    std::stable_sort(momenta.begin(), momenta.end(),
                     [&](const StateTensor& a, const StateTensor& b) { return place(a) < place(b); });
    std::vector<MomentumSlice> slices;
    std::vector<int64_t> begins = {0};
    int64_t largest = 0;
    for (const StateTensor& t : momenta) {
        slices.push_back({place(t).first, place(t).second, t.rows, t.cols});
        begins.push_back(begins.back() + t.size());
        largest = std::max(largest, t.size());
    }
    Buffer<float> gathered;  // the last two slices, with several ranks
    if (context.comm->size() > 1) gathered = Buffer<float>(2 * largest);
    const auto data_of = [&](size_t i) -> const float* {
        if (gathered.size() == 0) return momenta[i].data;
        float* slice = gathered.data() + static_cast<int64_t>(i % 2) * largest;
        collect_state(momenta, begins[i], begins[i + 1], slice, context);
        return slice;
    };
    return measure_alignment(slices, data_of, impl_->info.stacks ? impl_->options.teon_mode : 1, context);
}

int64_t elements_of(const std::vector<StateTensor>& tensors) {
    int64_t n = 0;
    for (const StateTensor& t : tensors) n += t.size();
    return n;
}

std::vector<StateTensor> Optimizer::state() {
    const Impl& self = *impl_;
    const ParamTable& table = self.table;
    std::vector<StateTensor> tensors;
    for (const RunState& s : self.runs) {
        for (int param : s.run.params) {
            const ParamRow& row = table[param];
            const int64_t begin = std::clamp(s.offset - row.offset, int64_t{0}, row.size());
            const int64_t end = std::clamp(s.offset + s.size - row.offset, begin, row.size());
            const int64_t from = begin < end ? row.offset + begin - s.offset : 0;
            std::vector<Part> parts = self.ownership.parts({param});
            for (Part& part : parts) part.offset -= row.offset;
            for (size_t i = 0; i < s.state.size(); ++i)
                tensors.push_back({fmt::format("{}.{}", row.name, self.info.elements->state[i]),
                                   s.state[i].data() + from, row.rows, row.cols, param, begin, end, parts});
        }
    }
    for (size_t s = 0; s < self.plan.stacks.size(); ++s) {
        for (int param : self.plan.stacks[s].params) {
            const std::vector<int64_t>& at = self.matrix_state_at[param];
            size_t next = 0;
            for (const StateShape& shape : self.state_of(param)) {
                const int64_t size = int64_t{shape.rows} * shape.cols;
                float* data = at.empty() ? nullptr : self.matrix_state.data() + at[next++];
                tensors.push_back({fmt::format("{}.{}", table[param].name, shape.name),
                                   data,
                                   shape.rows,
                                   shape.cols,
                                   param,
                                   0,
                                   data ? size : 0,
                                   {{0, size, self.ownership.placement().owner[s]}},
                                   shape.may_be_absent});
            }
        }
    }
    return tensors;
}

void Optimizer::collect_state(const std::vector<StateTensor>& tensors, int64_t begin, int64_t end, float* flat,
                              Context& context) {
    std::vector<Part> parts;
    int64_t first = 0;  // element of the tensor
    for (const StateTensor& t : tensors) {
        // The overlap of elements [from, to) of the tensor with [begin, end).
        auto within = [&](int64_t from, int64_t to) {
            return std::pair(std::clamp(first + from, begin, end), std::clamp(first + to, begin, end));
        };
        if (const auto [from, to] = within(t.begin, t.end); from < to)
            copy(flat + from - begin, t.data + (from - first - t.begin), to - from, context.stream);
        for (const Part& part : t.parts) {
            const auto [from, to] = within(part.offset, part.offset + part.size);
            if (from == to) continue;
            if (!parts.empty() && parts.back().root == part.root &&
                parts.back().offset + parts.back().size == from - begin) {
                parts.back().size += to - from;
            } else {
                parts.push_back({from - begin, to - from, part.root});
            }
        }
        first += t.size();
    }
    context.comm->broadcast(flat, DType::f32, parts, context.stream);
    context.comm->join(context.stream);
}

std::vector<StateTensor> Optimizer::masters(const ParamStore& params) {
    std::vector<StateTensor> tensors;
    for (int param = 0; param < impl_->table.count(); ++param) {
        const ParamRow& row = impl_->table[param];
        StateTensor t{row.name, nullptr, row.rows, row.cols, param, 0, 0, impl_->ownership.parts({param})};
        for (Part& part : t.parts) {
            part.offset -= row.offset;
            if (part.root != impl_->rank) continue;
            t.begin = part.offset;
            t.end = part.offset + part.size;
            t.data = params.masters().at<float>(row.offset + t.begin);
        }
        tensors.push_back(std::move(t));
    }
    return tensors;
}

}  // namespace teon
