// CuTe's tutorials of wgmma: f16 products with f16 sums, both operands along K or both along M and N. To be included
// after a tutorial, whose gemm_nt() and gemm_tn() it calls, and kKind, how that tutorial copies.
#pragma once

#include <string>

#include "host.h"

using namespace foreign;
using cute::half_t;

namespace {

bool run(bool transposed, int m, int n, int k) {
    // Values of +-1 have exact sums.
    auto a = random_values<half_t>(static_cast<size_t>(m) * k, 1);
    auto b = random_values<half_t>(static_cast<size_t>(n) * k, 2);
    for (auto* values : {&a, &b})
        for (half_t& value : *values) value = half_t(float(value) < 0 ? -1.0f : 1.0f);
    const Device<half_t> da(a);
    const Device<half_t> db(b);
    const Device<half_t> dc(static_cast<size_t>(m) * n);
    if (transposed)
        gemm_nt(m, n, k, half_t(1.0f), da.data(), m, db.data(), n, half_t(0.0f), dc.data(), m);
    else
        gemm_tn(m, n, k, half_t(1.0f), da.data(), k, db.data(), k, half_t(0.0f), dc.data(), m);
    const auto element = [&](const std::vector<half_t>& x, int rows, int row, int l) {
        return double(float(x[transposed ? size_t(l) * rows + row : size_t(row) * k + l]));
    };
    // C is stored by columns: its transpose is B^T A^T.
    const auto c = matrix_product(
        n, m, k, [&](int j, int l) { return element(b, n, j, l); }, [&](int l, int i) { return element(a, m, i, l); });
    const std::string name =
        std::string("CuTe tutorial, ") + kKind + ", operands along " + (transposed ? "M and N" : "K");
    return row(name.c_str(), dc.doubles(), c, 0);
}

}  // namespace

int main() {
    const bool right = run(true, 256, 256, 320) & run(false, 256, 256, 320);
    return right ? 0 : 1;
}
