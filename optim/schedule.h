// Learning-rate schedules as pure functions of the step, so that resuming needs no state.
#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace teon {

// constant_linear is the paper's schedule for GPT-Large (arXiv 2601.23261, appendix), after PolarExpress' experiments.
enum class ScheduleKind { cosine, linear, constant, constant_linear };
template <>
inline constexpr auto kEnumNames<ScheduleKind> = enum_names<ScheduleKind>({{ScheduleKind::cosine, "cosine"},
                                                                           {ScheduleKind::linear, "linear"},
                                                                           {ScheduleKind::constant, "constant"},
                                                                           {ScheduleKind::constant_linear,
                                                                            "constant-linear"}});

struct Schedule {
    ScheduleKind kind = ScheduleKind::cosine;
    double warmup_ratio = 0.1;    // of all steps: linear from 0 to the peak
    double constant_ratio = 0.4;  // constant-linear: hold the peak until this share of all steps (including warmup)
    double min_lr_ratio = 0.1;    // the end of the decay as a share of the peak; constant has no decay
    int64_t warmup_steps = -1;    // replaces warmup_ratio in a run whose length changed; -1: use the ratio
};

// The default of --min-lr-ratio: 0.1 for cosine, 0 otherwise.
double default_min_lr_ratio(ScheduleKind kind);

// The number of updates in the warmup, and of those before the decay (`total` if there is no decay).
int64_t warmup_steps(const Schedule& schedule, int64_t total);
int64_t steps_before_decay(const Schedule& schedule, int64_t total);

// Returns the factor of the peak learning rate, in [0, 1], for update `step` (counted from 0) of `total`. Ratios are
// rounded to the nearest step. A warmup of W steps gives (step + 1) / W, so that no update has a factor of 0. The decay
// starts at the end of the warmup or constant part and reaches min_lr_ratio at step = total. Throws UsageError unless
// the ratios are in [0, 1] and total > 0.
double lr_factor(const Schedule& schedule, int64_t step, int64_t total);

}  // namespace teon
