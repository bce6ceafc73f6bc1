// Serial float64 references for the orthogonalizers: singular value decomposition by one-sided Jacobi rotations, the
// Newton-Schulz polynomials of matrices and of single values, matrices with a given spectrum, matricizations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "optim/ns_coefficients.h"

namespace teon::test {

struct Matrix {
    int rows = 0, cols = 0;
    std::vector<double> a;
    Matrix() = default;
    Matrix(int rows, int cols) : rows(rows), cols(cols), a(static_cast<size_t>(rows) * cols) {}
    double& operator()(int i, int j) { return a[static_cast<size_t>(i) * cols + j]; }
    double operator()(int i, int j) const { return a[static_cast<size_t>(i) * cols + j]; }
};

inline std::vector<float> to_floats(const Matrix& x) { return std::vector<float>(x.a.begin(), x.a.end()); }
inline Matrix to_matrix(const std::vector<float>& values, int rows, int cols) {
    Matrix x(rows, cols);
    std::copy(values.begin(), values.end(), x.a.begin());
    return x;
}

inline Matrix transposed(const Matrix& x) {
    Matrix y(x.cols, x.rows);
    for (int i = 0; i < x.rows; ++i)
        for (int j = 0; j < x.cols; ++j) y(j, i) = x(i, j);
    return y;
}

inline Matrix operator*(const Matrix& x, const Matrix& y) {
    Matrix z(x.rows, y.cols);
    for (int i = 0; i < x.rows; ++i)
        for (int k = 0; k < x.cols; ++k)
            for (int j = 0; j < y.cols; ++j) z(i, j) += x(i, k) * y(k, j);
    return z;
}

inline Matrix combination(double a, const Matrix& x, double b, const Matrix& y) {
    Matrix z = x;
    for (size_t i = 0; i < z.a.size(); ++i) z.a[i] = a * x.a[i] + b * y.a[i];
    return z;
}

inline double inner(const Matrix& x, const Matrix& y) {
    return std::inner_product(x.a.begin(), x.a.end(), y.a.begin(), 0.0);
}
inline double frobenius(const Matrix& x) { return std::sqrt(inner(x, x)); }
inline double distance(const Matrix& x, const Matrix& y) { return frobenius(combination(1, x, -1, y)); }

inline Matrix gaussian(int rows, int cols, uint64_t seed) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal;
    Matrix x(rows, cols);
    for (double& v : x.a) v = normal(engine);
    return x;
}

// x = U diag(S) V^T with r = min(rows, cols) columns in U and V and S descending. Columns of U with S = 0 are zero.
struct Svd {
    Matrix U;
    std::vector<double> S;
    Matrix V;
};

// One-sided Jacobi: rotates columns of x until they are orthogonal (Golub & Van Loan, Matrix Computations,
// section 8.6).
inline Svd svd(const Matrix& x) {
    if (x.rows < x.cols) {
        Svd t = svd(transposed(x));
        return {t.V, t.S, t.U};
    }
    const int n = x.cols;
    Matrix w = transposed(x);
    Matrix v(n, n);  // rows of w are the columns
    for (int i = 0; i < n; ++i) v(i, i) = 1;
    auto dot = [&](int p, int q) { return std::inner_product(&w(p, 0), &w(p, 0) + w.cols, &w(q, 0), 0.0); };
    const double nothing = 1e-16 * std::sqrt(inner(x, x));  // shorter columns are rounding errors
    bool again = true;
    for (int sweep = 0; again && sweep < 60; ++sweep) {
        again = false;
        for (int p = 0; p < n; ++p)
            for (int q = p + 1; q < n; ++q) {
                const double a = dot(p, p);
                const double b = dot(q, q);
                const double c = dot(p, q);
                if (!(std::abs(c) > 1e-15 * std::sqrt(a * b)) || std::sqrt(std::min(a, b)) <= nothing) continue;
                again = true;
                const double zeta = (b - a) / (2 * c);
                const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
                const double cosine = 1 / std::sqrt(1 + t * t);
                const double sine = t * cosine;
                auto rotate = [&](Matrix& m) {
                    for (int j = 0; j < m.cols; ++j) {
                        const double mp = m(p, j);
                        const double mq = m(q, j);
                        m(p, j) = cosine * mp - sine * mq;
                        m(q, j) = sine * mp + cosine * mq;
                    }
                };
                rotate(w);
                rotate(v);
            }
    }
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> norms(n);
    for (int i = 0; i < n; ++i) norms[i] = std::sqrt(dot(i, i));
    std::sort(order.begin(), order.end(), [&](int i, int j) { return norms[i] > norms[j]; });
    Svd result{Matrix(x.rows, n), {}, Matrix(n, n)};
    for (int k = 0; k < n; ++k) {
        const int i = order[k];
        result.S.push_back(norms[i]);
        for (int j = 0; j < x.rows; ++j) result.U(j, k) = norms[i] > 0 ? w(i, j) / norms[i] : 0;
        for (int j = 0; j < n; ++j) result.V(j, k) = v(i, j);
    }
    return result;
}

