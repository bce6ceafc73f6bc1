// Compares orthogonalizers with float64: scalar maps, polar factor, precisions, forms, batches and hard inputs.
#include "optim/orthogonalize.h"

#include <string>

#include "test/optim/rounding.h"
#include "test/support/catch.h"
#include "test/support/model_runner.h"
#include "test/support/transfer.h"

using namespace teon;
using namespace teon::test;

namespace {

// The relative Frobenius distance to U V^T after five steps of a set on these singular values.
double remaining_distance(Ortho ortho, std::vector<double> sigma) {
    double norm = 0;
    double sum = 0;
    for (double s : sigma) norm += s * s;
    for (double s : sigma) {
        const double f = ns_value(ns_set(ortho), 5, s / std::sqrt(norm));
        sum += (f - 1) * (f - 1);
    }
    return std::sqrt(sum / static_cast<double>(sigma.size()));
}

// A Gaussian matrix and its polar factor, by Newton-Schulz until it converges: odd polynomials keep the singular
// vectors, and the last step of PolarExpress moves all singular values except 1. (A decomposition of this size takes a
// minute with the reference LAPACK.)
struct Large {
    int rows, cols;
    std::vector<float> x, polar;
};
Large large(Context& context, int rows, int cols) {
    Large l{rows, cols, random_values<float>(int64_t{rows} * cols, 7), {}};
    auto after = [&](int steps) {
        StackRun run(context, {l.x}, 1, rows, cols, 1,
                     {.ortho = Ortho::polar_express, .ns_steps = steps, .form = NsForm::standard, .dtype = DType::f32});
        return run.run_as_method()[0];
    };
    l.polar = after(14);
    double norm = 0;
    for (float x : l.polar) norm += double{x} * x;
    // All singular values are 1, so the squared norm is the short side, up to float sums of some thousand terms.
    REQUIRE(std::abs(norm - std::min(rows, cols)) <= 1e-3 * norm);
    REQUIRE(relative_distance(after(12), l.polar) <= 1e-4);
    return l;
}
double large_distance(Context& context, const Large& l, const OrthoMethod& method) {
    StackRun run(context, {l.x}, 1, l.rows, l.cols, 1, method);
    return relative_distance(run.run_as_method()[0], l.polar);
}

}  // namespace

TEST_CASE("optim/ns_coefficients: the extremes of the scalar maps match the published sets") {
    const struct {
        Ortho ortho;
        double sup, inf;
    } expected[] = {{Ortho::jordan, 1.2024, .6818},
                    {Ortho::you, 1.1450, .8525},
                    {Ortho::polar_express, 1.1236, .8703},
                    {Ortho::polar_express_dion, 1.1411, .8589},
                    {Ortho::polar_express_nanochat, 1.1411, .8589},
                    {Ortho::polar_express_dao, 1.1236, .8461},
                    {Ortho::polar_express_timm, 1.1309, .8689}};
    REQUIRE(std::size(expected) == std::size(kNsSets));
    for (auto e : expected) {
        double sup = 0;
        double inf = 10;
        for (int i = 0; i <= 200000; ++i) {
            const double sigma = std::pow(10.0, -4.0 * i / 200000);
            const double f = ns_value(ns_set(e.ortho), 5, sigma);
            sup = std::max(sup, f);
            if (sigma >= 0.002) inf = std::min(inf, f);
        }
        INFO(name_of(e.ortho) << " sup " << sup << " inf " << inf);
        // The figures have four decimals; the grid is accurate to five. Extremes depend mostly on a set's last steps.
        // The results of test/golden/make_optim.py, which has its own copy, check the digits of all steps.
        REQUIRE(std::abs(sup - e.sup) <= 6e-5);
        REQUIRE(std::abs(inf - e.inf) <= 6e-5);
    }
    REQUIRE_THROWS_AS(ns_set(Ortho::svd), Error);
}

