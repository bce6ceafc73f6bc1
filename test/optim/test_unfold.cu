// Unfolding and folding, and the kernels around them: momentum, norms, update.
#include "base/integer.h"
#include "optim/unfold.h"
#include "runtime/context.h"
#include "test/optim/stack_run.h"
#include "test/oracle/update_rate.h"
#include "test/support/catch.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

struct Shape {
    int m, n, K;
};
constexpr Shape kShapes[] = {{1, 1, 1},   {1, 5, 3},   {7, 1, 2},   {3, 31, 2},
                             {33, 16, 1}, {16, 32, 4}, {31, 33, 3}, {48, 64, 2}};

std::vector<std::vector<float>> random_slices(const Shape& s, int stacks, uint64_t seed) {
    std::vector<std::vector<float>> slices;
    for (int i = 0; i < stacks * s.K; ++i) slices.push_back(random_values<float>(int64_t{s.m} * s.n, seed + i));
    return slices;
}

StepControl control_of(float scale, int skip) { return {1.0f, scale, skip, 1, 0.1f, 0.05f}; }

double norm_of(const std::vector<std::vector<float>>& slices, int first, int count) {
    double sum = 0;
    for (int i = first; i < first + count; ++i)
        for (float x : slices[i]) sum += double{x} * x;
    return std::sqrt(sum);
}

}  // namespace

TEST_CASE("optim/unfold: element (i, j) of slice k has its position in the paper's matricization") {
    for (const Shape& s : kShapes) {
        std::vector<Matrix> slices;
        for (int k = 0; k < s.K; ++k) {
            Matrix x(s.m, s.n);
            for (size_t e = 0; e < x.a.size(); ++e)
                x.a[e] = static_cast<double>(k * s.m * s.n) + static_cast<double>(e);
            slices.push_back(x);
        }
        for (int mode : {1, 2, 3})
            for (int align : {1, 16}) {
                const Unfolding u(mode, s.m, s.n, s.K, align);
                Matrix expected = matricize(slices, mode);
                if (mode == 2) expected = transposed(expected);  // the transpose is stored
                REQUIRE((u.rows() == expected.rows && u.cols() == expected.cols));
                REQUIRE((u.ld >= u.cols() && u.ld % align == 0 && u.ld < u.cols() + align));
                const SliceLayout layout = u.layout();
                bool right = true;
                REQUIRE(layout.matrix_stride == u.rows() * u.ld);
                for (int k = 0; k < s.K; ++k)
                    for (int i = 0; i < s.m; ++i)
                        for (int j = 0; j < s.n; ++j) {
                            const int64_t at = k * layout.slice_stride + i * layout.row_stride + j;
                            right = right && expected(static_cast<int>(at / u.ld), static_cast<int>(at % u.ld)) ==
                                                 slices[k](i, j);
                        }
                REQUIRE(right);
            }
    }
    REQUIRE_THROWS_AS(Unfolding(0, 2, 2, 2, 1), Error);
    REQUIRE_THROWS_AS(Unfolding(4, 2, 2, 2, 1), Error);
    REQUIRE_THROWS_AS(Unfolding(1, 2, 2, 0, 1), Error);
    REQUIRE_THROWS_AS(Unfolding(1, 2, 1 << 30, 4, 1), Error);
}

TEST_CASE("optim/unfold: folding restores every bit of the unfolded slices, in every mode") {
    Context context;
    for (const Shape& s : kShapes)
        for (int mode : {1, 2, 3})
            for (Ortho ortho : {Ortho::you, Ortho::svd}) {  // padded rows, dense rows
                const auto slices = random_slices(s, 3, 1);
                StackRun run(context, slices, mode, s.m, s.n, s.K, {.ortho = ortho});
                const auto back = run.run<float>(false, false, false);
                for (size_t i = 0; i < slices.size(); ++i) REQUIRE(same_bits(back[i], slices[i]));
            }
}

TEST_CASE("optim/unfold: a 16-bit unfolding holds the rounded slices") {
    Context context;
    const Shape s{31, 32, 2};
    const auto slices = random_slices(s, 2, 1);
    for (int mode : {1, 2, 3}) {
        StackRun run(context, slices, mode, s.m, s.n, s.K, {.ortho = Ortho::you, .dtype = DType::bf16});
        const auto back = run.run<bf16>(false, false, false);
        for (size_t i = 0; i < slices.size(); ++i)
            for (size_t e = 0; e < slices[i].size(); ++e) REQUIRE(back[i][e] == static_cast<float>(bf16(slices[i][e])));
    }
}