// U diag(f(S)) V^T.
template <typename F>
Matrix rebuild(const Svd& d, F f) {
    Matrix u = d.U;
    for (int i = 0; i < u.rows; ++i)
        for (int j = 0; j < u.cols; ++j) u(i, j) *= f(d.S[j]);
    return u * transposed(d.V);
}

// U V^T restricted to singular values above 1e-12 times the largest: the exact polar factor on the range of x.
inline Matrix polar_factor(const Matrix& x) {
    Svd d = svd(x);
    return rebuild(d, [&](double s) { return s > 1e-12 * d.S[0] ? 1.0 : 0.0; });
}

inline double nuclear_norm(const Matrix& x) {
    double sum = 0;
    for (double s : svd(x).S) sum += s;
    return sum;
}
inline double operator_norm(const Matrix& x) { return svd(x).S[0]; }

// Returns a rows x cols matrix with the min(rows, cols) singular values sigma and random singular vectors.
inline Matrix with_spectrum(int rows, int cols, const std::vector<double>& sigma, uint64_t seed) {
    auto orthonormal_rows = [](Matrix x) {  // Gram-Schmidt, twice
        for (int pass = 0; pass < 2; ++pass)
            for (int i = 0; i < x.rows; ++i) {
                for (int k = 0; k < i; ++k) {
                    double d = std::inner_product(&x(i, 0), &x(i, 0) + x.cols, &x(k, 0), 0.0);
                    for (int j = 0; j < x.cols; ++j) x(i, j) -= d * x(k, j);
                }
                double norm = std::sqrt(std::inner_product(&x(i, 0), &x(i, 0) + x.cols, &x(i, 0), 0.0));
                for (int j = 0; j < x.cols; ++j) x(i, j) /= norm;
            }
        return x;
    };
    const int r = std::min(rows, cols);
    Matrix u = orthonormal_rows(gaussian(r, rows, seed));
    Matrix v = orthonormal_rows(gaussian(r, cols, seed + 1));
    for (int k = 0; k < r; ++k)
        for (int i = 0; i < rows; ++i) u(k, i) *= sigma[k];
    return transposed(u) * v;
}

// Returns the value to which `steps` steps map a singular value sigma of a matrix of Frobenius norm 1.
inline double ns_value(const NsSet& set, int steps, double sigma) {
    double s = sigma / set.margin;
    for (int t = 0; t < steps; ++t) {
        const NsTriple q = set.at(t);
        s = q.a * s + q.b * s * s * s + q.c * s * s * s * s * s;
    }
    return s;
}

// X / (||X|| margin + 1e-7), transposed if X has more rows than columns.
inline Matrix ns_start(const Matrix& x, const NsSet& set) {
    return combination(1 / (frobenius(x) * set.margin + 1e-7), x.rows <= x.cols ? x : transposed(x), 0,
                       x.rows <= x.cols ? x : transposed(x));
}

