// All rows of kNorms are one family of kernels, centered or not, with one set of tests.
#include "kernels/norm.h"
#include "test/oracle/differences.h"
#include "test/oracle/norm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

// Centering, scaling and multiplying a row takes four roundings after the sums (rmsnorm: three). Tracked's magnitude
// counts each once. Sums of n terms are computed in parts, and their error is below a few roundings of the terms.
static constexpr double kRoundings = 6.0;
static constexpr float kEps = 1e-5f;

namespace {
struct Shape {
    int N, C;
};
}  // namespace
// On a CPU, one thread processes a row of up to 2048 elements, and a warp a wider row. Wider rows have vectors of one
// element, are held in registers in each number of vectors, or are read again; their sums are in registers, in shared
// memory or in global memory. 16401 rows form chunks of more than 8 rows. On a GPU, each lane of a warp holds up to
// eight vectors of a bf16 row in the last three shapes, and up to four in narrower ones.
static const std::vector<Shape> kShapes = {
    {1, 1},    {31, 33},  {33, 31},  {97, 97},   {5, 128},  {128, 64},  {3, 257},  {257, 96}, {31, 768}, {3, 2049},
    {2, 2304}, {2, 4160}, {2, 8256}, {8205, 17}, {17, 768}, {16401, 2}, {3, 1056}, {5, 1536}, {3, 2048}};

namespace {

// One layer: inputs on host and device, outputs on the device, and both passes.
template <typename Element, NormKind KIND>
struct Layer {
    using T = Element;
    static constexpr bool centered = row_of(KIND).centered;
    int N, C;
    const Stream& stream;
    double mean_of_x = 0.5;
    std::vector<T> x = random_values<T>(size(), 1, 1.0, mean_of_x), weight = random_values<T>(C, 3, 0.5, 1.0),
                   bias = centered ? random_values<T>(C, 4) : std::vector<T>(C), dout = random_values<T>(size(), 5),
                   dresidual = random_values<T>(size(), 6), residual = random_values<T>(size(), 10);
    std::vector<float> dweight_before = random_values<float>(C, 7), dbias_before = random_values<float>(C, 8),
                       dx_sums_before = random_values<float>(C, 9);
    Guarded<T> x_device{x, stream}, weight_device{weight, stream}, bias_device{bias, stream}, dout_device{dout, stream},
        dresidual_device{dresidual, stream}, residual_device{residual, stream}, out{size(), stream}, dx{size(), stream};
    Guarded<float> mean{std::vector<float>(N), stream}, rstd{N, stream}, dweight{dweight_before, stream},
        dbias{dbias_before, stream}, dx_sums{dx_sums_before, stream};
    Guarded<std::byte> scratch{static_cast<int64_t>(norm_backward_scratch_bytes(KIND, N, C)), stream};

    Layer(int N, int C, const Stream& stream, double mean_of_x = 0.5)
        : N(N), C(C), stream(stream), mean_of_x(mean_of_x) {}

    int64_t size() const { return int64_t{N} * C; }

    // Returns the bytes of all outputs.
    std::string forward(bool with_residual = false) {
        teon::norm_forward<T>(KIND,
                              {.out = out.data(),
                               .mean = centered ? mean.data() : nullptr,
                               .rstd = rstd.data(),
                               .residual = with_residual ? residual_device.data() : nullptr,
                               .x = x_device.data(),
                               .weight = weight_device.data(),
                               .bias = centered ? bias_device.data() : nullptr,
                               .N = N,
                               .C = C,
                               .eps = kEps},
                              stream);
        return bytes_of(out.get(), mean.get(), rstd.get());
    }

    // Adds to the parameters' gradients before and returns the bytes of the sums.
    std::string backward(T* dx, const T* dresidual, bool sums = true) {
        dweight.set(dweight_before);
        dbias.set(dbias_before);
        dx_sums.set(dx_sums_before);
        queue_backward(dx, dresidual, sums, true);
        return bytes_of(dweight.get(), dbias.get());
    }