TEST_CASE("optim/unfold: each unfolding is scaled to Frobenius norm 1 / margin, and a zero unfolding stays zero") {
    Context context;
    for (const Shape& s : kShapes)
        for (Ortho ortho : {Ortho::jordan, Ortho::polar_express}) {
            auto slices = random_slices(s, 4, 5);
            for (int k = 0; k < s.K; ++k) {  // stack 1 is zero, stack 2 large, stack 3 tiny
                for (float& x : slices[s.K + k]) x = 0;
                for (float& x : slices[2 * s.K + k]) x *= 1e15f;
                for (float& x : slices[3 * s.K + k]) x *= 1e-15f;
            }
            StackRun run(context, slices, 1, s.m, s.n, s.K, {.ortho = ortho});
            const auto scaled = run.run<float>(false, true, false);
            const double margin = ns_set(ortho).margin;
            // Norms are sums of fewer than 3100 squares in pairs of float: relative error below 1e-5 after the root.
            for (int stack : {0, 2}) {
                const double norm = norm_of(scaled, stack * s.K, s.K);
                REQUIRE(std::abs(norm * margin - 1) <= 1e-5);
            }
            REQUIRE(norm_of(scaled, s.K, s.K) == 0);
            // A norm below 1e-7 is divided by about 1e-7, so that signals below rounding are not amplified.
            const double tiny = norm_of(slices, 3 * s.K, s.K);
            REQUIRE(std::abs(norm_of(scaled, 3 * s.K, s.K) / (tiny / (tiny * margin + 1e-7)) - 1) <= 1e-5);
            for (int flag : run.nonfinite.get()) REQUIRE(flag == 0);
        }
}

TEST_CASE("optim/unfold: normalized slices have equal norms, and zero slices stay zero") {
    Context context;
    const Shape s{24, 40, 4};
    auto slices = random_slices(s, 1, 5);
    for (float& x : slices[1]) x *= 10.0f;
    for (float& x : slices[2]) x = 0.0f;
    StackRun run(context, slices, 1, s.m, s.n, s.K, {.ortho = Ortho::jordan});
    const auto scaled = run.run<float>(true, true, false);
    for (int k : {0, 1, 3}) REQUIRE(std::abs(norm_of(scaled, k, 1) - 1 / std::sqrt(3.0)) <= 1e-5);
    REQUIRE(norm_of(scaled, 2, 1) == 0);
}

TEST_CASE("optim/unfold: a stack with NaN or infinity is reported and becomes zero, and other stacks do not change") {
    Context context;
    const Shape s{16, 24, 2};
    const auto clean = random_slices(s, 5, 9);
    auto dirty = clean;
    dirty[2][17] = NAN;      // stack 1
    dirty[7][0] = INFINITY;  // stack 3
    dirty[8][5] = 1e25f;     // stack 4: finite, but its square is not
    for (int mode : {1, 2, 3}) {
        StackRun run(context, dirty, mode, s.m, s.n, s.K, {.ortho = Ortho::you});
        StackRun undisturbed(context, clean, mode, s.m, s.n, s.K, {.ortho = Ortho::you});
        const auto result = run.run<float>(false);
        const auto expected = undisturbed.run<float>(false);
        REQUIRE(run.nonfinite.get() == std::vector<int>{0, 1, 0, 1, 1});
        REQUIRE(undisturbed.nonfinite.get() == std::vector<int>(5, 0));
        for (int k : {0, 1, 4, 5}) REQUIRE(same_bits(result[k], expected[k]));
        for (int k : {2, 3, 6, 7, 8, 9}) REQUIRE(same_bits(result[k], std::vector<float>(result[k].size(), 0.0f)));
    }
}