// The arithmetic of the references below: kExact is float64; kPlain<T> sums in float, one term after the other, and
// stores each result as T.
struct Arithmetic {
    Matrix (*multiply)(const Matrix&, const Matrix&);
    double (*store)(double);
    Matrix stored(Matrix x) const {
        for (double& v : x.a) v = store(v);
        return x;
    }
};
inline constexpr Arithmetic kExact{[](const Matrix& x, const Matrix& y) { return x * y; }, [](double v) { return v; }};
template <typename T>
constexpr Arithmetic kPlain{[](const Matrix& x, const Matrix& y) {
                                Matrix z(x.rows, y.cols);
                                for (int i = 0; i < x.rows; ++i)
                                    for (int k = 0; k < x.cols; ++k)
                                        for (int j = 0; j < y.cols; ++j)
                                            z(i, j) = static_cast<float>(z(i, j)) +
                                                      static_cast<float>(x(i, k)) * static_cast<float>(y(k, j));
                                return z;
                            },
                            [](double v) { return static_cast<double>(static_cast<float>(T(static_cast<float>(v)))); }};

// Newton-Schulz in its standard form, on the short side.
inline Matrix newton_schulz(const Matrix& x, const NsSet& set, int steps, const Arithmetic& in = kExact) {
    Matrix y = in.stored(ns_start(x, set));
    for (int t = 0; t < steps; ++t) {
        const NsTriple q = set.at(t);
        const Matrix r = in.stored(in.multiply(y, transposed(y)));
        const Matrix z = in.stored(combination(q.b, r, q.c, in.multiply(r, r)));
        y = in.stored(combination(q.a, y, 1, in.multiply(z, y)));
    }
    return x.rows <= x.cols ? y : transposed(y);
}

// Newton-Schulz through the Gram matrix R. restarts(n): whether X is multiplied and R recomputed after n steps.
inline Matrix gram_newton_schulz(
    const Matrix& x, const NsSet& set, int steps, const Arithmetic& in = kExact,
    const std::function<bool(int)>& restarts = [](int) { return false; }) {
    Matrix y = in.stored(ns_start(x, set));
    Matrix r;
    Matrix Q;
    for (int t = 0; t < steps; ++t) {
        const NsTriple q = set.at(t);
        if (Q.rows == 0) r = in.stored(in.multiply(y, transposed(y)));
        const Matrix z = in.stored(combination(q.b, r, q.c, in.multiply(r, r)));
        if (Q.rows == 0) {
            Q = z;
            for (int i = 0; i < Q.rows; ++i) Q(i, i) += q.a;
            Q = in.stored(Q);
        } else {
            Q = in.stored(combination(q.a, Q, 1, in.multiply(Q, z)));
        }
        if (t + 1 == steps || restarts(t + 1)) {
            y = in.stored(in.multiply(Q, y));
            Q = {};
        } else {
            const Matrix rq = in.stored(combination(q.a, r, 1, in.multiply(r, z)));
            r = in.stored(combination(q.a, rq, 1, in.multiply(z, rq)));
        }
    }
    return x.rows <= x.cols ? y : transposed(y);
}

// Element (i, j) of slice k in the unfolding z.
inline double& unfolded(Matrix& z, int mode, int m, int n, int i, int j, int k) {
    if (mode == 1) return z(i, k * n + j);
    if (mode == 2) return z(j, k * m + i);
    return z(k, i * n + j);
}

// The matricization of slices M_k along `mode`, as in section 2.2 of the paper: the fibers of `mode` are the columns.
inline Matrix matricize(const std::vector<Matrix>& slices, int mode) {
    const int m = slices[0].rows;
    const int n = slices[0].cols;
    const int K = static_cast<int>(slices.size());
    const int rows[] = {m, n, K};
    Matrix z(rows[mode - 1], m * n * K / rows[mode - 1]);
    for (int k = 0; k < K; ++k)
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) unfolded(z, mode, m, n, i, j, k) = slices[k](i, j);
    return z;
}

inline std::vector<Matrix> dematricize(Matrix z, int mode, int m, int n, int K) {
    std::vector<Matrix> slices(K, Matrix(m, n));
    for (int k = 0; k < K; ++k)
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) slices[k](i, j) = unfolded(z, mode, m, n, i, j, k);
    return slices;
}

}  // namespace teon::test
