// A number with a bound on its rounding error. Oracles are templates over their number type. With double, they are the
// serial float64 reference, which central differences can check. With Tracked, the same code also yields, to first
// order, the error that one relative rounding error in every input and in every operation except addition may cause.
// This is the "sum |terms|" of error analysis; tolerances are small multiples of it (compare(actual, expected, c) in
// test/support/compare.h).
#pragma once

#include <cmath>

namespace teon::test {

struct Tracked {
    double value = 0.0;
    double magnitude = 0.0;  // the possible error of value, in units of roundoff
    Tracked() = default;
    Tracked(double v) : value(v), magnitude(std::abs(v)) {}
    Tracked(double v, double m) : value(v), magnitude(m) {}

    // If a sum is computed pairwise or in many parts, its terms' magnitudes already cover its own rounding errors.
    friend Tracked operator+(Tracked a, Tracked b) { return {a.value + b.value, a.magnitude + b.magnitude}; }
    friend Tracked operator-(Tracked a, Tracked b) { return {a.value - b.value, a.magnitude + b.magnitude}; }
    friend Tracked operator-(Tracked a) { return {-a.value, a.magnitude}; }
    friend Tracked operator*(Tracked a, Tracked b) {
        return {a.value * b.value, std::abs(a.value) * b.magnitude + a.magnitude * std::abs(b.value)};
    }
    friend Tracked operator/(Tracked a, Tracked b) {
        double q = a.value / b.value;
        return {q, (a.magnitude + std::abs(q) * b.magnitude) / std::abs(b.value)};
    }
    Tracked& operator+=(Tracked b) { return *this = *this + b; }
    Tracked& operator-=(Tracked b) { return *this = *this - b; }
    Tracked& operator*=(Tracked b) { return *this = *this * b; }
    friend bool operator<(Tracked a, Tracked b) { return a.value < b.value; }
    friend bool operator>(Tracked a, Tracked b) { return a.value > b.value; }

private:
    // f(x) with derivative df: propagates the error of x and adds one rounding of f.
    static Tracked map(double f, double df, Tracked x) { return {f, std::abs(df) * x.magnitude + std::abs(f)}; }
    friend Tracked sqrt(Tracked x) { return map(std::sqrt(x.value), 0.5 / std::sqrt(x.value), x); }
    friend Tracked exp(Tracked x) { return map(std::exp(x.value), std::exp(x.value), x); }
    friend Tracked log(Tracked x) { return map(std::log(x.value), 1.0 / x.value, x); }
    friend Tracked sin(Tracked x) { return map(std::sin(x.value), std::cos(x.value), x); }
    friend Tracked cos(Tracked x) { return map(std::cos(x.value), std::sin(x.value), x); }
    friend Tracked erfc(Tracked x) {
        return map(std::erfc(x.value), -2.0 / std::sqrt(M_PI) * std::exp(-x.value * x.value), x);
    }
    friend Tracked tanh(Tracked x) {
        double t = std::tanh(x.value);
        return map(t, 1.0 - t * t, x);
    }
};

// The value of a double or a Tracked, without the error.
inline double value_of(double x) { return x; }
inline double value_of(const Tracked& x) { return x.value; }

}  // namespace teon::test