TEST_CASE("kernels/optimizers/teon: momentum, Nesterov's direction and its squares match the formula") {
    Stream stream;
    for (const Shape& s : kShapes)
        for (bool nesterov : {false, true})
            for (bool aligned : {false, true}) {
                const int64_t n = int64_t{s.m} * s.n;
                const int64_t stride = round_up(n, 64);
                const int64_t gap = aligned ? 0 : 3;
                const auto m0 = random_values<float>(2 * stride + gap, 1);
                const auto g = random_values<float>(2 * stride + gap, 2);
                Guarded<float> momentum(m0, stream);
                Guarded<float> grad(g, stream);
                // The second slice's gradient precedes the first slice's.
                Guarded<Slice> infos(std::vector<Slice>{{stride + gap, 0, 0, gap, {}}, {gap, 0, 0, stride + gap, {}}},
                                     stream);
                const SliceBatch batch{infos.data(), 2, s.m, s.n, aligned};
                const int parts = momentum_parts(batch);
                Guarded<float> partial(2 * parts, stream);
                Guarded<StepControl> control(std::vector<StepControl>{control_of(0.25f, 0)}, stream);
                momentum_update(momentum.data(), partial.data(), grad.data(), control.data(), batch,
                                {.mu = 0.95f, .nesterov = nesterov}, stream);
                std::vector<Tracked> expected = widen<Tracked>(m0);
                const auto partials = partial.get();
                for (int slice : {0, 1}) {
                    Tracked sum = 0.0;
                    for (int64_t i = 0; i < n; ++i) {
                        const int64_t at = slice * stride + gap + i;
                        const int64_t from = (1 - slice) * stride + gap + i;
                        const Tracked gradient = Tracked(0.25) * Tracked(g[from]);
                        Tracked& m = expected[at];
                        m = Tracked(0.95f) * m + gradient;
                        const Tracked u = nesterov ? gradient + Tracked(0.95f) * m : m;
                        sum += u * u;
                    }
                    double total = 0;
                    for (int p = 0; p < parts; ++p) total += partials[slice * parts + p];
                    // A thread sums at most 64 terms; partial sums are then added in pairs.
                    REQUIRE(std::abs(total - sum.value) <= 70 * kUnitRoundoff<float> * sum.magnitude);
                }
                REQUIRE(compare(momentum.get(), expected, 3.0));  // two products and a sum
                REQUIRE(same_bits(grad.get(), g));
            }
}

TEST_CASE(
    "kernels/optimizers/teon: the update decays and steps the master weights and rounds them to the working weights") {
    Stream stream;
    const Shape s{24, 48, 3};
    const Unfolding u(1, s.m, s.n, s.K, 16);
    const int64_t n = int64_t{s.m} * s.n;
    const auto w = random_values<float>(s.K * n, 1);
    const auto o = random_values<float>(u.size(), 2);
    Guarded<float> master(w, stream);
    Guarded<float> Z(o, stream);
    Guarded<bf16> work(s.K * n, stream);
    const UpdateRate rates[] = {{0.02f, 0.5f, 4.0f}, {0.05f, 2.0f, 0.0f}, {0.02f, 3.0f, 4.0f, true}};
    Guarded<Slice> infos(
        std::vector<Slice>{{0, 0, 0, 0, rates[0]}, {0, n, n, 0, rates[1]}, {0, 2 * n, 2 * n, 0, rates[2]}}, stream);
    StepControl step = control_of(0.25f, 0);
    step.lr_factor = 0.7f;
    Guarded<StepControl> control(std::vector<StepControl>{step}, stream);
    fold_update(master.data(), work.data(), Z.data(), control.data(), {infos.data(), s.K, s.m, s.n, true}, u.layout(),
                stream);
    std::vector<Tracked> expected;
    for (int k = 0; k < s.K; ++k) {
        const UpdateRate& r = rates[k];
        const OracleRate rate{r.lr, r.lr_scale, r.weight_decay, r.cautious, step.lr_factor};
        for (int i = 0; i < s.m; ++i)
            for (int j = 0; j < s.n; ++j)
                expected.push_back(updated(Tracked(w[k * n + i * s.n + j]), Tracked(o[i * u.ld + k * s.n + j]), rate));
    }
    REQUIRE(compare(master.get(), expected, 4.0));  // lr, lr lr_scale, 1 - lr decay, and two products
    const auto masters = master.get();
    const auto works = work.get();
    std::vector<bf16> rounded;
    for (float x : masters) rounded.push_back(bf16(x));
    REQUIRE(same_bits(works, rounded));
}

