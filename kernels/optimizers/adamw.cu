// AdamW (Loshchilov & Hutter, arXiv 1711.05101).
#include "kernels/optimizers/adamw.h"
#include "kernels/optimizers/element_update.h"

namespace teon {

struct AdamWRule {
    static constexpr int kStates = 2;
    AdamWConstants constants;
    struct Launch {
        float m_scale, v_scale;  // of the moments, for the bias corrections; m_scale has the learning rate, too
    };
    __device__ __forceinline__ Launch begin(float rate, const StepControl& control) const {
        return {rate / control.bias_correction1, 1.0f / sqrtf(control.bias_correction2)};
    }
    __device__ __forceinline__ float delta(const Launch& launch, float* state, float g) const {
        const auto [beta1, beta2, eps] = constants;
        state[0] = fmaf(beta1, state[0], (1.0f - beta1) * g);
        state[1] = fmaf(beta2, state[1], (1.0f - beta2) * g * g);
        return launch.m_scale * state[0] / fmaf(sqrtf(state[1]), launch.v_scale, eps);
    }
};

template <typename T>
void adamw_update(float* master, T* work, float* m, float* v, const float* grad, const StepControl* control, int64_t n,
                  const UpdateRate& rate, const AdamWConstants& constants, const Stream& stream) {
    element_update(master, work, {{m, v}}, grad, control, n, AdamWRule{constants}, rate, stream);
}

FOR_STORAGE_TYPES(adamw_update);

}  // namespace teon
