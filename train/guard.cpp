#include "train/guard.h"

#include <algorithm>
#include <cmath>

#include "kernels/step_control.h"

namespace teon {

std::optional<GuardEvent> guard_event(const StepMetrics& m, double warn_spikes) {
    if (m.skip == kSkipNonfinite) {
        const std::string rank = m.faulty_rank < 0 ? "" : fmt::format(", rank {}", m.faulty_rank);
        // The norm's square is a float, so that a norm above 1.8e19 is infinite.
        const std::string reason = std::isinf(m.grad_norm) ? "gradient norm above 1.8e19" : "non-finite gradient";
        return GuardEvent{"update_skipped", std::isfinite(m.loss) ? reason : "non-finite loss" + rank};
    }
    const bool warn = warn_spikes > 0 && std::max(m.loss_z, m.grad_norm_z) > warn_spikes;
    if (m.skip != kSkipSpike && !warn) return std::nullopt;
    return GuardEvent{
        m.skip == kSkipSpike ? "update_skipped" : "spike",
        fmt::format("loss {:.1f} and gradient norm {:.1f} standard deviations high", m.loss_z, m.grad_norm_z)};
}

}  // namespace teon
