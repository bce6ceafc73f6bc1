// Checks a gradient in float64 by central differences. These test the oracles' backward passes; the oracles test the
// kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace teon::test {

// Returns the largest |gradient[i] - (loss(x + h e_i) - loss(x - h e_i)) / 2h| / max(1, |gradient[i]|). A correct
// gradient of a smooth loss of order 1 gives about 1e-9: truncation h^2 = 1e-10, roundoff 1e-16 |loss| / h = 1e-11
// |loss|.
template <typename F>
double gradient_error(F loss, std::vector<double> x, const std::vector<double>& gradient) {
    const double h = 1e-5;
    double worst = x.size() == gradient.size() ? 0.0 : INFINITY;
    for (size_t i = 0; i < x.size() && i < gradient.size(); ++i) {
        const double before = x[i];
        x[i] = before + h;
        const double above = loss(x);
        x[i] = before - h;
        const double below = loss(x);
        x[i] = before;
        const double error = std::abs(gradient[i] - (above - below) / (2.0 * h)) / std::max(1.0, std::abs(gradient[i]));
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

// The sum of a[i] b[i]: a scalar loss with gradient b with respect to a.
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0.0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace teon::test
