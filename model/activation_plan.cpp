#include "model/activation_plan.h"

#include "runtime/device.h"

namespace teon {

std::string_view name_of(Recompute r) {
    switch (r) {
        case Recompute::none:
            return "none";
        case Recompute::cheap:
            return "cheap";
        case Recompute::block:
            return "block";
        case Recompute::automatic:
            return "auto";
    }
    return "?";
}

int ActivationPlan::add(std::string name, int64_t bytes, int copies, std::string_view lifetime) {
    rows_.push_back({std::move(name), static_cast<int64_t>(Arena::aligned(bytes)), copies, lifetime});
    return static_cast<int>(rows_.size()) - 1;
}

int64_t ActivationPlan::saved_bytes() const {
    int64_t sum = 0;
    for (const ActivationRow& row : rows_) sum += row.lifetime == "saved" ? row.total() : 0;
    return sum;
}

int64_t ActivationPlan::total_bytes() const {
    int64_t sum = 0;
    for (const ActivationRow& row : rows_) sum += row.total();
    return sum;
}

int64_t ActivationPlan::scratch_bytes() const { return total_bytes() - saved_bytes(); }

}  // namespace teon
