// An elementwise result has the same bits wherever the element is: in a vector, in the tail after the last whole
// vector, or at an unaligned address.
#include "kernels/activation.h"
#include "kernels/optimizers/adamw.h"
#include "kernels/optimizers/lion.h"
#include "kernels/optimizers/teon.h"
#include "kernels/rotary.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

// Values on the device that begin `shift` elements after an aligned address.
template <typename T>
struct Shifted {
    Guarded<T> memory;
    int64_t shift;
    Shifted(std::vector<T> values, int64_t shift, const Stream& stream)
        : memory(moved(std::move(values), shift), stream), shift(shift) {}
    static std::vector<T> moved(std::vector<T> values, int64_t shift) {
        values.insert(values.begin(), static_cast<size_t>(shift), T(0.0f));
        return values;
    }
    T* data() { return memory.data() + shift; }
    std::string bytes() {
        const auto all = memory.get();
        return bytes_of(std::vector<T>(all.begin() + shift, all.end()));
    }
};

// run(shift) returns the bytes of its results.
template <typename F>
void same_at_every_alignment(F run) {
    const std::string expected = run(0);
    for (int64_t shift : {1, 2, 3, 5}) REQUIRE(run(shift) == expected);
}

}  // namespace

TEMPLATE_TEST_CASE("kernels/optimizers/alignment: activations have the same bits at every alignment", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const int N = 5;
    const int F = 72;
    const int64_t n = int64_t{N} * F;
    const auto x = random_values<T>(2 * n, 1);
    const auto dout = random_values<T>(n, 2);
    same_at_every_alignment([&](int64_t shift) {
        Shifted<T> in(x, shift, stream);
        Shifted<T> d(dout, shift, stream);
        Shifted<T> out(dout, shift, stream);
        Shifted<T> dx(x, shift, stream);
        std::string bytes;
        for (const ActivationFunction& row : kActivations) {
            if (row.gated) {
                activation_forward(row.kind, out.data(), in.data(), N, F, stream);
                activation_backward<T>(row.kind, dx.data(), nullptr, nullptr, in.data(), d.data(), N, F, true, stream);
                bytes += dx.bytes();
            } else {
                activation_forward(row.kind, out.data(), in.data(), 1, static_cast<int>(n) - 3, stream);
            }
            bytes += out.bytes();
        }
        return bytes;
    });
}

TEMPLATE_TEST_CASE("kernels/optimizers/alignment: a rotation has the same bits at every alignment", "", float, bf16) {
    using T = TestType;
    Stream stream;
    const int N = 7;
    const int NH = 2;
    const int NKV = 1;
    const int HS = 32;
    const int positions = 50;
    const auto x = random_values<T>(int64_t{N} * (NH + 2 * NKV) * HS, 1);
    Guarded<float> angles(random_values<float>(positions * HS, 2), stream);
    Guarded<int> at(random_ints(N, 3, positions), stream);
    same_at_every_alignment([&](int64_t shift) {
        Shifted<T> forward(x, shift, stream);
        Shifted<T> backward(x, shift, stream);
        rotary_forward(forward.data(), angles.data(), at.data(), N, NH, NKV, HS, stream);
        rotary_backward(backward.data(), angles.data(), at.data(), N, NH, NKV, HS, stream);
        return forward.bytes() + backward.bytes();
    });
}

TEST_CASE("kernels/optimizers/alignment: elementwise updates have the same bits at every alignment") {
    Stream stream;
    const int64_t n = 1001;
    const auto weight = random_values<float>(n, 1);
    const auto gradient = random_values<float>(n, 2);
    const auto moment = random_values<float>(n, 3);
    const std::vector<float> second(n, 0.37f);
    Guarded<StepControl> control(std::vector<StepControl>{{.grad_norm = 1,
                                                           .scale = 0.3f,
                                                           .updates = 2,
                                                           .bias_correction1 = 0.19f,
                                                           .bias_correction2 = 0.0975f,
                                                           .lr_factor = 0.7f}},
                                 stream);
    for (bool cautious : {false, true})
        same_at_every_alignment([&](int64_t shift) {
            const UpdateRate rate{0.01f, 0.9f, 0.1f, cautious};
            bf16* no_work = nullptr;
            Shifted<float> adamw(weight, shift, stream);
            Shifted<float> lion(weight, shift, stream);
            Shifted<float> grad(gradient, shift, stream);
            Shifted<float> m(moment, shift, stream);
            Shifted<float> v(second, shift, stream);
            Shifted<float> lion_moment(moment, shift, stream);
            adamw_update(adamw.data(), no_work, m.data(), v.data(), grad.data(), control.data(), n, rate,
                         {0.9f, 0.95f, 1e-8f}, stream);
            lion_update(lion.data(), no_work, lion_moment.data(), grad.data(), control.data(), n, rate, 0.9f, 0.99f,
                        stream);
            return adamw.bytes() + m.bytes() + v.bytes() + lion.bytes() + lion_moment.bytes();
        });
}

TEST_CASE("kernels/optimizers/alignment: momentum, unfolding and update have the same bits at every alignment") {
    Stream stream;
    const int m = 9;
    const int n = 32;
    const int64_t size = int64_t{m} * n;
    const auto weight = random_values<float>(size, 1);
    const auto gradient = random_values<float>(size, 2);
    const auto moment = random_values<float>(size, 3);
    Guarded<StepControl> control(
        std::vector<StepControl>{{.grad_norm = 1, .scale = 0.3f, .updates = 1, .lr_factor = 0.7f}}, stream);
    Guarded<float> scales(std::vector<float>{0.37f}, stream);
    same_at_every_alignment([&](int64_t shift) {
        Shifted<float> master(weight, shift, stream);
        Shifted<float> grad(gradient, shift, stream);
        Shifted<float> momentum(moment, shift, stream);
        Shifted<float> Z(weight, shift, stream);
        Guarded<Slice> slices(std::vector<Slice>{{0, 0, 0, 0, {0.02f, 1.3f, 0.1f}}}, stream);
        const SliceBatch batch{slices.data(), 1, m, n, shift % kVecWidth<float> == 0};
        Guarded<float> partial(momentum_parts(batch), stream);
        const SliceLayout layout{1, n, 0, size};
        const MomentumRule rule{.mu = 0.95f, .nesterov = true};
        momentum_update(momentum.data(), partial.data(), grad.data(), control.data(), batch, rule, stream);
        unfold(Z.data(), momentum.data(), grad.data(), scales.data(), control.data(), batch, layout, rule, stream);
        fold_update(master.data(), static_cast<bf16*>(nullptr), Z.data(), control.data(), batch, layout, stream);
        return momentum.bytes() + Z.bytes() + master.bytes();
    });
}
