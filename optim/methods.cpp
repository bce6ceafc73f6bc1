#include "optim/methods.h"

#include <algorithm>

#include "kernels/optimizers/adamw.h"
#include "kernels/optimizers/lion.h"

namespace teon {

namespace {

const ElementRule kAdamW{
    "adamw", {"m", "v"}, [](const ElementUpdate& u, const OptimizerOptions& o, const Stream& stream) {
        adamw_update(u.master, u.work, u.state[0], u.state[1], u.grad, u.control, u.n, u.rate,
                     {o.beta1, o.beta2, o.eps}, stream);
    }};

const ElementRule kLion{"lion", {"m"}, [](const ElementUpdate& u, const OptimizerOptions& o, const Stream& stream) {
                            lion_update(u.master, u.work, u.state[0], u.grad, u.control, u.n, u.rate, o.beta1, o.beta2,
                                        stream);
                        }};

}  // namespace

const std::vector<MethodInfo>& methods() {
    static const std::vector<MethodInfo> rows = {
        // method, elements, orthogonalizes, stacks, lr, beta1, beta2
        {Method::adamw, &kAdamW, false, false, 3e-4f, 0.9f, 0.95f},
        {Method::lion, &kLion, false, false, 1e-4f, 0.9f, 0.99f},
        {Method::muon, &kAdamW, true, false, 5e-3f, 0.9f, 0.95f},
        {Method::normuon, &kAdamW, true, false, 5e-3f, 0.9f, 0.95f},
        {Method::teon, &kAdamW, true, true, 5e-3f, 0.9f, 0.95f},
    };
    return rows;
}

const MethodInfo& info_of(Method method) {
    const auto& rows = methods();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.method == method; });
    CHECK(row != rows.end(), "the optimizer {} has no description", static_cast<int>(method));
    return *row;
}

float default_adamw_lr(int channels) { return static_cast<float>(std::min(0.01, 3e-4 * 3072 / channels)); }

}  // namespace teon
