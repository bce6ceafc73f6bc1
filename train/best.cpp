#include "train/best.h"

namespace teon {

bool BestLoss::count(const LoggedEvaluation& e) {
    if (e.step <= last) return false;
    last = e.step;
    ++since;
    if (!(e.loss < loss)) return false;
    *this = {{e.loss, e.step, 0, e.step}};
    return true;
}

std::string BestLoss::out_of_patience(int64_t patience) const {
    if (patience == 0 || since < patience) return "";
    const std::string ago = fmt::format("{} evaluation{}", since, since == 1 ? "" : "s");
    if (step == 0) return fmt::format("--patience {}: {} without a finite loss", patience, ago);
    return fmt::format("--patience {}: {} without a lower validation loss than {:.4f} of step {}", patience, ago, loss,
                       step);
}

}  // namespace teon
