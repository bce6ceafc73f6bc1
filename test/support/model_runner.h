// Runs a model of random weights for model tests, and returns its loss, gradients and master weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "model/decoder.h"
#include "model/families.h"
#include "test/support/compare.h"
#include "test/support/device_batch.h"
#include "test/support/transfer.h"
#include "test/support/whole_params.h"

namespace teon::test {

inline const ModelFamily& family_of(const std::string& name) {
    return *std::ranges::find(families(), name, &ModelFamily::name);
}

struct ModelRunner {
    Context context;
    std::unique_ptr<Model> model;
    int64_t N;
    Guarded<float> losses;

    ModelRunner(const DecoderConfig& config, const DecoderRun& run)
        : model(make_decoder(config, run, context)), N(int64_t{run.B} * run.T), losses(N, context.stream) {
        model->params().initialize(7, context.stream);
    }

    // Returns the mean loss. If `backward`, also computes the gradients of `weight` times it, += if accumulate.
    double loss(const DeviceBatch& batch, bool backward = false, float weight = 1.0f, bool accumulate = false) {
        const int64_t rows = int64_t{(*batch).B} * (*batch).T;
        if (backward)
            model->forward_backward(losses.data(), *batch, weight / static_cast<float>(rows), accumulate);
        else
            model->forward(losses.data(), *batch);
        const std::vector<float> values = losses.get();
        double sum = 0;
        for (int64_t i = 0; i < rows; ++i) sum += values[static_cast<size_t>(i)];
        return sum / static_cast<double>(rows);
    }
    std::vector<float> gradients() { return all(gradients_of(model->params())); }
    std::vector<float> masters() { return all(masters_of(model->params())); }
    std::vector<float> all(const float* from) { return fetch(from, model->table().size(), context.stream); }
    void set_masters(const std::vector<float>& w) {
        put(masters_of(model->params()), w, context.stream);
        round_masters(model->params(), context.stream);
    }
};

// Returns ||a - b|| / ||b||; infinity if the lengths differ or a value is not finite.
inline double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
    double diff = 0;
    double norm = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        diff += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        norm += double{b[i]} * b[i];
    }
    const double distance = norm > 0 ? std::sqrt(diff / norm) : std::sqrt(diff);
    return a.size() == b.size() && std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

// The allowed relative_distance of two float computations of a model's gradients that sum the same terms in different
// orders, as kernels for other CPUs or sizes do. A sum of n terms of random signs is a random walk of length sqrt(n).
// The roundings of its partial sums are a random walk, too, of length u n / sqrt(6); the relative error is
// u sqrt(n / 6). A gradient passes through 18 products per layer (6 forward, 12 backward) and 3 of the head. Each
// product adds an error of its own, in both computations.
inline double rounding_distance(const DecoderConfig& c, int tokens) {
    const double terms = std::max({c.C, c.F, c.V, tokens});
    const double products = 18.0 * c.L + 3;
    return kUnitRoundoff<float> * std::sqrt(terms / 6) * std::sqrt(2 * products);
}

}  // namespace teon::test
