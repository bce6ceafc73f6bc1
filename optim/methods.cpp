#include "optim/methods.h"

#include <algorithm>

#include "base/integer.h"
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

using Flags = std::vector<std::string_view>;

Flags joined(Flags a, const Flags& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const Flags kMoments = {"--beta1", "--beta2"};
const Flags kWithAdamW = {"--beta1", "--beta2", "--eps", "--adamw-lr", "--adamw-weight-decay"};
const Flags kMuonFlags =
    joined(kWithAdamW, {"--momentum", "--nesterov", "--update-rms", "--neuron-norm", "--neuron-beta2", "--ortho",
                        "--ortho-per-head", "--ns-steps", "--ns-form", "--ns-aol", "--ns-dtype", "--diagnose-every"});
const Flags kTeonFlags =
    joined(kMuonFlags, {"--teon-k", "--teon-mode", "--teon-roles", "--teon-rms-match", "--teon-normalize-slices"});

const Flags kSoapFlags = joined(kWithAdamW, {"--soap-frequency", "--soap-max-dim"});

}  // namespace

const std::vector<MethodInfo>& methods() {
    static const std::vector<MethodInfo> rows = {
        // method, elements, matrices, stacks, lr, beta1, beta2, flags
        {Method::adamw, &kAdamW, nullptr, false, 3e-4f, 0.9f, 0.95f, joined(kMoments, {"--eps"})},
        {Method::lion, &kLion, nullptr, false, 1e-4f, 0.9f, 0.99f, kMoments},
        {Method::muon, &kAdamW, &kOrthogonal, false, 5e-3f, 0.9f, 0.95f, kMuonFlags},
        {Method::normuon, &kAdamW, &kOrthogonal, false, 5e-3f, 0.9f, 0.95f, kMuonFlags},
        {Method::teon, &kAdamW, &kOrthogonal, true, 5e-3f, 0.9f, 0.95f, kTeonFlags},
        {Method::soap, &kAdamW, &kSoap, false, 3e-3f, 0.95f, 0.95f, kSoapFlags},
    };
    return rows;
}

const MethodInfo& info_of(Method method) {
    const auto& rows = methods();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.method == method; });
    CHECK(row != rows.end(), "the optimizer {} has no description", static_cast<int>(method));
    return *row;
}

bool has_flag(const MethodInfo& method, std::string_view flag) {
    return std::find(method.flags.begin(), method.flags.end(), flag) != method.flags.end();
}

float default_adamw_lr(int channels) { return static_cast<float>(std::min(0.01, 3e-4 * 3072 / channels)); }

int64_t StateShape::stride() const { return round_up(int64_t{rows} * cols, 64); }

}  // namespace teon
