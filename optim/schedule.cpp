#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace teon {

std::string_view name_of(ScheduleKind k) {
    switch (k) {
        case ScheduleKind::cosine:
            return "cosine";
        case ScheduleKind::linear:
            return "linear";
        case ScheduleKind::constant:
            return "constant";
        case ScheduleKind::constant_linear:
            return "constant-linear";
    }
    return "?";
}

double lr_factor(const Schedule& s, int64_t step, int64_t total) {
    const int64_t warmup = static_cast<int64_t>(std::ceil(s.warmup_ratio * static_cast<double>(total)));
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (s.kind == ScheduleKind::constant) return 1.0;
    int64_t begin = warmup;
    if (s.kind == ScheduleKind::constant_linear)
        begin = std::max(warmup, static_cast<int64_t>(std::ceil(s.constant_ratio * static_cast<double>(total))));
    if (step < begin || begin >= total) return 1.0;
    const double x = std::min(1.0, static_cast<double>(step - begin) / static_cast<double>(total - begin));
    const double decay = s.kind == ScheduleKind::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * x)) : 1.0 - x;
    return s.min_lr_ratio + (1.0 - s.min_lr_ratio) * decay;
}

}  // namespace teon
