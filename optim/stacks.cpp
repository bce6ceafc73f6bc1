#include "optim/stacks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/integer.h"

namespace teon {

int64_t StateShape::stride() const { return round_up(int64_t{rows} * cols, 64); }

std::vector<StateShape> matrix_state(const OptimizerOptions& options, const ParamRow& row) {
    std::vector<StateShape> state = {{"momentum", row.rows, row.cols}};
    if (!has_neuron_norm(options)) return state;
    const int heads = options.ortho_per_head ? row.heads : 1;
    const bool columns = has_column_neurons(options, row.logical_rows / heads, row.logical_cols);
    state.push_back({"neurons", columns ? heads : row.rows, columns ? row.cols : 1});
    return state;
}

bool has_column_neurons(const OptimizerOptions& options, int m, int n) {
    return options.neuron_axis == NeuronAxis::longer && n > m;
}

std::vector<StackGroup> group_stacks(const std::vector<Stack>& stacks, const OptimizerOptions& options, int ranks,
                                     const std::vector<int>& owner) {
    std::vector<StackGroup> groups;
    std::map<std::tuple<int, int, int, int, int, int, int, NsForm>, size_t> index;
    for (size_t i = 0; i < stacks.size(); ++i) {
        const Stack& stack = stacks[i];
        auto key = std::tuple(stack.m, stack.n, stack.logical_m, stack.logical_n, stack.K(), stack.mode, stack.heads,
                              stack.form);
        auto [it, fresh] = index.try_emplace(key, groups.size());
        if (fresh) {
            const OrthoMethod method = method_of(options, stack.form);
            groups.push_back({{},
                              unfolding_of(stack, method),
                              Unfolding(stack.mode, stack.logical_m, stack.logical_n, stack.K(), 1),
                              method,
                              stack.heads,
                              1});
        }
        groups[it->second].stacks.push_back(static_cast<int>(i));
    }
    for (StackGroup& group : groups) {
        const int64_t count = static_cast<int64_t>(group.stacks.size());
        const int64_t largest_chunk = std::clamp(kScratchBound / group.scratch_bytes(), int64_t{1}, count);
        const int64_t chunks = ceil_div(count, largest_chunk);
        group.chunk = static_cast<int>(ceil_div(count, chunks));  // about equal chunks
        if (ranks == 1) continue;
        std::vector<int> owned(ranks, 0);
        for (int s : group.stacks) ++owned[owner[s]];
        constexpr int kRounds = 4;
        group.chunk = std::min(group.chunk, ceil_div(*std::max_element(owned.begin(), owned.end()), kRounds));
    }
    return groups;
}

int64_t StackGroup::scratch_bytes() const {
    const MatrixBatch matrices = batch(chunk);
    return aligned(matrices.size() * static_cast<int64_t>(size_of(method.dtype))) +
           ortho_scratch_bytes(method, matrices);
}

int64_t largest_scratch_bytes(const std::vector<StackGroup>& groups) {
    int64_t bytes = 0;
    for (const StackGroup& group : groups) bytes = std::max(bytes, group.scratch_bytes());
    return bytes;
}

float lr_scale_of(Role role, const OptimizerOptions& options) {
    auto it = options.lr_scale.find(role);
    return it == options.lr_scale.end() ? 1.0f : it->second;
}

bool has_neuron_norm(const OptimizerOptions& options) {
    return options.neuron_norm || options.method == Method::normuon;
}

OrthoMethod method_of(const OptimizerOptions& options, NsForm form) {
    const DType dtype = options.ortho == Ortho::svd ? DType::f32 : options.ns_dtype;
    return {options.ortho, options.ns_steps, form, dtype};
}

Unfolding unfolding_of(const Stack& stack, const OrthoMethod& method) {
    return Unfolding(stack.mode, stack.m, stack.n, stack.K(), method.row_alignment());
}

UpdateScale scale_of(const OptimizerOptions& options) {
    return options.update_rms > 0 ? UpdateScale::rms : options.update_scale;
}

double rate_scale(const Stack& stack, const OptimizerOptions& options) {
    const double m = static_cast<double>(stack.logical_m) * stack.heads;
    const double n = stack.logical_n;
    const double factor = lr_scale_of(stack.role, options);
    switch (scale_of(options)) {
        case UpdateScale::spectral:
            return factor * std::sqrt(m / n);
        case UpdateScale::original:
            return factor * std::sqrt(std::max(1.0, m / n));
        case UpdateScale::rms:
            return factor * (options.update_rms * std::sqrt(std::max(m, n)));
        case UpdateScale::none:
            break;
    }
    return factor;
}

double update_scale(const Stack& stack, const OptimizerOptions& options) {
    if (options.update_rms > 0 && has_neuron_norm(options))
        return lr_scale_of(stack.role, options) * static_cast<double>(options.update_rms);  // of a slice with rms 1
    const double m = static_cast<double>(stack.logical_m) * stack.heads;
    const double n = stack.logical_n;
    // The mean ||O_k||_F^2 of K slices of a semi-orthogonal unfolding is (its short side) / K.
    auto mean_square = [&](int heads) {
        const Unfolding u(stack.mode, stack.logical_m * stack.heads / heads, stack.logical_n, stack.K(), 1);
        return static_cast<double>(heads) * std::min(u.rows(), u.cols()) / stack.K();
    };
    const double target = options.teon_rms_match ? std::min(m, n) : mean_square(1);
    return rate_scale(stack, options) * std::sqrt(target / mean_square(stack.heads));
}

}  // namespace teon
