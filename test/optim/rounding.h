// Matrices of given spectra, and the distance of orthogonalized ones to float64 that rounding explains.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "test/optim/stack_run.h"
#include "test/support/catch.h"

namespace teon::test {

inline constexpr Ortho kSets[] = {Ortho::jordan, Ortho::you, Ortho::polar_express};

enum class Spectrum { gaussian, harmonic, log3, log6 };
inline constexpr Spectrum kSpectra[] = {Spectrum::gaussian, Spectrum::harmonic, Spectrum::log3, Spectrum::log6};

inline std::vector<double> singular_values(Spectrum kind, int r) {
    std::vector<double> sigma;
    for (int i = 0; i < r; ++i) {
        const double x = r > 1 ? static_cast<double>(i) / (r - 1) : 0;
        sigma.push_back(kind == Spectrum::harmonic ? 1.0 / (i + 1) : std::pow(kind == Spectrum::log3 ? 1e-3 : 1e-6, x));
    }
    return sigma;
}

// Rounded to float, so that device and oracle see the same matrix.
inline Matrix input(Spectrum kind, int rows, int cols, uint64_t seed) {
    if (kind == Spectrum::gaussian) return rounded(gaussian(rows, cols, seed));
    return rounded(with_spectrum(rows, cols, singular_values(kind, std::min(rows, cols)), seed));
}

inline double relative(const Matrix& x, const Matrix& expected) { return distance(x, expected) / frobenius(expected); }

// The allowed distance to float64, relative to the result's norm: twice that of a plain program that sums in float and
// stores the same type. With few singular values, the plain program may by chance be closer than its roundings, which
// are added: R, Z and X in each step, and the norm of X, its root, its inverse and the quotient.
inline double rounding_bound(const Matrix& x, const Matrix& exact, const OrthoMethod& method) {
    const Arithmetic& in_16_bits = method.dtype == DType::bf16 ? kPlain<bf16> : kPlain<f16>;
    const Arithmetic& in = method.dtype == DType::f32 ? kPlain<float> : in_16_bits;
    const NsSet set = ns_set(method.ortho);
    auto restarts = [&](int ns_steps) { return restarts_after(method, std::min(x.rows, x.cols), ns_steps); };
    const Matrix plain = method.form == NsForm::gram ? gram_newton_schulz(x, set, method.ns_steps, in, restarts)
                                                     : newton_schulz(x, set, method.ns_steps, in);
    return 2 * relative(plain, exact) + (3 * method.ns_steps + 4) * kUnitRoundoff<float>;
}

// Returns the distance.
inline double check_method(Context& context, const Matrix& x, const Matrix& exact, const OrthoMethod& method) {
    const double d = relative(orthogonalized(context, x, method), exact);
    const double bound = rounding_bound(x, exact, method);
    INFO(x.rows << " x " << x.cols << ", " << name_of(method.ortho) << ", " << method.ns_steps << " steps, "
                << name_of(method.form) << ", " << name_of(method.dtype) << ": " << d << ", bound " << bound);
    REQUIRE(d <= bound);
    return d;
}

}  // namespace teon::test