TEST_CASE("kernels/optimizers/teon: with cautious weight decay, an update of exactly zero decays the weight") {
    Stream stream;
    const Shape s{8, 16, 1};
    const Unfolding u(1, s.m, s.n, s.K, 16);
    const int64_t n = int64_t{s.m} * s.n;
    auto w = random_values<float>(n, 1);
    std::vector<float> o(u.size(), 0.0f);
    o[1] = w[1] > 0 ? -1.0f : 1.0f;  // moves its weight away from zero: no decay
    Guarded<float> master(w, stream);
    Guarded<float> Z(o, stream);
    Guarded<Slice> infos(std::vector<Slice>{{0, 0, 0, 0, {0.5f, 1.0f, 0.5f, /*cautious=*/true}}}, stream);
    Guarded<StepControl> control(std::vector<StepControl>{control_of(1, 0)}, stream);
    fold_update<float, float>(master.data(), nullptr, Z.data(), control.data(), {infos.data(), 1, s.m, s.n, true},
                              u.layout(), stream);
    for (int64_t i = 0; i < n; ++i) w[i] = i == 1 ? w[i] - 0.5f * o[i] : 0.75f * w[i];  // 1 - 0.5 * 0.5
    REQUIRE(same_bits(master.get(), w));
}

TEST_CASE("kernels/optimizers/teon: a skipped step does not change momentum, weights or reports, and unfolds to zero") {
    Stream stream;
    const Shape s{8, 16, 2};
    const Unfolding u(2, s.m, s.n, s.K, 16);
    const int64_t n = int64_t{s.m} * s.n;
    const auto m = random_values<float>(2 * n, 1);
    const auto w = random_values<float>(2 * n, 2);
    const std::vector<float> g(2 * n, NAN);
    Guarded<float> momentum(m, stream);
    Guarded<float> master(w, stream);
    Guarded<float> grad(g, stream);
    Guarded<float> Z(u.size(), stream);
    Guarded<float> scales(2, stream);
    Guarded<Slice> infos(std::vector<Slice>{{0, 0, 0, 0, {0.1f, 1, 0.1f}}, {n, n, n, n, {0.1f, 1, 0.1f}}}, stream);
    Guarded<int> nonfinite(std::vector<int>{0}, stream);
    Guarded<StepControl> control(std::vector<StepControl>{control_of(1, 1)}, stream);
    const SliceBatch batch{infos.data(), 2, s.m, s.n, true};
    Guarded<float> partial(2 * momentum_parts(batch), stream);
    const MomentumRule rule{.mu = 0.9f, .nesterov = true};
    momentum_update(momentum.data(), partial.data(), grad.data(), control.data(), batch, rule, stream);
    slice_scales(scales.data(), nonfinite.data(), partial.data(), control.data(), momentum_parts(batch), 1, 2, 1, false,
                 stream);
    unfold(Z.data(), momentum.data(), grad.data(), scales.data(), control.data(), batch, u.layout(), rule, stream);
    fold_update<float, float>(master.data(), nullptr, Z.data(), control.data(), batch, u.layout(), stream);
    REQUIRE(same_bits(momentum.get(), m));
    REQUIRE(same_bits(master.get(), w));
    REQUIRE(nonfinite.get()[0] == 0);
    REQUIRE(Z.get() == std::vector<float>(Z.size(), 0.0f));
}

TEST_CASE(
    "kernels/optimizers/teon: adding the identity and dropping null directions change only the elements concerned") {
    Stream stream;
    const int count = 3;
    const int side = 33;
    const int64_t ld = 48;
    auto x = random_values<bf16>(count * side * ld, 1);
    Guarded<bf16> in(x, stream);
    Guarded<bf16> out(count * side * ld, stream);
    add_identity(out.data(), in.data(), 2.5f, count, side, ld, stream);
    for (int b = 0; b < count; ++b)
        for (int i = 0; i < side; ++i) {
            bf16& d = x[(b * side + i) * ld + i];
            d = bf16(static_cast<float>(d) + 2.5f);
        }
    REQUIRE(same_bits(out.get(), x));

    auto U = random_values<float>(5 * 4, 2);
    Guarded<float> u(U, stream);
    Guarded<float> S(std::vector<float>{2.0f, 1.0f, 1e-7f, 0.0f}, stream);
    drop_null_directions(u.data(), S.data(), 5, 4, 1e-6f, stream);
    for (int i = 0; i < 5; ++i) U[i * 4 + 2] = U[i * 4 + 3] = 0;
    REQUIRE(same_bits(u.get(), U));
}

TEST_CASE("kernels/optimizers/teon: results do not depend on the number of threads") {
    Context context;
    const Shape s{31, 48, 2};
    const auto slices = random_slices(s, 3, 4);
    REQUIRE(same_with_any_threads([&] {
        StackRun run(context, slices, 1, s.m, s.n, s.K, {.form = NsForm::gram, .dtype = DType::bf16});
        std::string bytes;
        for (const auto& slice : run.run<bf16>(true)) bytes += bytes_of(slice);
        return bytes;
    }));
}
