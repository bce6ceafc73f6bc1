#include "kernels/adamw.h"
#include "kernels/lion.h"
#include "test/oracle/adamw.h"
#include "test/oracle/lion.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

// The bias corrections, the square root, the quotient and the products of the rate's factors round once each, which
// Tracked counts.
static constexpr double kRoundings = 4.0;
static constexpr float kLr = 1e-2f;
static constexpr float kBeta1 = 0.9f;
static constexpr float kBeta2 = 0.95f;
static constexpr float kEps = 1e-8f;
static constexpr float kDecay = 0.1f;
static constexpr UpdateRate kRate{kLr, 1.0f, kDecay};

// Learning rates with the schedule's factor.
struct RateCase {
    UpdateRate rate;
    float lr_factor;
    OracleRate oracle() const { return {rate.lr, rate.lr_scale, rate.weight_decay, rate.cautious, lr_factor}; }
};
static constexpr RateCase kRateCases[] = {
    {kRate, 1.0f}, {{kLr, 0.3f, 40 * kDecay}, 0.7f}, {{kLr, 3.0f, 40 * kDecay, true}, 0.7f}};

static StepControl control_after(int t, float scale, float lr_factor = 1) {
    return {.grad_norm = 1.0f,
            .scale = scale,
            .updates = t,
            .bias_correction1 = static_cast<float>(1.0 - std::pow(double(kBeta1), t)),
            .bias_correction2 = static_cast<float>(1.0 - std::pow(double(kBeta2), t)),
            .lr_factor = lr_factor};
}

// Squares of the values: second moments are not negative.
static std::vector<float> squares(std::vector<float> values) {
    for (float& v : values) v *= v;
    return values;
}

TEMPLATE_TEST_CASE(
    "kernels/adamw: three updates match the oracle at every rate, and the working weights are the rounded masters", "",
    float, bf16) {
    using T = TestType;
    Stream stream;
    for (const RateCase& c : kRateCases)
        for (int64_t n : {1, 31, 33, 97, 128, 257, 768, 70001}) {
            INFO("n = " << n << ", factor of the update " << c.rate.lr_scale);
            const auto weight = random_values<float>(n, 1);
            const auto m = random_values<float>(n, 2);
            const auto v = squares(random_values<float>(n, 3));
            Guarded<float> master(weight, stream);
            Guarded<float> m_device(m, stream);
            Guarded<float> v_device(v, stream);
            Guarded<float> grad(n, stream);
            Guarded<T> work(n, stream);
            AdamwState<Tracked> expected{widen<Tracked>(weight), widen<Tracked>(m), widen<Tracked>(v)};
            for (int t = 1; t <= 3; ++t) {
                const auto gradient = random_values<float>(n, 10 + t);
                const float scale = t == 2 ? 0.25f : 1.0f;
                grad.set(gradient);
                Guarded<StepControl> control(std::vector<StepControl>{control_after(t, scale, c.lr_factor)}, stream);
                teon::adamw_update(master.data(), work.data(), m_device.data(), v_device.data(), grad.data(),
                                   control.data(), n, c.rate, {kBeta1, kBeta2, kEps}, stream);
                test::adamw_update(expected, widen<Tracked>(gradient), scale, t, c.oracle(), kBeta1, kBeta2, kEps);
                REQUIRE(same_bits(grad.get(), gradient));
            }
            // No random update is so close to zero that rounding decides about cautious decay.
            REQUIRE(compare(master.get(), expected.weight, kRoundings));
            REQUIRE(compare(m_device.get(), expected.m, kRoundings));
            REQUIRE(compare(v_device.get(), expected.v, kRoundings));
            std::vector<T> rounded;
            for (float w : master.get()) rounded.push_back(T(w));
            REQUIRE(same_bits(work.get(), rounded));
        }
}

