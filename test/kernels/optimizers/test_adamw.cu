#include "kernels/optimizers/adamw.h"
#include "kernels/optimizers/lion.h"
#include "test/oracle/adamw.h"
#include "test/oracle/lion.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

// The bias corrections, the square root, the quotient and the products of the rate's factors round once each, which
// Tracked counts.
constexpr double kRoundings = 4.0;
constexpr float kLr = 1e-2f;
constexpr float kBeta1 = 0.9f;
constexpr float kBeta2 = 0.95f;
constexpr float kEps = 1e-8f;
constexpr float kDecay = 0.1f;
constexpr UpdateRate kRate{kLr, 1.0f, kDecay};

// Learning rates with the schedule's factor.
struct RateCase {
    UpdateRate rate;
    float lr_factor;
    OracleRate oracle() const { return {rate.lr, rate.lr_scale, rate.weight_decay, rate.cautious, lr_factor}; }
};
constexpr RateCase kRateCases[] = {
    {kRate, 1.0f}, {{kLr, 0.3f, 40 * kDecay}, 0.7f}, {{kLr, 3.0f, 40 * kDecay, true}, 0.7f}};

StepControl control_after(int t, float scale, float lr_factor = 1) {
    return {.grad_norm = 1.0f,
            .scale = scale,
            .updates = t,
            .bias_correction1 = static_cast<float>(1.0 - std::pow(double(kBeta1), t)),
            .bias_correction2 = static_cast<float>(1.0 - std::pow(double(kBeta2), t)),
            .lr_factor = lr_factor};
}

// Squares of the values: second moments are not negative.
std::vector<float> squares(std::vector<float> values) {
    for (float& v : values) v *= v;
    return values;
}

// The tensors of n elements on the device. Lion has no second moments.
template <typename T>
struct Elements {
    int64_t n;
    const Stream& stream;
    bool is_lion = false;
    Guarded<float> master{random_values<float>(n, 1), stream}, m{random_values<float>(n, 2), stream},
        v{squares(random_values<float>(n, 3)), stream}, grad{random_values<float>(n, 4), stream};
    Guarded<T> work{n, stream};

    void update(const StepControl& step, const UpdateRate& rate, bool with_work = true) {
        Guarded<StepControl> control(std::vector<StepControl>{step}, stream);
        T* to = with_work ? work.data() : nullptr;
        if (is_lion)
            teon::lion_update(master.data(), to, m.data(), grad.data(), control.data(), n, rate, 0.9f, 0.99f, stream);
        else
            teon::adamw_update(master.data(), to, m.data(), v.data(), grad.data(), control.data(), n, rate,
                               {kBeta1, kBeta2, kEps}, stream);
    }
    void set(const std::vector<float>& weights, const std::vector<float>& moments,
             const std::vector<float>& gradients) {
        master.set(weights);
        m.set(moments);
        grad.set(gradients);
    }
    std::string bytes() const { return bytes_of(master.get(), m.get(), v.get()) + bytes_of(work.get()); }
};

template <typename T>
void three_updates(bool is_lion) {
    Stream stream;
    for (const RateCase& c : kRateCases)
        for (int64_t n : {1, 31, 33, 97, 128, 257, 768, 70001}) {
            INFO("n = " << n << ", factor of the update " << c.rate.lr_scale);
            Elements<T> x{n, stream, is_lion};
            AdamwState<Tracked> adamw{widen<Tracked>(x.master.get()), widen<Tracked>(x.m.get()),
                                      widen<Tracked>(x.v.get())};
            LionState<Tracked> lion{adamw.weight, adamw.m};
            for (int t = 1; t <= 3; ++t) {
                const auto gradient = random_values<float>(n, 10 + t);
                const float scale = t == 2 ? 0.25f : 1.0f;
                x.grad.set(gradient);
                x.update(control_after(t, scale, c.lr_factor), c.rate);
                test::adamw_update(adamw, widen<Tracked>(gradient), scale, t, c.oracle(), kBeta1, kBeta2, kEps);
                test::lion_update(lion, widen<Tracked>(gradient), scale, c.oracle(), 0.9f, 0.99f);
                REQUIRE(same_bits(x.grad.get(), gradient));
            }
            // No random update is so close to zero that rounding decides about its sign.
            REQUIRE(compare(x.master.get(), is_lion ? lion.weight : adamw.weight, kRoundings));
            REQUIRE(compare(x.m.get(), is_lion ? lion.m : adamw.m, kRoundings));
            if (!is_lion) REQUIRE(compare(x.v.get(), adamw.v, kRoundings));
            std::vector<T> rounded;
            for (float w : x.master.get()) rounded.push_back(T(w));
            REQUIRE(same_bits(x.work.get(), rounded));
        }
}

}  // namespace