    // Returns the sums over rows, accumulated to, or overwriting, gradients that are `before` everywhere.
    std::vector<float> sums_of_backward(float before, bool accumulate) {
        for (Guarded<float>* sums : {&dweight, &dbias, &dx_sums}) sums->set(std::vector<float>(C, before));
        queue_backward(dx.data(), dresidual_device.data(), true, accumulate);
        std::vector<float> all = dweight.get();
        if constexpr (centered) {
            for (Guarded<float>* sums : {&dbias, &dx_sums})
                for (float x : sums->get()) all.push_back(x);
        }
        return all;
    }

    void queue_backward(T* dx, const T* dresidual, bool sums, bool accumulate) {
        teon::norm_backward<T>(KIND,
                               {.dx = dx,
                                .dweight = dweight.data(),
                                .dbias = centered ? dbias.data() : nullptr,
                                .dx_sums = centered && sums ? dx_sums.data() : nullptr,
                                .scratch = scratch.data(),
                                .dout = dout_device.data(),
                                .dresidual = dresidual,
                                .x = x_device.data(),
                                .mean = centered ? mean.data() : nullptr,
                                .rstd = rstd.data(),
                                .weight = weight_device.data(),
                                .N = N,
                                .C = C,
                                .accumulate = accumulate},
                               stream);
        scratch.get();  // checks the canaries
    }

    template <typename Number>
    auto expected_forward() const {
        return test::norm_forward(widen<Number>(x), widen<Number>(weight), widen<Number>(bias), N, C, kEps, centered);
    }
};

}  // namespace

#define EVERY_NORM                                                                                              \
    (Layer<float, NormKind::layernorm>), (Layer<bf16, NormKind::layernorm>), (Layer<float, NormKind::rmsnorm>), \
        (Layer<bf16, NormKind::rmsnorm>)

TEST_CASE("kernels/norm: the oracle's backward is the derivative of its forward") {
    const int N = 3;
    const int C = 7;
    const auto x = widen<double>(random_values<float>(N * C, 1));
    const auto dout = widen<double>(random_values<float>(N * C, 2));
    const auto weight = widen<double>(random_values<float>(C, 3));
    const auto bias = widen<double>(random_values<float>(C, 4));
    for (bool centered : {true, false}) {
        const auto gradients = test::norm_backward(dout, x, weight, N, C, kEps, centered);
        auto loss = [&](const auto& x, const auto& weight, const auto& bias) {
            return dot(test::norm_forward(x, weight, bias, N, C, kEps, centered).out, dout);
        };
        REQUIRE(gradient_error([&](const auto& v) { return loss(v, weight, bias); }, x, gradients.dx) < 1e-7);
        REQUIRE(gradient_error([&](const auto& v) { return loss(x, v, bias); }, weight, gradients.dweight) < 1e-7);
        if (centered)
            REQUIRE(gradient_error([&](const auto& v) { return loss(x, weight, v); }, bias, gradients.dbias) < 1e-7);
    }
}

TEMPLATE_TEST_CASE("kernels/norm: forward matches the oracle", "", EVERY_NORM) {
    Stream stream;
    for (auto [N, C] : kShapes) {
        INFO("N = " << N << ", C = " << C);
        TestType layer(N, C, stream);
        auto expected = layer.template expected_forward<Tracked>();
        for (const bool with_residual : {false, true}) {
            layer.forward(with_residual);
            if (with_residual)
                for (size_t i = 0; i < expected.out.size(); ++i)
                    expected.out[i] += Tracked(static_cast<double>(static_cast<float>(layer.residual[i])));
            REQUIRE(compare(layer.out.get(), expected.out, kRoundings));
            if (TestType::centered) REQUIRE(compare(layer.mean.get(), expected.mean, kRoundings));
            REQUIRE(compare(layer.rstd.get(), expected.rstd, kRoundings));
        }
        REQUIRE(same_bits(layer.x_device.get(), layer.x));
    }
}

