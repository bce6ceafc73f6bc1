#include "optim/schedule.h"

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/check.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

// A factor takes a few float64 operations; 1e-12 is thousands of roundings.
constexpr double kTolerance = 1e-12;

TEST_CASE("optim/schedule: warmup rises linearly from above zero to the peak") {
    for (const ScheduleRow& row : kSchedules) {
        Schedule s{row.kind, 0.1, 0.4, 0.0};
        for (int step = 0; step < 10; ++step)
            REQUIRE(std::abs(lr_factor(s, step, 100) - (step + 1) / 10.0) <= kTolerance);
        REQUIRE(lr_factor(s, 10, 100) == 1.0);
    }
}

TEST_CASE("optim/schedule: cosine and linear decay follow their formulas down to the minimum") {
    const int64_t total = 200;
    Schedule cosine{ScheduleKind::cosine, 0.25, 0, 0.1};
    Schedule linear{ScheduleKind::linear, 0.25, 0, 0.2};
    for (int64_t step = 50; step <= total; ++step) {
        double p = static_cast<double>(step - 50) / 150.0;
        REQUIRE(std::abs(lr_factor(cosine, step, total) - (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * p)))) <=
                kTolerance);
        REQUIRE(std::abs(lr_factor(linear, step, total) - (1.0 - 0.8 * p)) <= kTolerance);
    }
    REQUIRE(std::abs(lr_factor(cosine, total + 7, total) - 0.1) <= kTolerance);
    REQUIRE(std::abs(lr_factor(linear, total + 7, total) - 0.2) <= kTolerance);
}

TEST_CASE("optim/schedule: constant holds the peak; constant-linear holds it for 40% and falls to zero") {
    Schedule constant{ScheduleKind::constant, 0.0, 0.4, 0.0};
    Schedule held{ScheduleKind::constant_linear, 0.0, 0.4, 0.0};
    for (int64_t step = 0; step < 50; ++step) {
        REQUIRE(lr_factor(constant, step, 50) == 1.0);
        double expected = step < 20 ? 1.0 : static_cast<double>(50 - step) / 30.0;
        REQUIRE(std::abs(lr_factor(held, step, 50) - expected) <= kTolerance);
    }
    REQUIRE(lr_factor(held, 50, 50) == 0.0);
    REQUIRE(lr_factor(held, 49, 50) > 0.0);
}

// arXiv 2405.18392, equation 1: 1 - sqrt((n - (N - N_decay)) / N_decay), in float64.
TEST_CASE("optim/schedule: constant-sqrt holds the peak and falls by the square root of the decayed share") {
    const Schedule s{ScheduleKind::constant_sqrt, 0.1, 0.6, 0.05};
    for (int64_t step = 10; step <= 100; ++step) {
        const double share = step < 60 ? 0 : static_cast<double>(step - 60) / 40;
        REQUIRE(std::abs(lr_factor(s, step, 100) - (0.05 + 0.95 * (1 - std::sqrt(share)))) <= kTolerance);
    }
    REQUIRE(lr_factor(s, 70, 100) == 0.05 + 0.95 * 0.5);
    REQUIRE(std::abs(lr_factor(s, 107, 100) - 0.05) <= kTolerance);
    REQUIRE(steps_before_decay(s, 100) == 60);
}

TEST_CASE("optim/schedule: every decay begins at the peak, falls and ends at the minimum") {
    REQUIRE(std::size(kSchedules) == 5);
    for (const ScheduleRow& row : kSchedules) {
        INFO(row.name);
        if (!row.fall) continue;
        REQUIRE(row.fall(0) == 1);
        REQUIRE(std::abs(row.fall(1)) <= kTolerance);
        for (int i = 1; i <= 100; ++i) REQUIRE(row.fall(i / 100.0) < row.fall((i - 1) / 100.0));
    }
}

TEST_CASE("optim/schedule: a warmup longer than the constant part postpones the decay") {
    Schedule s{ScheduleKind::constant_linear, 0.5, 0.2, 0.0};
    REQUIRE(lr_factor(s, 49, 100) == 1.0);
    REQUIRE(lr_factor(s, 50, 100) == 1.0);
    REQUIRE(std::abs(lr_factor(s, 75, 100) - 0.5) <= kTolerance);
}

// The warmup of a run that was begun with another length, where the ratio may have rounded to no step at all.
TEST_CASE("optim/schedule: a number of warmup steps replaces the ratio, also none") {
    for (const ScheduleRow& row : kSchedules)
        for (const int64_t steps : {0, 1, 3}) {
            INFO(row.name << ", " << steps);
            Schedule s{row.kind, 0.25, 0.5, 0.1};
            s.warmup_steps = steps;
            const int64_t before_decay = row.holds_peak ? 20 : steps;
            REQUIRE(warmup_steps(s, 40) == steps);
            if (row.fall) REQUIRE(steps_before_decay(s, 40) == before_decay);
            for (int64_t step = 0; step < steps; ++step)
                REQUIRE(std::abs(lr_factor(s, step, 40) - static_cast<double>(step + 1) / steps) <= kTolerance);
            REQUIRE(lr_factor(s, steps, 40) == 1.0);
        }
}

TEST_CASE("optim/schedule: factors stay in (0, 1] for one step, only warmup and no warmup") {
    for (double warmup : {0.0, 0.3, 1.0})
        for (double constant : {0.0, 1.0})
            for (int64_t total : {1, 2, 3, 7})
                for (const ScheduleRow& row : kSchedules)
                    for (int64_t step = 0; step < total; ++step) {
                        double f = lr_factor(Schedule{row.kind, warmup, constant, 0.0}, step, total);
                        REQUIRE((f > 0.0 && f <= 1.0));
                    }
}

TEST_CASE("optim/schedule: ratios outside of 0 to 1 and empty runs are usage errors that name the flag") {
    REQUIRE_THROWS_AS(lr_factor(Schedule{ScheduleKind::cosine, -0.1, 0, 0}, 0, 10), UsageError);
    REQUIRE_THROWS_AS(lr_factor(Schedule{ScheduleKind::cosine, 0, 1.5, 0}, 0, 10), UsageError);
    REQUIRE_THROWS_AS(lr_factor(Schedule{ScheduleKind::cosine, 0, 0, NAN}, 0, 10), UsageError);
    REQUIRE_THROWS_AS(lr_factor(Schedule{}, 0, 0), UsageError);
    REQUIRE(contains(error_of([] { lr_factor(Schedule{ScheduleKind::cosine, 2, 0, 0}, 0, 10); }), "--warmup-ratio"));
    REQUIRE(row_of(ScheduleKind::cosine).min_lr_ratio == 0.1);
    REQUIRE(row_of(ScheduleKind::linear).min_lr_ratio == 0.0);
    REQUIRE(name_of(ScheduleKind::constant_linear) == "constant-linear");
}
