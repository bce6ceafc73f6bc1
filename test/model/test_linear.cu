#include "model/linear.h"

#include <cmath>

#include "kernels/fp8.h"
#include "runtime/context.h"
#include "test/oracle/format.h"
#include "test/oracle/gemm.h"
#include "test/support/catch.h"
#include "test/support/compare.h"
#include "test/support/gemm_layout.h"
#include "test/support/gpu_sums.h"
#include "test/support/needs_fp8.h"
#include "test/support/transfer.h"
#include "test/support/whole_params.h"

using namespace teon;
using namespace teon::test;

namespace {

// The values of x that a product uses in FP8: rounded, then divided by the scale.
template <typename F, typename T>
std::vector<double> as_fp8(const std::vector<T>& x) {
    const Format format = kFormat<F>;
    float largest = 0;
    for (const T v : x) largest = std::max(largest, std::abs(static_cast<float>(v)));
    const float s = static_cast<float>(format.decode(format.largest)) / largest;
    std::vector<double> seen;
    for (const T v : x) seen.push_back(format.decode(format.round(static_cast<float>(v) * s)) * double{1.0f / s});
    return seen;
}

std::vector<double> absolute(std::vector<double> x) {
    for (double& v : x) v = std::abs(v);
    return x;
}

std::vector<Tracked> tracked(const std::vector<double>& x) { return {x.begin(), x.end()}; }

// One Linear with its memory and N rows.
struct LinearRun {
    static constexpr int N = 48;
    static constexpr int kIn = 80;
    static constexpr int kOut = 112;
    const ParamName name = {"h.{}.x", "h.{}.x"};
    ParamTable table;
    ParamBuilder builder{table, false};
    Linear linear;
    Context context;
    std::unique_ptr<ParamStore> params;
    std::unique_ptr<Activations> memory;
    std::vector<bf16> x = random_values<bf16>(N * kIn, 1, 2.0), dy = random_values<bf16>(N * kOut, 2, 0.003),
                      w = random_values<bf16>(kOut * kIn, 3, 0.05), b = random_values<bf16>(kOut, 4),
                      addend = random_values<bf16>(N * kOut, 5), dx_addend = random_values<bf16>(N * kIn, 6, 0.001);
    std::vector<bf16> y, dx;
    std::vector<float> dw, db;

    // accumulate: a second pass adds to the gradients of the first.
    LinearRun(MatmulDType dtype, bool keeps, bool accumulate, bool fast_accumulation = false) {
        builder.layer = 0;
        linear = Linear(builder, {{name, Role::q, kOut, kOut}}, kIn, kIn, 1.0f, true);
        DecoderRun run{1, N, DType::bf16};
        run.matmul_dtype = dtype;
        run.keeps_fp8_weights = keeps;
        run.fast_accumulation = fast_accumulation;
        run.attention = AttentionKind::gemm;
        ActivationPlan plan(run, Purpose::train, 1);
        linear.plan(plan);
        plan.set_offsets();
        params = std::make_unique<ParamStore>(table, DType::bf16, context.stream);
        memory = std::make_unique<Activations>(plan);
        std::vector<float> masters(static_cast<size_t>(table.size()), 0.0f);
        std::copy(w.begin(), w.end(), masters.begin() + table[linear.weight].offset);
        std::copy(b.begin(), b.end(), masters.begin() + table[linear.bias].offset);
        put(masters_of(*params), masters, context.stream);
        round_masters(*params, context.stream);
        pass(false);
        if (accumulate) pass(true);
    }

    void pass(bool accumulate) {
        const Stream& stream = context.stream;
        Batch batch;
        batch.B = 1;
        batch.T = N;
        const Pass<bf16> p{context, *params, *memory, batch, 0, accumulate};
        if (const Tensor maxima = memory->plan().maxima(); maxima.row >= 0)
            zero(static_cast<std::byte*>(p.bytes(maxima)), memory->plan().rows()[maxima.row].total(), stream);
        Guarded<bf16> X(x, stream);
        Guarded<bf16> DY(dy, stream);
        Guarded<bf16> A(addend, stream);
        Guarded<bf16> DA(dx_addend, stream);
        Guarded<bf16> Y(N * kOut, stream);
        Guarded<bf16> DX(N * kIn, stream);
        linear.forward(p, Y.data(), X.data(), N, A.data());
        linear.backward(p, DX.data(), DY.data(), X.data(), N, accumulate, DA.data());
        y = Y.get();
        dx = DX.get();
        dw = gradient(linear.weight);
        db = gradient(linear.bias);
    }

    std::vector<float> gradient(int row) const { return fetch(params->grad(row), table[row].size(), context.stream); }

