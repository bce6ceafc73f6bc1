// An optimizer with parameters, gradients and step control, without a model.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"
#include "test/support/whole_params.h"

namespace teon::test {

template <typename T>
std::vector<T> fetch(const T* data, int64_t n, Context& context) {
    std::vector<T> values(static_cast<size_t>(n));
    download(values.data(), data, n, context.stream);
    context.stream.synchronize();
    return values;
}

// A parameter store with random weights, an optimizer and the arguments of a step.
struct Run {
    Context context;
    ParamStore params;
    Optimizer optimizer;
    Buffer<StepControl> control{1};
    int updates = 0;

    Run(const ParamTable& table, const OptimizerOptions& options, DType dtype = DType::f32)
        : params(table, dtype, context.stream), optimizer(params, options, context) {
        for (int row = 0; row < table.count(); ++row)
            set(params.master(row), random_values<float>(table[row].size(), 100 + row, 0.2));
        round_masters(params, context.stream);
    }
    void set(float* at, const std::vector<float>& values) {
        upload(at, values.data(), std::ssize(values), context.stream);
        context.stream.synchronize();
    }
    const ParamTable& table() const { return params.table(); }
    void set_grads(uint64_t seed) {
        for (int row = 0; row < table().count(); ++row)
            set(params.grad(row), random_values<float>(table()[row].size(), seed * 1000 + row));
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
    // Zeroes the padding of a matrix with the shape of `row`, as training keeps it.
    void zero_padding(float* at, int row) {
        auto values = fetch(at, table()[row].size(), context);
        for_padding(row, [&](size_t i) { values[i] = 0; });
        set(at, values);
    }
    void zero_padding_of_masters() {
        for (int row = 0; row < table().count(); ++row) zero_padding(params.master(row), row);
        round_masters(params, context.stream);
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
        bool right = bool(same_bits(fetch(params.work<bf16>(row), table()[row].size(), context), rounded));
        const std::vector<float> w = weights(row);
        for_padding(row, [&](size_t i) { right = right && std::abs(w[i]) <= bound; });
        return right;
    }
    std::vector<float> weights(int row) { return fetch(params.master(row), table()[row].size(), context); }
    std::vector<float> all() { return fetch(masters_of(params), table().size(), context); }
    std::string state_bytes() {
        std::string bytes;
        for (const StateTensor& t : optimizer.state())
            bytes += bytes_of(fetch(t.data, int64_t{t.rows} * t.cols, context));
        return bytes;
    }
};

}  // namespace teon::test
