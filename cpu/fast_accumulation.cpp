#include "cpu/fast_accumulation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/threads.h"

namespace teon::cpu {

namespace {

constexpr int kTerms = 32;   // that an instruction adds to a sum
constexpr int kDigits = 13;  // behind the leading one

template <typename F>
std::vector<float> values(const Matrix& matrix, int64_t rows, int64_t columns) {
    std::vector<float> to(static_cast<size_t>(rows * columns));
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            to[i * columns + j] = static_cast<float>(static_cast<const F*>(matrix.data)[i * matrix.ld + j]);
    return to;
}

std::vector<float> values(const Matrix& matrix, DType type, int64_t rows, int64_t columns) {
    return type == DType::e4m3 ? values<e4m3>(matrix, rows, columns) : values<e5m2>(matrix, rows, columns);
}

// Every addition is exact: 33 numbers of at most 15 digits on one grid.
double sum_of_products(const float* a, const float* b, int64_t K) {
    double sum = 0.0;
    for (int64_t begin = 0; begin < K; begin += kTerms) {
        const int64_t end = std::min(K, begin + kTerms);
        double largest = std::abs(sum);
        for (int64_t k = begin; k < end; ++k) largest = std::max(largest, std::abs(double{a[k]} * b[k]));
        if (largest == 0.0) continue;
        const double digit = std::ldexp(1.0, std::ilogb(largest) - kDigits);
        sum = std::trunc(sum / digit) * digit;
        for (int64_t k = begin; k < end; ++k) sum += std::trunc(double{a[k]} * b[k] / digit) * digit;
    }
    return sum;
}

}  // namespace

void matmul_fp8_fast(Matmul m, DType a, DType b, float scale) {
    const std::vector<float> A = values(m.A, a, m.M, m.K);
    const std::vector<float> B = values(m.B, b, m.N, m.K);
    visit_dtype(m.out, [&]<typename T>(T) {
        parallel_for(m.M, 1, [&](int64_t i) {
            for (int64_t j = 0; j < m.N; ++j) {
                double x = sum_of_products(&A[i * m.K], &B[j * m.K], m.K) * double{m.alpha} * scale;
                if (m.beta != 0.0f)
                    x += m.beta * static_cast<double>(static_cast<const T*>(m.addend.data)[i * m.addend.ld + j]);
                if (m.bias) x += static_cast<double>(static_cast<const T*>(m.bias)[j]);
                static_cast<T*>(m.C)[i * m.ldc + j] = T(static_cast<float>(x));
            }
        });
    });
}

}  // namespace teon::cpu