TEST_CASE("optim/ns_coefficients: beyond its end, a set repeats its last triple, with which PolarExpress converges") {
    REQUIRE(ns_set(Ortho::you).at(17).a == 2.8366);
    // The eight triples of the paper (appendix), all but the last made safe.
    REQUIRE(ns_set(Ortho::polar_express).at(5).a == 1.891301407787398 / 1.01);
    REQUIRE(ns_set(Ortho::polar_express).at(6).b == -1.2500016453999487 / (1.01 * 1.01 * 1.01));
    REQUIRE(ns_set(Ortho::polar_express).at(7).a == 1.875);
    REQUIRE(ns_set(Ortho::polar_express).at(11).c == 0.375);
    REQUIRE(ns_set(Ortho::polar_express_timm).at(9).b == -1.2499988017229169);
    // Near 1, a step of (1.875, -1.25, 0.375) cubes the distance to 1.
    for (double sigma : {0.01, 0.1, 1.0})
        REQUIRE(std::abs(ns_value(ns_set(Ortho::polar_express), 11, sigma) - 1) <= 1e-12);
}

TEST_CASE("optim/ns_coefficients: the distances to the polar factor on a 1/i spectrum match a table") {
    const std::vector<double> sigma = singular_values(Spectrum::harmonic, 768);
    const double expected[] = {.2895, .2723, .0864, .0952, .0947, .1180, .0875};
    REQUIRE(std::size(expected) == std::size(kNsSets));
    for (size_t i = 0; i < std::size(expected); ++i)
        REQUIRE(std::abs(remaining_distance(kNsSets[i].ortho, sigma) - expected[i]) <= 6e-5);
}

TEST_CASE("optim/orthogonalize: every set, in every type and form, is as near to float64 as its roundings permit") {
    Context context;
    for (const NsSet& set : kNsSets)
        for (Spectrum spectrum : {Spectrum::harmonic, Spectrum::log3})
            for (auto [rows, cols] : {std::pair(24, 40), std::pair(90, 30)}) {
                const Matrix x = input(spectrum, rows, cols, 11);
                const Matrix expected = newton_schulz(x, set, 5);
                for (DType dtype : {DType::f32, DType::bf16, DType::f16})
                    for (NsForm form : {NsForm::standard, NsForm::gram})
                        check_method(context, x, expected, {set.ortho, 5, form, dtype});
            }
}

TEST_CASE("optim/orthogonalize: in float64, both forms give U f(Sigma) V^T") {
    for (auto [rows, cols] : {std::pair(17, 17), std::pair(12, 31), std::pair(29, 13)})
        for (Spectrum spectrum : kSpectra) {
            const Matrix x = input(spectrum, rows, cols, 3);
            const Svd d = svd(x);
            const double norm = frobenius(x);
            for (Ortho ortho : kSets)
                for (int steps : {1, 5, 8}) {
                    // ns_start adds 1e-7 to the norm, so the scalar map needs it as well.
                    const double shrink = norm * ns_set(ortho).margin / (norm * ns_set(ortho).margin + 1e-7);
                    const Matrix expected =
                        rebuild(d, [&](double s) { return ns_value(ns_set(ortho), steps, s / norm * shrink); });
                    REQUIRE(distance(newton_schulz(x, ns_set(ortho), steps), expected) <= 1e-10);
                    // Without restarts, the Gram form loses digits: eight steps amplify noise of 1e-12 by 1000^2.
                    if (steps <= 5) REQUIRE(distance(gram_newton_schulz(x, ns_set(ortho), steps), expected) <= 1e-10);
                }
        }
}