TEST_CASE("kernels/adamw: the update is the same without working weights and at unaligned addresses") {
    Stream stream;
    const int64_t n = 1001;
    const auto weight = random_values<float>(n, 1);
    const auto m = random_values<float>(n, 2);
    const auto gradient = random_values<float>(n, 4);
    const auto v = squares(random_values<float>(n, 3));
    Guarded<StepControl> control(std::vector<StepControl>{control_after(5, 0.5f)}, stream);
    auto update = [&](int64_t shift, bool with_work) {
        auto moved = [&](std::vector<float> values) {
            values.insert(values.begin(), shift, 0.0f);
            return Guarded<float>(values, stream);
        };
        Guarded<float> master = moved(weight);
        Guarded<float> first = moved(m);
        Guarded<float> second = moved(v);
        Guarded<float> grad = moved(gradient);
        Guarded<float> work(n, stream);
        float* no_work = nullptr;
        teon::adamw_update(master.data() + shift, with_work ? work.data() : no_work, first.data() + shift,
                           second.data() + shift, grad.data() + shift, control.data(), n, kRate, {kBeta1, kBeta2, kEps},
                           stream);
        auto result = master.get();
        return std::vector<float>(result.begin() + shift, result.end());
    };
    const auto expected = update(0, true);
    REQUIRE(same_bits(update(0, false), expected));
    for (int64_t shift : {1, 2, 3}) REQUIRE(same_bits(update(shift, true), expected));
}

TEST_CASE("kernels/adamw: a skipped step changes nothing") {
    Stream stream;
    const int64_t n = 257;
    const auto values = squares(random_values<float>(n, 1));
    Guarded<float> master(values, stream);
    Guarded<float> work(values, stream);
    Guarded<float> m(values, stream);
    Guarded<float> v(values, stream);
    Guarded<float> grad(std::vector<float>(n, NAN), stream);
    StepControl skip = control_after(3, 0.0f);
    skip.skip = 1;
    Guarded<StepControl> control(std::vector<StepControl>{skip}, stream);
    teon::adamw_update(master.data(), work.data(), m.data(), v.data(), grad.data(), control.data(), n, kRate,
                       {kBeta1, kBeta2, kEps}, stream);
    for (const Guarded<float>* buffer : {&master, &work, &m, &v}) REQUIRE(same_bits(buffer->get(), values));
}

TEST_CASE("kernels/adamw: the same bits on any number of OS threads") {
    Stream stream;
    const int64_t n = 20011;
    const auto weight = random_values<float>(n, 1);
    const auto m = random_values<float>(n, 2);
    const auto v = squares(random_values<float>(n, 3));
    Guarded<float> master(weight, stream);
    Guarded<float> m_device(m, stream);
    Guarded<float> v_device(v, stream);
    Guarded<float> grad(random_values<float>(n, 4), stream);
    Guarded<bf16> work(n, stream);
    Guarded<StepControl> control(std::vector<StepControl>{control_after(5, 0.5f)}, stream);
    REQUIRE(same_with_any_threads([&] {
        master.set(weight);
        m_device.set(m);
        v_device.set(v);
        teon::adamw_update(master.data(), work.data(), m_device.data(), v_device.data(), grad.data(), control.data(), n,
                           kRate, {kBeta1, kBeta2, kEps}, stream);
        return bytes_of(master.get(), work.get(), m_device.get(), v_device.get());
    }));
}

TEST_CASE("kernels/adamw: cautious weight decay applies only to weights that the update moves towards zero") {
    Stream stream;
    const int64_t n = 1003;
    const auto weight = random_values<float>(n, 1);
    const auto gradient = random_values<float>(n, 2);
    Guarded<StepControl> control(std::vector<StepControl>{control_after(1, 1.0f)}, stream);
    auto updated = [&](const UpdateRate& rate) {
        Guarded<float> master(weight, stream);
        Guarded<float> m(std::vector<float>(n, 0.0f), stream);
        Guarded<float> v(std::vector<float>(n, 0.0f), stream);
        Guarded<float> grad(gradient, stream);
        float* no_work = nullptr;
        teon::adamw_update(master.data(), no_work, m.data(), v.data(), grad.data(), control.data(), n, rate,
                           {kBeta1, kBeta2, kEps}, stream);
        return master.get();
    };
    const auto plain = updated({kLr, 1.0f, 0.0f});
    const auto decayed = updated(kRate);
    const auto cautious = updated({kLr, 1.0f, kDecay, true});
    int kept = 0;
    for (int64_t i = 0; i < n; ++i) {
        // The first update has the sign of the gradient.
        const bool decays = gradient[i] * weight[i] >= 0;
        REQUIRE(cautious[i] == (decays ? decayed[i] : plain[i]));
        kept += !decays;
    }
    REQUIRE((kept > n / 3 && kept < 2 * n / 3));
}

