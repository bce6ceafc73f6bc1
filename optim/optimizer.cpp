#include "optim/optimizer.h"

#include <fmt/core.h>

#include <algorithm>

namespace teon {

Optimizer::Optimizer(const ParamStore& params, const OptimizerPlan& plan, const Placement& placement,
                     const OptimizerOptions& options, Context& context)
    : options_(options),
      table_(params.table()),
      info_(info_of(options.method)),
      plan_(plan),
      divided_(placement.ranks > 1 && params.sharding() != Sharding::none),
      reduction_(placement),
      placement_(divided_ ? placement : place(table_, plan_, options_, 1)),
      rank_(divided_ ? context.comm->rank() : 0),
      element_parts_(placement_.parts_of(plan_.element_params)),
      stacks_(params, table_, plan_, placement_, options_, rank_, context.stream) {
    make_runs(placement_.elements[rank_], params.offloads(), context.stream);
    context.stream.synchronize();
}

Optimizer::Optimizer(const ParamStore& params, const OptimizerOptions& options, Context& context)
    : Optimizer(params, plan_optimizer(params.table(), options),
                place(params.table(), plan_optimizer(params.table(), options), options, context.comm->size()), options,
                context) {}

// elements: this rank's, numbered over all runs.
void Optimizer::make_runs(const Part& elements, bool offload, const Stream& stream) {
    for (const ElementRun& run : element_runs(table_, plan_, options_)) {
        const int64_t from = std::clamp(elements.offset - run.begin, int64_t{0}, run.size);
        const int64_t to = std::clamp(elements.offset + elements.size - run.begin, from, run.size);
        RunState state{run, run.offset + from, to - from, {}};
        for (size_t i = 0; i < info_.elements->state.size(); ++i) {
            state.state.emplace_back(state.size, offload);
            zero(state.state.back().data(), state.size, stream);
        }
        runs_.push_back(std::move(state));
    }
}

void Optimizer::update_elements(ParamStore& params, const StepControl* control, const Stream& stream) const {
    for (const RunState& s : runs_) {
        if (s.size == 0) continue;
        const float weight_decay = s.run.decay ? options_.adamw_weight_decay.value_or(options_.weight_decay) : 0.0f;
        ElementUpdate u{.master = params.masters().at<float>(s.offset),
                        .work = params.work_copy_at(s.offset),
                        .state = {},
                        .grad = params.sums().at<float>(s.offset),
                        .control = control,
                        .n = s.size,
                        .rate = {options_.adamw_lr, s.run.lr_scale, weight_decay, options_.cautious_weight_decay}};
        for (const auto& state : s.state) u.state.push_back(state.data());
        info_.elements->update(u, options_, stream);
    }
}

void Optimizer::step(ParamStore& params, const StepControl* control, Context& context) {
    CHECK(control != nullptr, "Optimizer::step: control is null");
    CHECK(params.table().size() == table_.size(), "Optimizer::step: parameters of another table: {} elements, not {}",
          params.table().size(), table_.size());
    auto exchange = [&](const std::vector<Part>& updated) {
        if (divided_ && !params.has_weight_windows())
            context.comm->broadcast(params.work_all(), params.dtype(), updated, context.stream);
    };
    update_elements(params, control, context.stream);
    exchange(element_parts_);
    stacks_.update(params, control, exchange, context);
    context.comm->join(context.stream);
}

void Optimizer::check_finite(Context& context) { stacks_.check_finite(context.stream); }

std::vector<Alignment> Optimizer::diagnose(Context& context) {
    check_finite(context);
    std::vector<StateTensor> momenta = state();
    std::erase_if(momenta, [](const StateTensor& t) { return !t.name.ends_with(".momentum"); });
    const auto place = [&](const StateTensor& t) { return std::pair(table_[t.param].role, table_[t.param].layer); };
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
    return measure_alignment(slices, data_of, info_.stacks ? options_.teon_mode : 1, context);
}

int64_t elements_of(const std::vector<StateTensor>& tensors) {
    int64_t n = 0;
    for (const StateTensor& t : tensors) n += t.size();
    return n;
}

std::vector<StateTensor> Optimizer::state() {
    std::vector<StateTensor> tensors;
    for (const RunState& s : runs_) {
        for (int param : s.run.params) {
            const ParamRow& row = table_[param];
            const int64_t begin = std::clamp(s.offset - row.offset, int64_t{0}, row.size());
            const int64_t end = std::clamp(s.offset + s.size - row.offset, begin, row.size());
            const int64_t from = begin < end ? row.offset + begin - s.offset : 0;
            std::vector<Part> parts = placement_.parts_of({param});
            for (Part& part : parts) part.offset -= row.offset;
            for (size_t i = 0; i < s.state.size(); ++i)
                tensors.push_back({fmt::format("{}.{}", row.name, info_.elements->state[i]), s.state[i].data() + from,
                                   row.rows, row.cols, param, begin, end, parts});
        }
    }
    for (size_t s = 0; s < plan_.stacks.size(); ++s) {
        for (int param : plan_.stacks[s].params) {
            size_t i = 0;
            for (const StateShape& shape : matrix_state(options_, table_[param])) {
                const int64_t size = int64_t{shape.rows} * shape.cols;
                float* data = stacks_.state(param, i++);
                tensors.push_back({fmt::format("{}.{}", table_[param].name, shape.name),
                                   data,
                                   shape.rows,
                                   shape.cols,
                                   param,
                                   0,
                                   data ? size : 0,
                                   {{0, size, placement_.owner[s]}}});
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
    for (int param = 0; param < table_.count(); ++param) {
        const ParamRow& row = table_[param];
        StateTensor t{row.name, nullptr, row.rows, row.cols, param, 0, 0, placement_.parts_of({param})};
        for (Part& part : t.parts) {
            part.offset -= row.offset;
            if (part.root != rank_) continue;
            t.begin = part.offset;
            t.end = part.offset + part.size;
            t.data = params.masters().at<float>(row.offset + t.begin);
        }
        tensors.push_back(std::move(t));
    }
    return tensors;
}

}  // namespace teon