// As rounding_bound(), for the polar factor by a decomposition in float. Rounding the sums of an algorithm of order n
// changes the matrix by about sqrt(n) 2^-24 sigma_1, which turns the singular vectors of sigma by this over sigma. The
// bound is the root mean square over all of them, times 4 because the algorithm has several such sums.
double svd_bound(const Matrix& x, int rank) {
    const std::vector<double> S = svd(x).S;
    double turned = 0;
    for (int i = 0; i < rank; ++i) turned += (S[0] / S[i]) * (S[0] / S[i]) / rank;
    return 4 * std::sqrt(std::max(x.rows, x.cols)) * kUnitRoundoff<float> * std::sqrt(turned);
}
TEST_CASE(
    "optim/orthogonalize: float Newton-Schulz matches float64 in both forms, for every set, shape, spectrum, steps") {
    Context context;
    for (auto [rows, cols] :
         {std::pair(64, 64), std::pair(33, 97), std::pair(97, 31), std::pair(48, 51), std::pair(5, 300)})
        for (Spectrum spectrum : kSpectra) {
            const Matrix x = input(spectrum, rows, cols, 5);
            INFO("spectrum " << int(spectrum));
            const bool small = rows == 5;  // every number of steps
            for (Ortho ortho : kSets)
                for (int steps : small ? std::vector{1, 2, 3, 4, 5, 6, 7, 9} : std::vector{5}) {
                    const Matrix expected = newton_schulz(x, ns_set(ortho), steps);
                    for (NsForm form : {NsForm::standard, NsForm::gram})
                        check_method(context, x, expected, {ortho, steps, form, DType::f32});
                }
        }
}

TEST_CASE("optim/orthogonalize: svd gives the exact polar factor") {
    Context context;
    for (auto [rows, cols] :
         {std::pair(64, 64), std::pair(33, 97), std::pair(97, 31), std::pair(1, 40), std::pair(2, 2000)})
        for (Spectrum spectrum : {Spectrum::gaussian, Spectrum::harmonic, Spectrum::log3}) {
            const Matrix x = input(spectrum, rows, cols, 5);
            const double d = relative(orthogonalized(context, x, {.ortho = Ortho::svd}), polar_factor(x));
            const double bound = svd_bound(x, std::min(rows, cols));
            INFO(rows << " x " << cols << ", spectrum " << int(spectrum) << ": " << d << ", bound " << bound);
            REQUIRE(d <= bound);
        }
}

TEST_CASE("optim/orthogonalize: the distances to the polar factor of Gaussian matrices match a table") {
    Context context;
    const struct {
        int rows, cols;
        double jordan, you, polar_express;
    } table[] = {{768, 768, .2012, .1170, .1186},
                 {768, 1536, .1673, .0164, .0890},
                 {768, 3072, .1623, .0158, .0888},
                 {768, 4608, .1354, .0154, .0886},
                 {1024, 2048, .1718, .0165, .0896}};
    for (const auto& t : table) {
        const Large x = large(context, t.rows, t.cols);
        const double expected[] = {t.jordan, t.you, t.polar_express};
        for (int i = 0; i < 3; ++i) {
            const OrthoMethod method{kSets[i], 5, resolve_form(NsForm::automatic, {}, t.rows, t.cols), DType::f32};
            const double d = large_distance(context, x, method);
            INFO(t.rows << " x " << t.cols << ", " << name_of(kSets[i]) << ": " << d << " instead of " << expected[i]);
            // Another sample of the matrix changes the figure: for square matrices by a few of the smallest of 768
            // singular values (each weighs sqrt(1 / 768) = .04 in the root mean square), else by less than .001.
            REQUIRE(std::abs(d - expected[i]) <= (t.rows == t.cols ? .004 : .0015));
        }
    }
}

TEST_CASE("optim/orthogonalize: rank-deficient matrices keep their null space") {
    Context context;
    for (auto [rows, cols, rank] : {std::tuple(40, 64, 10), std::tuple(64, 40, 1), std::tuple(33, 33, 32),
                                    std::tuple(1, 70, 1), std::tuple(70, 1, 1)}) {
        // Small integers: the product is exact in float, and so is its rank.
        Matrix a = gaussian(rows, rank, 1);
        Matrix b = gaussian(rank, cols, 2);
        for (Matrix* factor : {&a, &b})
            for (double& v : factor->a) v = std::round(3 * v);
        const Matrix x = a * b;
        const Matrix polar = polar_factor(x);
        INFO(rows << " x " << cols << " of rank " << rank);
        REQUIRE(std::abs(frobenius(polar) - std::sqrt(rank)) <= 1e-9);
        REQUIRE(relative(orthogonalized(context, x, {.ortho = Ortho::svd}), polar) <= svd_bound(x, rank));
        for (Ortho ortho : kSets)
            for (NsForm form : {NsForm::standard, NsForm::gram}) {
                const Matrix expected = newton_schulz(x, ns_set(ortho), 5);
                check_method(context, x, expected, {ortho, 5, form, DType::f32});
            }
    }
}