TEMPLATE_TEST_CASE(
    "kernels/optimizers/adamw: three updates match the oracle at every rate, and the working weights are the rounded "
    "masters",
    "", float, bf16) {
    three_updates<TestType>(false);
}

TEMPLATE_TEST_CASE(
    "kernels/optimizers/lion: three updates match the oracle at every rate, and the working weights are the rounded "
    "masters",
    "", float, bf16) {
    three_updates<TestType>(true);
}

TEST_CASE("kernels/optimizers/adamw: the same bits without working weights and on any number of OS threads") {
    Stream stream;
    for (const bool is_lion : {false, true}) {
        Elements<bf16> whole{20011, stream, is_lion};
        Elements<bf16> masters{20011, stream, is_lion};
        whole.update(control_after(5, 0.5f), kRate);
        masters.update(control_after(5, 0.5f), kRate, false);
        REQUIRE(same_bits(masters.master.get(), whole.master.get()));
        REQUIRE(same_with_any_threads([&] {
            Elements<bf16> x{20011, stream, is_lion};
            x.update(control_after(5, 0.5f), kRate);
            return x.bytes();
        }));
    }
}

TEST_CASE("kernels/optimizers/adamw: a skipped step changes nothing") {
    Stream stream;
    StepControl skip = control_after(3, 0.0f);
    skip.skip = 1;
    for (const bool is_lion : {false, true}) {
        Elements<float> x{257, stream, is_lion};
        x.grad.set(std::vector<float>(257, NAN));
        const std::string before = x.bytes();
        x.update(skip, kRate);
        REQUIRE((x.bytes() == before));
    }
}

TEST_CASE(
    "kernels/optimizers/adamw: cautious weight decay applies only to weights that the update moves towards zero") {
    Stream stream;
    const int64_t n = 1003;
    std::vector<float> weight;
    std::vector<float> gradient;
    auto updated = [&](const UpdateRate& rate) {
        Elements<float> x{n, stream};
        x.m.set(std::vector<float>(n, 0.0f));
        x.v.set(std::vector<float>(n, 0.0f));
        weight = x.master.get();
        gradient = x.grad.get();
        x.update(control_after(1, 1.0f), rate);
        return x.master.get();
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
TEST_CASE("kernels/optimizers/adamw: with cautious weight decay, an update of exactly zero decays the weight") {
    Stream stream;
    const std::vector<float> zeros(4, 0.0f);
    for (const bool is_lion : {false, true}) {
        Elements<float> x{4, stream, is_lion};
        x.set({1.0f, -1.0f, 8.0f, 0.0f}, zeros, zeros);
        x.v.set(zeros);
        x.update(control_after(1, 1.0f), {0.5f, 1.0f, 0.5f, true}, false);
        REQUIRE(same_bits(x.master.get(), {0.75f, -0.75f, 6.0f, 0.0f}));
    }
}

TEST_CASE("kernels/optimizers/lion: a zero interpolation moves no weight, NaN is not hidden") {
    Stream stream;
    Elements<float> x{3, stream, true};
    x.set({1, 1, 1}, {0, 0.5f, NAN}, {0, 1, 0});
    x.update(control_after(1, 1.0f), {0.25f}, false);
    const auto w = x.master.get();
    REQUIRE(w[0] == 1);
    REQUIRE(w[1] == 0.75f);
    REQUIRE(std::isnan(w[2]));
}
