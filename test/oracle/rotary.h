// Rotary position embedding, serial. R is double or Tracked.
#pragma once

#include <cmath>
#include <vector>

#include "test/oracle/tracked.h"

namespace teon::test {

// Returns a table (positions, HS): cosines, then sines. Angles are rounded to float, as in every implementation that
// trains in float.
inline std::vector<double> rotary_table(const std::vector<float>& inv_freq, int positions) {
    std::vector<double> table;
    for (int p = 0; p < positions; ++p) {
        for (float f : inv_freq) table.push_back(std::cos(static_cast<double>(static_cast<float>(p) * f)));
        for (float f : inv_freq) table.push_back(std::sin(static_cast<double>(static_cast<float>(p) * f)));
    }
    return table;
}

// Multiplies each query and key head, read as HS/2 complex numbers x[j] + i x[j + HS/2], by cos + i direction sin.
template <typename R>
std::vector<R> rotate(std::vector<R> qkv, const std::vector<R>& table, const std::vector<int>& positions, int N, int NH,
                      int NKV, int HS, double direction) {
    for (int row = 0; row < N; ++row)
        for (int head = 0; head < NH + NKV; ++head)
            for (int j = 0; j < HS / 2; ++j) {
                R& real = qkv[(size_t(row) * (NH + 2 * NKV) + head) * HS + j];
                R& imaginary = qkv[(size_t(row) * (NH + 2 * NKV) + head) * HS + HS / 2 + j];
                const R c = table[size_t(positions[row]) * HS + j];
                const R s = R(direction) * table[size_t(positions[row]) * HS + HS / 2 + j];
                const R rotated = real * c - imaginary * s;
                imaginary = imaginary * c + real * s;
                real = rotated;
            }
    return qkv;
}

}  // namespace teon::test