TEST_CASE("optim/orthogonalize: zero matrices, zero rows and zero columns stay zero") {
    Context context;
    Matrix x = input(Spectrum::gaussian, 20, 36, 5);
    for (int j = 0; j < x.cols; ++j) x(17, j) = x(19, j) = 0;
    for (int i = 0; i < x.rows; ++i) x(i, 30) = x(i, 35) = 0;
    for (Ortho ortho : {Ortho::svd, Ortho::jordan, Ortho::you, Ortho::polar_express})
        for (NsForm form : {NsForm::standard, NsForm::gram})
            for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
                if (ortho == Ortho::svd && dtype != DType::f32) continue;
                const OrthoMethod method{ortho, 5, form, dtype};
                REQUIRE(frobenius(orthogonalized(context, Matrix(20, 36), method)) == 0);
                const Matrix y = orthogonalized(context, x, method);
                bool zero = true;
                for (int j = 0; j < x.cols; ++j) zero = zero && y(17, j) == 0 && y(19, j) == 0;
                for (int i = 0; i < x.rows; ++i) zero = zero && y(i, 30) == 0 && y(i, 35) == 0;
                if (ortho == Ortho::svd) {  // LAPACK may leave rounding errors there, smaller than in the rest
                    const double bound = svd_bound(x, 18) * frobenius(y);
                    zero = true;
                    for (int j = 0; j < x.cols; ++j) zero = zero && std::abs(y(17, j)) + std::abs(y(19, j)) <= bound;
                    for (int i = 0; i < x.rows; ++i) zero = zero && std::abs(y(i, 30)) + std::abs(y(i, 35)) <= bound;
                }
                INFO(name_of(ortho) << ", " << name_of(form) << ", " << name_of(dtype));
                REQUIRE(zero);
            }
}

// On a GPU, cuBLASLt chooses another algorithm for another batch, which sums in another order.
TEST_CASE("optim/orthogonalize: a batch gives the same bits as one matrix at a time; on a GPU up to rounding") {
    Context context;
    const int m = 40;
    const int n = 56;
    const int count = 5;
    std::vector<std::vector<float>> slices;
    for (int i = 0; i < count; ++i) slices.push_back(random_values<float>(m * n, 20 + i));
    for (Ortho ortho : {Ortho::svd, Ortho::you})
        for (NsForm form : {NsForm::standard, NsForm::gram})
            for (DType dtype : {DType::f32, DType::bf16}) {
                if (ortho == Ortho::svd && dtype != DType::f32) continue;
                StackRun batch(context, slices, 1, m, n, 1, {ortho, 5, form, dtype});
                const auto together = batch.run_as_method();
                for (int i = 0; i < count; ++i) {
                    StackRun alone(context, {slices[i]}, 1, m, n, 1, {ortho, 5, form, dtype});
                    const auto expected = alone.run_as_method()[0];
                    if (!device_info().is_gpu) REQUIRE(same_bits(together[i], expected));
                    // Five steps of You's coefficients multiply an error of a singular value by at most 4^5. In bf16
                    // that allows anything; there, rounding in another order moves a result at most as far as rounding
                    // twice does.
                    double bound = 1024 * kUnitRoundoff<float>;
                    if (dtype == DType::bf16) {
                        StackRun exact(context, {slices[i]}, 1, m, n, 1, {ortho, 5, form, DType::f32});
                        bound = 2 * relative_distance(expected, exact.run_as_method()[0]);
                    }
                    REQUIRE(relative_distance(together[i], expected) <= bound);
                }
            }
}

