#include "optim/schedule.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/text.h"

namespace teon {

namespace {
int64_t steps_of(double ratio, int64_t total) { return std::llround(ratio * static_cast<double>(total)); }
}  // namespace

int64_t warmup_steps(const Schedule& s, int64_t total) {
    return s.warmup_steps >= 0 ? s.warmup_steps : steps_of(s.warmup_ratio, total);
}

int64_t steps_before_decay(const Schedule& s, int64_t total) {
    const ScheduleRow& row = row_of(s.kind);
    if (!row.fall) return total;
    const int64_t warmup = warmup_steps(s, total);
    return row.holds_peak ? std::max(warmup, steps_of(s.constant_ratio, total)) : warmup;
}

double lr_factor(const Schedule& s, int64_t step, int64_t total) {
    auto check_ratio = [](const char* flag, double ratio) {
        CHECK_USAGE(ratio >= 0 && ratio <= 1, "{} is {}; give a number from 0 to 1", flag, ratio);
    };
    check_ratio("--warmup-ratio", s.warmup_ratio);
    check_ratio("--constant-ratio", s.constant_ratio);
    check_ratio("--min-lr-ratio", s.min_lr_ratio);
    CHECK_USAGE(total > 0, "a schedule needs at least one step, found {}", total);
    CHECK(step >= 0, "schedule: step {} is negative", step);

    const int64_t warmup = warmup_steps(s, total);
    const int64_t begin = steps_before_decay(s, total);
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    const auto fall = row_of(s.kind).fall;
    if (!fall || step < begin) return 1.0;
    const double decayed = step >= total ? 1.0 : static_cast<double>(step - begin) / static_cast<double>(total - begin);
    return s.min_lr_ratio + (1.0 - s.min_lr_ratio) * fall(decayed);
}

}  // namespace teon