TEMPLATE_TEST_CASE("kernels/norm: backward matches the oracle and adds to the parameters' gradients", "", EVERY_NORM) {
    Stream stream;
    for (auto [N, C] : kShapes) {
        INFO("N = " << N << ", C = " << C);
        TestType layer(N, C, stream);
        layer.forward();
        auto expected = test::norm_backward(widen<Tracked>(layer.dout), widen<Tracked>(layer.x),
                                            widen<Tracked>(layer.weight), N, C, kEps, TestType::centered);
        auto* dx = layer.dx.data();
        auto* dresidual = layer.dresidual_device.data();
        auto* dout = layer.dout_device.data();
        layer.backward(dx, nullptr);
        REQUIRE(compare(layer.dx.get(), expected.dx, kRoundings));
        const std::string parameter_gradients = layer.backward(dx, dresidual);
        for (size_t i = 0; i < expected.dx.size(); ++i)
            expected.dx[i] += Tracked(static_cast<double>(static_cast<float>(layer.dresidual[i])));
        const auto dx_apart = layer.dx.get();
        REQUIRE(compare(dx_apart, expected.dx, kRoundings));
        for (int j = 0; j < C; ++j) expected.dweight[j] += Tracked(layer.dweight_before[j]);
        REQUIRE(compare(layer.dweight.get(), expected.dweight, kRoundings));
        if (TestType::centered) {
            for (int j = 0; j < C; ++j) expected.dbias[j] += Tracked(layer.dbias_before[j]);
            REQUIRE(compare(layer.dbias.get(), expected.dbias, kRoundings));
            std::vector<Tracked> sums = widen<Tracked>(layer.dx_sums_before);
            for (size_t i = 0; i < expected.dx.size(); ++i) sums[i % static_cast<size_t>(C)] += expected.dx[i];
            REQUIRE(compare(layer.dx_sums.get(), sums, kRoundings));
        }

        REQUIRE((layer.sums_of_backward(NAN, false) == layer.sums_of_backward(0.0f, true)));
        REQUIRE((layer.backward(dx, dresidual, false) == parameter_gradients));  // without the sums of dx
        REQUIRE(same_bits(layer.dx.get(), dx_apart));
        REQUIRE(same_bits(layer.dx_sums.get(), layer.dx_sums_before));

        REQUIRE((layer.backward(dresidual, dresidual) == parameter_gradients));
        REQUIRE(same_bits(layer.dresidual_device.get(), dx_apart));
        layer.dresidual_device.set(layer.dresidual);
        REQUIRE((layer.backward(dout, dresidual) == parameter_gradients));
        REQUIRE(same_bits(layer.dout_device.get(), dx_apart));
        REQUIRE(same_bits(layer.x_device.get(), layer.x));
    }
}

TEST_CASE("kernels/norm: the variance survives a mean much larger than the deviation") {
    Stream stream;
    Layer<float, NormKind::layernorm> layer(5, 768, stream, 4096.0);
    layer.forward();
    // The mean has a rounding error of up to 2^-12 * 4, and the variance of 1 is off by its square. A variance from
    // sums of squares would be off by 1.
    REQUIRE(compare(layer.rstd.get(), layer.expected_forward<double>().rstd, 1e-5));
}

TEMPLATE_TEST_CASE("kernels/norm: the same bits on any number of OS threads", "", EVERY_NORM) {
    Stream stream;
    for (auto [N, C] : {Shape{257, 96}, Shape{3, 2049}, Shape{5, 2304}}) {
        TestType layer(N, C, stream);
        REQUIRE(same_with_any_threads([&] {
            const std::string forward = layer.forward() + layer.forward(/*with_residual=*/true);
            const std::string gradients = layer.backward(layer.dx.data(), layer.dresidual_device.data());
            return forward + gradients + bytes_of(layer.dx_sums.get(), layer.dx.get());
        }));
    }
}
