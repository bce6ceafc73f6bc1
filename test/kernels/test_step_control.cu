#include "kernels/step_control.h"
#include "test/support/catch.h"
#include "test/support/compare.h"

using namespace teon;
using namespace teon::test;

static constexpr float kBeta1 = 0.9f;
static constexpr float kBeta2 = 0.95f;

TEST_CASE("kernels/step_control: clips, counts updates and corrects the bias") {
    Stream stream;
    Guarded<StepControl> control(std::vector<StepControl>{{}}, stream);
    Guarded<float> norm_squared(1, stream);
    Guarded<float> loss(std::vector<float>{2.5f}, stream);
    auto step = [&](float norm, float clip) {
        norm_squared.set({norm * norm});
        step_control(control.data(), norm_squared.data(), loss.data(), 1.0f, clip, 0.0f, kBeta1, kBeta2, stream);
        return control.get()[0];
    };
    const struct {
        float norm, clip, scale;
    } cases[] = {{4.0f, 1.0f, 0.25f}, {0.5f, 1.0f, 1.0f}, {1.0f, 1.0f, 1.0f}, {4.0f, 0.0f, 1.0f}, {0.0f, 1.0f, 1.0f}};
    int t = 0;
    for (const auto& c : cases) {
        const StepControl s = step(c.norm, c.clip);
        ++t;
        REQUIRE(s.grad_norm == c.norm);
        REQUIRE(s.scale == c.scale);
        REQUIRE(s.skip == 0);
        REQUIRE(s.updates == t);
        // Rounded once from double. The betas are floats.
        REQUIRE(std::abs(s.bias_correction1 - (1.0 - std::pow(double(kBeta1), t))) <= 0x1p-24);
        REQUIRE(std::abs(s.bias_correction2 - (1.0 - std::pow(double(kBeta2), t))) <= 0x1p-24);
    }
}

TEST_CASE("kernels/step_control: skips a step whose loss or gradient is not finite, and recovers") {
    Stream stream;
    Guarded<StepControl> control(std::vector<StepControl>{{}}, stream);
    Guarded<float> norm_squared(1, stream);
    Guarded<float> loss(1, stream);
    auto step = [&](float norm, float loss_value) {
        norm_squared.set({norm});
        loss.set({loss_value});
        step_control(control.data(), norm_squared.data(), loss.data(), 1.0f, 1.0f, 0.0f, kBeta1, kBeta2, stream);
        return control.get()[0];
    };
    REQUIRE(step(4.0f, 1.0f).updates == 1);
    const StepControl good = step(4.0f, 1.0f);
    for (auto [norm, loss_value] :
         {std::pair{NAN, 1.0f}, {INFINITY, 1.0f}, {4.0f, NAN}, {4.0f, INFINITY}, {-1.0f, 1.0f}}) {
        const StepControl bad = step(norm, loss_value);
        REQUIRE(bad.skip == 1);
        REQUIRE(bad.scale == 0.0f);
        REQUIRE(bad.updates == 2);
        REQUIRE(bad.bias_correction1 == good.bias_correction1);
    }
    const StepControl after = step(4.0f, 1.0f);
    REQUIRE(after.skip == 0);
    REQUIRE(after.updates == 3);
    REQUIRE(after.scale == 0.5f);
}
