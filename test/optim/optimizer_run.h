// An optimizer with parameters, gradients and step control, without a model.
#pragma once

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"
#include "test/support/transfer.h"
#include "test/support/whole_params.h"

namespace teon::test {

// These options with the rates and the types of the tests; Teon unless they name another method.
inline OptimizerOptions teon_options(OptimizerOptions o) {
    if (o.method == Method::adamw) o.method = Method::teon;
    o.lr = 0.05f;
    o.adamw_lr = 0.01f;
    o.ns_dtype = DType::f32;
    return o;
}
inline OptimizerOptions teon_options(int K, int mode, std::set<Role> roles = {Role::q, Role::k, Role::v}) {
    return teon_options({.teon_k = K, .teon_mode = mode, .teon_roles = std::move(roles)});
}

// A parameter store with random weights, an optimizer and the arguments of a step. Padding is zero, as in training.
struct Run {
    Context context;
    ParamStore params;
    Optimizer optimizer;
    Buffer<StepControl> control{1};
    int updates = 0;

    Run(const ParamTable& table, const OptimizerOptions& options, DType dtype = DType::f32)
        : params(table, dtype, context.stream), optimizer(params, options, context) {
        for (int row = 0; row < table.count(); ++row)
            set(params.master(row), unpadded(row, random_values<float>(table[row].size(), 100 + row, 0.2)));
        round_masters(params, context.stream);
    }
    void set(float* at, const std::vector<float>& values) { put(at, values, context.stream); }
    const ParamTable& table() const { return params.table(); }
    void set_grads(uint64_t seed) {
        for (int row = 0; row < table().count(); ++row)
            set(params.grad(row), unpadded(row, random_values<float>(table()[row].size(), seed * 1000 + row)));
    }
    // Steps with the gradients of the seeds [begin, end).
    void train(int begin, int end) {
        for (int seed = begin; seed < end; ++seed) {
            set_grads(seed);
            step();
        }
    }
    void step(float scale = 1, int skip = 0, float lr_factor = 1) {
        updates += !skip;
        const float bc1 = static_cast<float>(1 - std::pow(0.9, updates));
        const float bc2 = static_cast<float>(1 - std::pow(0.95, updates));
        const StepControl c{.grad_norm = 1,
                            .scale = scale,
                            .skip = skip,
                            .updates = updates,
                            .bias_correction1 = bc1,
                            .bias_correction2 = bc2,
                            .lr_factor = lr_factor};
        upload(control.data(), &c, 1, context.stream);
        context.stream.synchronize();
        optimizer.step(params, control.data(), context);
    }
    // A parameter's values with zeros for its padding.
    std::vector<float> unpadded(int row, std::vector<float> values) const {
        for_padding(row, [&](size_t i) { values[i] = 0; });
        return values;
    }
    template <typename F>
    void for_padding(int row, F f) const {
        const ParamRow& r = table()[row];
        for (int i = 0; i < r.rows; ++i)
            for (int j = 0; j < r.cols; ++j)
                if (i >= r.logical_rows || j >= r.logical_cols) f(static_cast<size_t>(i * r.cols + j));
    }
    // Returns whether the working weights are the rounded masters and no padding exceeds the bound.
    bool is_rounded_and_padded(int row, double bound) {
        std::vector<bf16> rounded;
        for (float x : weights(row)) rounded.push_back(bf16(x));
        bool right = bool(same_bits(fetch(params.work<bf16>(row), table()[row].size(), context.stream), rounded));
        const std::vector<float> w = weights(row);
        for_padding(row, [&](size_t i) { right = right && std::abs(w[i]) <= bound; });
        return right;
    }
    std::vector<float> weights(int row) { return fetch(params.master(row), table()[row].size(), context.stream); }
    std::vector<float> grads(int row) { return fetch(params.grad(row), table()[row].size(), context.stream); }
    std::vector<float> all() { return fetch(masters_of(params), table().size(), context.stream); }
    // The bytes of all master weights and of the state.
    std::string bytes() { return bytes_of(all()) + state_bytes(); }
    std::string state_bytes() {
        std::string bytes;
        for (const StateTensor& t : optimizer.state()) bytes += bytes_of(fetch(t.data, t.size(), context.stream));
        return bytes;
    }
};

}  // namespace teon::test
