#include "train/best.h"

#include <nlohmann/json.hpp>

#include "files/json_text.h"

namespace teon {

bool BestLoss::count(const LoggedEvaluation& e) {
    ++since;
    if (!(e.loss < loss)) return false;
    *this = {e.loss, e.step, 0};
    return true;
}

std::string BestLoss::out_of_patience(int64_t patience) const {
    if (patience == 0 || since < patience) return "";
    const std::string ago = fmt::format("{} evaluation{}", since, since == 1 ? "" : "s");
    if (step == 0) return fmt::format("--patience {}: {} without a finite loss", patience, ago);
    return fmt::format("--patience {}: {} without a lower validation loss than {:.4f} of step {}", patience, ago, loss,
                       step);
}

std::string BestLoss::text() const {
    return json_text(nlohmann::json{step > 0 ? nlohmann::json(loss) : nlohmann::json(), step, since});
}

BestLoss BestLoss::parse(const std::string& text) {
    const nlohmann::json j = json_of_text(text);
    BestLoss best{BestLoss().loss, j[1].get<int64_t>(), j[2].get<int64_t>()};
    if (!j[0].is_null()) best.loss = j[0].get<double>();
    return best;
}

}  // namespace teon
