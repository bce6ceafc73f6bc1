// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2).
#include "kernels/optimizers/element_update.h"
#include "kernels/optimizers/lion.h"

namespace teon {

struct LionRule {
    static constexpr int kStates = 1;
    float beta1, beta2;
    __device__ __forceinline__ float begin(float rate, const StepControl&) const { return rate; }
    __device__ __forceinline__ float delta(float rate, float* state, float g) const {
        const float c = fmaf(beta1, state[0], (1.0f - beta1) * g);
        state[0] = fmaf(beta2, state[0], (1.0f - beta2) * g);
        if (c > 0.0f) return rate;
        if (c < 0.0f) return -rate;
        return c;  // 0, or NaN, which stays NaN
    }
};

template <typename T>
void lion_update(float* master, T* work, float* m, const float* grad, const StepControl* control, int64_t n,
                 const UpdateRate& rate, float beta1, float beta2, const Stream& stream) {
    element_update(master, work, {{m}}, grad, control, n, LionRule{beta1, beta2}, rate, stream);
}

FOR_STORAGE_TYPES(lion_update);

}  // namespace teon
