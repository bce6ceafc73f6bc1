// Learning-rate schedules: a factor in [0, 1] of the peak rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace teon {

// constant_linear: constant for constant_ratio of the steps (warmup included), then linear to the floor; the paper's
// schedule for GPT-Large, after PolarExpress' experiments.
enum class ScheduleKind { cosine, linear, constant, constant_linear };
std::string_view name_of(ScheduleKind k);

struct Schedule {
    ScheduleKind kind = ScheduleKind::cosine;
    double warmup_ratio = 0.1;    // of the steps; linear from 1 / warmup steps to 1
    double constant_ratio = 0.4;  // constant_linear only
    double min_lr_ratio = 0.1;    // the floor, of the peak rate (ignored by constant)
};

// Factor of step (0-based) of total. The decay begins at 1 after the warmup and would reach the floor at step `total`,
// so that the last step still moves. A warmup of w steps takes ceil(warmup_ratio * total).
double lr_factor(const Schedule& s, int64_t step, int64_t total);

}  // namespace teon
