#include "kernels/ops.h"
#include "test/catch.h"
#include "test/compare.h"
#include "test/oracle/adamw.h"
#include "test/schedule.h"

using namespace teon;
using namespace teon::test;

// The bias corrections, the root and the quotient are rounded once each; Tracked counts them.
static constexpr double kRoundings = 4.0;
static constexpr float kLr = 1e-2f, kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kDecay = 0.1f;

static StepControl control_after(int t, float scale) {
    return {1.0f,
            scale,
            0,
            t,
            static_cast<float>(1.0 - std::pow(double(kBeta1), t)),
            static_cast<float>(1.0 - std::pow(double(kBeta2), t))};
}

// Squares of a few values: positive, as second moments are.
static std::vector<float> squares(std::vector<float> values) {
    for (float& v : values) v *= v;
    return values;
}

TEMPLATE_TEST_CASE("kernels/adamw: three updates match the oracle, and the working weights are the rounded masters", "",
                   float, bf16) {
    using T = TestType;
    Stream stream;
    for (int64_t n : {1, 31, 33, 97, 128, 257, 768, 70001}) {
        INFO("n = " << n);
        const auto weight = random_values<float>(n, 1), m = random_values<float>(n, 2);
        const auto v = squares(random_values<float>(n, 3));
        Guarded<float> master(weight, stream), m_device(m, stream), v_device(v, stream), grad(n, stream);
        Guarded<T> work(n, stream);
        AdamwState<Tracked> expected{widen<Tracked>(weight), widen<Tracked>(m), widen<Tracked>(v)};
        for (int t = 1; t <= 3; t++) {
            const auto gradient = random_values<float>(n, 10 + t);
            const float scale = t == 2 ? 0.25f : 1.0f;
            grad.set(gradient);
            Guarded<StepControl> control(std::vector<StepControl>{control_after(t, scale)}, stream);
            teon::adamw_update(master.data(), work.data(), m_device.data(), v_device.data(), grad.data(),
                               control.data(), n, kLr, 1.0f, kBeta1, kBeta2, kEps, kDecay, stream);
            test::adamw_update(expected, widen<Tracked>(gradient), scale, t, kLr, kBeta1, kBeta2, kEps, kDecay);
            REQUIRE(same_bits(grad.get(), gradient));
        }
        REQUIRE(compare(master.get(), expected.weight, kRoundings));
        REQUIRE(compare(m_device.get(), expected.m, kRoundings));
        REQUIRE(compare(v_device.get(), expected.v, kRoundings));
        std::vector<T> rounded;
        for (float w : master.get()) rounded.push_back(T(w));
        REQUIRE(same_bits(work.get(), rounded));
    }
}

TEST_CASE("kernels/adamw: without working weights, or at an address without alignment, the update is the same") {
    Stream stream;
    const int64_t n = 1001;
    const auto weight = random_values<float>(n, 1), m = random_values<float>(n, 2),
               gradient = random_values<float>(n, 4);
    const auto v = squares(random_values<float>(n, 3));
    Guarded<StepControl> control(std::vector<StepControl>{control_after(5, 0.5f)}, stream);
    auto update = [&](int64_t shift, bool with_work) {
        auto moved = [&](std::vector<float> values) {
            values.insert(values.begin(), shift, 0.0f);
            return Guarded<float>(values, stream);
        };
        Guarded<float> master = moved(weight), first = moved(m), second = moved(v), grad = moved(gradient);
        Guarded<float> work(n, stream);
        float* no_work = nullptr;
        teon::adamw_update(master.data() + shift, with_work ? work.data() : no_work, first.data() + shift,
                           second.data() + shift, grad.data() + shift, control.data(), n, kLr, 1.0f, kBeta1, kBeta2,
                           kEps, kDecay, stream);
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
    Guarded<float> master(values, stream), work(values, stream), m(values, stream), v(values, stream);
    Guarded<float> grad(std::vector<float>(n, NAN), stream);
    StepControl skip = control_after(3, 0.0f);
    skip.skip = 1;
    Guarded<StepControl> control(std::vector<StepControl>{skip}, stream);
    teon::adamw_update(master.data(), work.data(), m.data(), v.data(), grad.data(), control.data(), n, kLr, 1.0f,
                       kBeta1, kBeta2, kEps, kDecay, stream);
    for (const Guarded<float>* buffer : {&master, &work, &m, &v}) REQUIRE(same_bits(buffer->get(), values));
}

TEST_CASE("kernels/adamw: the same bits under every schedule") {
    Stream stream;
    const int64_t n = 20011;
    const auto weight = random_values<float>(n, 1), m = random_values<float>(n, 2),
               v = squares(random_values<float>(n, 3));
    Guarded<float> master(weight, stream), m_device(m, stream), v_device(v, stream),
        grad(random_values<float>(n, 4), stream);
    Guarded<bf16> work(n, stream);
    Guarded<StepControl> control(std::vector<StepControl>{control_after(5, 0.5f)}, stream);
    REQUIRE(same_under_all_schedules([&] {
        master.set(weight);
        m_device.set(m);
        v_device.set(v);
        teon::adamw_update(master.data(), work.data(), m_device.data(), v_device.data(), grad.data(), control.data(), n,
                           kLr, 1.0f, kBeta1, kBeta2, kEps, kDecay, stream);
        return bytes_of(master.get(), work.get(), m_device.get(), v_device.get());
    }));
}
