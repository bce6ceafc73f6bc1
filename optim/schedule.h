// Learning-rate schedules as pure functions of the step, so that resuming needs no state.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>

#include "base/enum_rows.h"

namespace teon {

enum class ScheduleKind { cosine, linear, constant, constant_linear, constant_sqrt, count };

struct ScheduleRow {
    ScheduleKind kind;
    std::string_view name;
    double min_lr_ratio;             // default of --min-lr-ratio
    bool holds_peak;                 // until --constant-ratio of all steps; till then a run can change its length
    double (*fall)(double decayed);  // from 1 at 0 to 0 at 1, the end of the run; nullptr: no decay
};

inline double cosine_fall(double decayed) { return 0.5 * (1.0 + std::cos(std::numbers::pi * decayed)); }
inline double linear_fall(double decayed) { return 1.0 - decayed; }
inline double sqrt_fall(double decayed) { return 1.0 - std::sqrt(decayed); }

// constant_linear is the paper's schedule for GPT-Large (arXiv 2601.23261, appendix), after PolarExpress' experiments.
// constant_sqrt is the cooldown "1-sqrt" of arXiv 2405.18392.
inline constexpr ScheduleRow kSchedules[] = {
    {ScheduleKind::cosine, "cosine", 0.1, false, cosine_fall},
    {ScheduleKind::linear, "linear", 0, false, linear_fall},
    {ScheduleKind::constant, "constant", 0, false, nullptr},
    {ScheduleKind::constant_linear, "constant-linear", 0, true, linear_fall},
    {ScheduleKind::constant_sqrt, "constant-sqrt", 0, true, sqrt_fall},
};
template <>
inline constexpr auto kEnumNames<ScheduleKind> = names_of_rows(kSchedules);

constexpr const ScheduleRow& row_of(ScheduleKind kind) { return kSchedules[static_cast<size_t>(kind)]; }

struct Schedule {
    ScheduleKind kind = ScheduleKind::cosine;
    double warmup_ratio = 0.1;    // of all steps: linear from 0 to the peak
    double constant_ratio = 0.4;  // rows that hold the peak: until this share of all steps (including warmup)
    double min_lr_ratio = 0.1;    // the end of the decay as a share of the peak
    int64_t warmup_steps = -1;    // of --warmup-steps, or of a run whose length changed; -1: use the ratio
};

// The number of updates in the warmup, and of those before the decay (`total` if there is no decay).
int64_t warmup_steps(const Schedule& schedule, int64_t total);
int64_t steps_before_decay(const Schedule& schedule, int64_t total);

// Returns the factor of the peak learning rate, in [0, 1], for update `step` (counted from 0) of `total`. Ratios are
// rounded to the nearest step. A warmup of W steps gives (step + 1) / W, so that no update has a factor of 0. The decay
// starts at the end of the warmup or constant part and reaches min_lr_ratio at step = total. Throws UsageError unless
// the ratios are in [0, 1] and total > 0.
double lr_factor(const Schedule& schedule, int64_t step, int64_t total);

}  // namespace teon