    // y, dx and dw of `times` passes for the given operands; without bias and addends unless `added`.
    template <typename R>
    std::array<std::vector<R>, 3> oracle(const std::vector<R>& X, const std::vector<R>& DY, const std::vector<R>& W,
                                         double times, bool added = true) const {
        auto Y = matmul_oracle(X, W, N, kOut, kIn, false, true);
        for (size_t i = 0; added && i < Y.size(); ++i)
            Y[i] += R(double{static_cast<float>(b[i % kOut])}) + R(double{static_cast<float>(addend[i])});
        auto DX = matmul_oracle(DY, W, N, kIn, kOut);
        for (size_t i = 0; added && i < DX.size(); ++i) DX[i] += R(double{static_cast<float>(dx_addend[i])});
        auto DW = matmul_oracle(DY, X, kOut, kIn, N, true, false);
        for (R& v : DW) v *= R(times);
        return {Y, DX, DW};
    }
};

template <typename G>
void check_against_oracles(MatmulDType dtype) {
    for (const bool keeps : {true, false})
        for (const bool accumulate : {false, true}) {
            CAPTURE(name_of(dtype), keeps, accumulate);
            const LinearRun r(dtype, keeps, accumulate);
            const double times = accumulate ? 2 : 1;

            // Compare with the product of the FP8 values: sums in float and bf16 results add only their own rounding.
            const auto x8 = as_fp8<e4m3>(r.x);
            const auto dy8 = as_fp8<G>(r.dy);
            const auto w8 = as_fp8<e4m3>(r.w);
            auto seen = r.oracle(tracked(x8), tracked(dy8), tracked(w8), times);
            for (std::vector<Tracked>& results : seen)
                for (Tracked& result : results) result = fp8_sum(result);
            REQUIRE(compare(r.y, seen[0], kSumRoundings));
            REQUIRE(compare(r.dx, seen[1], kSumRoundings));
            REQUIRE(compare(r.dw, seen[2], kSumRoundings));
            std::vector<Tracked> db(static_cast<size_t>(LinearRun::kOut));
            for (size_t i = 0; i < r.dy.size(); ++i)  // the bias gradient sums dy as stored
                db[i % LinearRun::kOut] += Tracked(times * double{static_cast<float>(r.dy[i])});
            REQUIRE(compare(r.db, db, kSumRoundings));

            // Compare with the product of the stored values. Each factor has a relative error of at most 2^-4 (E4M3) or
            // 2^-3 (E5M2). Errors of random signs add up like a random walk: for 48 or more terms, half of the sum of
            // all is about seven standard deviations. The result is rounded to bf16.
            const auto wide_x = widen<double>(r.x);
            const auto wide_dy = widen<double>(r.dy);
            const auto wide_w = widen<double>(r.w);
            const auto exact = r.oracle(wide_x, wide_dy, wide_w, times);
            const auto terms = r.oracle(absolute(wide_x), absolute(wide_dy), absolute(wide_w), times, false);
            const double forward = 0x1p-4 + 0x1p-4;
            const double backward = 0x1p-4 + (std::is_same_v<G, e5m2> ? 0x1p-3 : 0x1p-4);
            const auto near = [](const auto& actual, const std::vector<double>& expected, std::vector<double> bound,
                                 double error) {
                for (size_t i = 0; i < bound.size(); ++i)
                    bound[i] = error / 2 * bound[i] + kUnitRoundoff<bf16> * std::abs(expected[i]);
                return compare(actual, expected, bound);
            };
            REQUIRE(near(r.y, exact[0], terms[0], forward));
            REQUIRE(near(r.dx, exact[1], terms[1], backward));
            REQUIRE(near(r.dw, exact[2], terms[2], backward));
        }
}

}  // namespace

TEST_CASE("model/linear: FP8 products match those of the rounded operands and are near those of the stored values") {
    NEEDS_FP8();
    check_against_oracles<e5m2>(MatmulDType::fp8);
    check_against_oracles<e4m3>(MatmulDType::fp8_e4m3);
}

TEST_CASE("model/linear: without FP8, products match those of the stored values") {
    const LinearRun r(MatmulDType::same, true, false);
    const auto exact = r.oracle(widen<Tracked>(r.x), widen<Tracked>(r.dy), widen<Tracked>(r.w), 1);
    REQUIRE(compare(r.y, exact[0], kSumRoundings));
    REQUIRE(compare(r.dx, exact[1], kSumRoundings));
    REQUIRE(compare(r.dw, exact[2], kSumRoundings));
}

TEST_CASE("model/linear: FP8 does not hide NaN and infinity") {
    NEEDS_FP8();
    for (const float bad : {NAN, INFINITY}) {
        LinearRun r(MatmulDType::fp8, true, false);
        r.x[5 * LinearRun::kIn + 3] = bf16(bad);
        r.pass(false);
        REQUIRE(std::isnan(static_cast<float>(r.y[5 * LinearRun::kOut])));
        REQUIRE(std::isnan(r.dw[3]));
        r.x[5 * LinearRun::kIn + 3] = bf16(1.0f);
        r.dy[7 * LinearRun::kOut + 2] = bf16(bad);
        r.pass(false);
        REQUIRE(std::isnan(static_cast<float>(r.dx[7 * LinearRun::kIn])));
        REQUIRE(std::isnan(r.dw[2 * LinearRun::kIn]));
    }
}

TEST_CASE("model/linear: --fast-accumulation changes forward products of FP8 alone") {
    NEEDS_FP8();
    for (const MatmulDType dtype : {MatmulDType::fp8, MatmulDType::fp8_e4m3}) {
        const LinearRun precise(dtype, true, false);
        const LinearRun fast(dtype, true, false, true);
        if (!on_gpu()) REQUIRE(!same_bits(fast.y, precise.y));  // a GPU may have no faster sum for so small a product
        REQUIRE(same_bits(fast.dx, precise.dx));
        REQUIRE(same_bits(fast.dw, precise.dw));
        REQUIRE(same_bits(fast.db, precise.db));
    }
}