TEST_CASE("optim/orthogonalize: a matrix that is not finite does not affect the others") {
    Context context;
    const int side = 24;
    const int count = 3;
    const MatrixBatch batch{count, side, side, 32};
    const auto clean = random_values<float>(batch.size(), 3, 0.03);
    for (NsForm form : {NsForm::standard, NsForm::gram})
        for (float bad : {NAN, INFINITY}) {
            const OrthoMethod method{Ortho::you, 5, form, DType::f32};
            auto run = [&](const std::vector<float>& values) {
                Guarded<float> X(values, context.stream);
                Guarded<std::byte> scratch(ortho_scratch_bytes(method, batch), context.stream);
                const float* y = static_cast<float*>(orthogonalize(X.data(), scratch.data(), batch, method, context));
                return fetch(y, batch.size(), context.stream);
            };
            auto dirty = clean;
            dirty[batch.stride() + 5] = bad;
            const auto expected = run(clean);
            const auto result = run(dirty);
            bool same = true;
            bool spoiled = false;
            for (int b = 0; b < count; ++b)
                for (int i = 0; i < side; ++i)
                    for (int j = 0; j < side; ++j) {
                        const int64_t at = b * batch.stride() + i * batch.ld + j;
                        if (b == 1) spoiled = spoiled || !std::isfinite(result[at]);
                        if (b != 1) same = same && result[at] == expected[at];
                    }
            REQUIRE(same);
            REQUIRE(spoiled);
        }
    Guarded<float> X(std::vector<float>(4, NAN), context.stream);
    Guarded<std::byte> scratch(ortho_scratch_bytes({.ortho = Ortho::svd}, {1, 2, 2, 2}), context.stream);
    REQUIRE_THROWS_AS(orthogonalize(X.data(), scratch.data(), {1, 2, 2, 2}, {.ortho = Ortho::svd}, context), Error);
}

TEST_CASE("optim/orthogonalize: FLOPs match the known counts and decide the form") {
    const double n3 = 64.0 * 64 * 64;
    for (double alpha : {1.0, 1.5, 2.0, 4.0}) {
        const int l = static_cast<int>(64 * alpha);
        auto flops = [&](NsForm form, DType dtype) { return ortho_flops({Ortho::you, 5, form, dtype}, 64, l) / n3; };
        REQUIRE(std::abs(flops(NsForm::standard, DType::f32) - (15 * alpha + 5)) < 1e-9);
        REQUIRE(std::abs(flops(NsForm::gram, DType::f32) - (14 + 6 * alpha)) < 1e-9);  // one restart
        REQUIRE(std::abs(flops(NsForm::gram, DType::f16) - (14 + 6 * alpha)) < 1e-9);
        REQUIRE(std::abs(flops(NsForm::gram, DType::bf16) - (11 + 9 * alpha)) < 1e-9);  // two restarts
        REQUIRE(flops(NsForm::gram, DType::bf16) * n3 ==
                ortho_flops({Ortho::you, 5, NsForm::gram, DType::bf16}, l, 64));
        for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            const NsForm form = resolve_form(NsForm::automatic, {Ortho::you, 5, NsForm::standard, dtype}, 64, l);
            REQUIRE(form == (alpha < 1.5 ? NsForm::standard : NsForm::gram));
        }
    }
    REQUIRE(resolve_form(NsForm::gram, {}, 64, 64) == NsForm::gram);
    REQUIRE(resolve_form(NsForm::automatic, {.ortho = Ortho::svd}, 64, 640) == NsForm::standard);
}

TEST_CASE("optim/orthogonalize: invalid arguments are errors") {
    Context context;
    Buffer<float> x(64);
    REQUIRE_THROWS_AS(orthogonalize(x.data(), x.data(), {1, 8, 8, 8}, {.form = NsForm::automatic}, context), Error);
    REQUIRE_THROWS_AS(orthogonalize(x.data(), x.data(), {1, 8, 8, 8}, {.ns_steps = 0}, context), Error);
    REQUIRE_THROWS_AS(orthogonalize(x.data(), x.data(), {1, 8, 8, 7}, {}, context), Error);
    REQUIRE_THROWS_AS(
        orthogonalize(x.data(), x.data(), {1, 8, 8, 8}, {.ortho = Ortho::svd, .dtype = DType::bf16}, context), Error);
}
