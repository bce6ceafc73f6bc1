// The kernel of optimizers that update each element by itself (UpdateRate in step_control.h): the loop over the flat
// arrays, weight decay and the rounded working weights. A rule holds its constants and has
//   kStates                      the number of state arrays
//   begin(rate, control)         returns what is the same for all elements of a launch
//   delta(launch, state, g)      updates state[kStates] with the clipped gradient g and returns what to subtract from
//                                the weight
// Private to kernels/.
#pragma once

#include "kernels/common.h"
#include "kernels/optimizers/weight_update.h"

namespace teon {

template <int N>
struct StateArrays {
    float* at[N];
};

// CAUTIOUS is a template argument because plain weight decay should not pay for the comparison.
template <typename Rule, typename T, int W, bool CAUTIOUS>
__global__ void __launch_bounds__(kFlatBlock)
    element_update_kernel(float* master, T* work, StateArrays<Rule::kStates> states, const float* grad,
                          const StepControl* control, int64_t n, Rule rule, UpdateRate update_rate) {
    wait_for_earlier_kernels();
    constexpr int N = Rule::kStates;
    if (control->skip != 0) return;
    const float scale = control->scale;
    const WeightUpdate update = weight_update(update_rate, control);
    const auto launch = rule.begin(update.rate, *control);
    for_each_vec<W>(n, [=]<int w>(Constant<w>, int64_t i) {
        auto p = load_vec<w>(master + i);
        const auto gradient = load_vec<w>(grad + i);
        Vec<float, w> state[N];
        for (int j = 0; j < N; ++j) state[j] = load_vec<w>(states.at[j] + i);
        FOR_VEC(k, w) {
            float state_of_k[N];
            for (int j = 0; j < N; ++j) state_of_k[j] = state[j][k];
            const float delta = rule.delta(launch, state_of_k, gradient[k] * scale);
            for (int j = 0; j < N; ++j) state[j][k] = state_of_k[j];
            p[k] = fmaf(p[k], CAUTIOUS ? update.decay_factor(p[k], delta) : update.keep, -delta);
        }
        store_vec(master + i, p);
        for (int j = 0; j < N; ++j) store_vec(states.at[j] + i, state[j]);
        if (work != nullptr) store_floats(work + i, p);
    });
}

template <typename Rule, typename T>
void element_update(float* master, T* work, const StateArrays<Rule::kStates>& states, const float* grad,
                    const StepControl* control, int64_t n, const Rule& rule, const UpdateRate& rate,
                    const Stream& stream) {
    constexpr int kWidest = kVecWidth<float>;
    bool aligned = vec_aligned<float, kWidest>(0, master, work, grad);
    for (const float* state : states.at) aligned = aligned && vec_aligned<float, kWidest>(0, state);
    at_width<kWidest>(aligned, [&]<int W>(Constant<W>) {
        const auto start = [&]<bool CAUTIOUS>() {
            launch<element_update_kernel<Rule, T, W, CAUTIOUS>>({flat_blocks<W>(n), kFlatBlock}, stream, master, work,
                                                                states, grad, control, n, rule, rate);
        };
        at_conditions(start, rate.cautious);
    });
}

}  // namespace teon
