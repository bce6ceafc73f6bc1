#include "train/best.h"

#include "files/json.h"

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
    return json_text({{"loss", step > 0 ? Json(loss) : Json()}, {"step", step}, {"since", since}});
}

BestLoss BestLoss::parse(const std::string& text) {
    const Json j = parse_json(text, "the best loss");
    return {j["loss"].is_null() ? BestLoss().loss : j["loss"].get<double>(), j["step"].get<int64_t>(),
            j["since"].get<int64_t>()};
}

}  // namespace teon