// AdamW's update is 0 without gradient and momentum, Lion's where the interpolation is 0.
TEST_CASE("kernels/adamw: with cautious weight decay, an update of exactly zero decays the weight") {
    Stream stream;
    const std::vector<float> weight = {1.0f, -1.0f, 8.0f, 0.0f};
    const std::vector<float> none(4, 0.0f);
    const std::vector<float> expected = {0.75f, -0.75f, 6.0f, 0.0f};
    const UpdateRate rate{0.5f, 1.0f, 0.5f, true};
    Guarded<StepControl> control(std::vector<StepControl>{control_after(1, 1.0f)}, stream);
    Guarded<float> master(weight, stream);
    Guarded<float> m(none, stream);
    Guarded<float> v(none, stream);
    Guarded<float> grad(none, stream);
    float* no_work = nullptr;
    teon::adamw_update(master.data(), no_work, m.data(), v.data(), grad.data(), control.data(), 4, rate,
                       {kBeta1, kBeta2, kEps}, stream);
    REQUIRE(same_bits(master.get(), expected));
    master.set(weight);
    teon::lion_update(master.data(), no_work, m.data(), grad.data(), control.data(), 4, rate, 0.9f, 0.99f, stream);
    REQUIRE(same_bits(master.get(), expected));
}

TEMPLATE_TEST_CASE(
    "kernels/lion: three updates match the oracle at every rate, and the working weights are the rounded masters", "",
    float, bf16) {
    using T = TestType;
    Stream stream;
    for (int64_t n : {1, 31, 33, 128, 70001}) {
        for (const RateCase& c : kRateCases) {
            INFO("n = " << n << ", factor of the update " << c.rate.lr_scale);
            Guarded<float> master(random_values<float>(n, 1), stream);
            Guarded<float> m(random_values<float>(n, 2), stream);
            Guarded<float> grad(n, stream);
            Guarded<T> work(n, stream);
            LionState<Tracked> expected{widen<Tracked>(master.get()), widen<Tracked>(m.get())};
            for (int t = 1; t <= 3; ++t) {
                const auto gradient = random_values<float>(n, 10 + t);
                const float scale = t == 2 ? 0.25f : 1.0f;
                grad.set(gradient);
                Guarded<StepControl> control(std::vector<StepControl>{control_after(t, scale, c.lr_factor)}, stream);
                teon::lion_update(master.data(), work.data(), m.data(), grad.data(), control.data(), n, c.rate, 0.9f,
                                  0.99f, stream);
                test::lion_update(expected, widen<Tracked>(gradient), scale, c.oracle(), 0.9f, 0.99f);
            }
            // No random interpolation is so close to zero that rounding decides its sign.
            REQUIRE(compare(master.get(), expected.weight, kRoundings));
            REQUIRE(compare(m.get(), expected.m, kRoundings));
            std::vector<T> rounded;
            for (float w : master.get()) rounded.push_back(T(w));
            REQUIRE(same_bits(work.get(), rounded));
        }
    }
}

TEST_CASE("kernels/lion: a zero interpolation moves no weight, NaN is not hidden, a skipped step changes nothing") {
    Stream stream;
    Guarded<float> master(std::vector<float>{1, 1, 1}, stream);
    Guarded<float> m(std::vector<float>{0, 0.5f, NAN}, stream);
    Guarded<float> grad(std::vector<float>{0, 1, 0}, stream);
    float* no_work = nullptr;
    StepControl skip = control_after(1, 1.0f);
    skip.skip = 1;
    for (const StepControl& c : {skip, control_after(1, 1.0f)}) {
        Guarded<StepControl> control(std::vector<StepControl>{c}, stream);
        teon::lion_update(master.data(), no_work, m.data(), grad.data(), control.data(), 3, {0.25f}, 0.9f, 0.99f,
                          stream);
        const auto w = master.get();
        REQUIRE(w[0] == 1);
        REQUIRE(w[1] == (c.skip ? 1 : 0.75f));
        REQUIRE(std::isnan(w[2]) == !c.skip);
    }
}
