// Dropout of rows and, in the same pass, the addition to the residual stream.
#include "kernels/dropout.h"
#include "kernels/dropout_row.h"

namespace teon {

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock)
    dropout_kernel(T* out, const T* residual, const T* in, int N, int T_rows, int C, DropoutMask mask) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    const int64_t begin = int64_t{row} * C;
    const DropoutRow drop(mask, row / T_rows, row % T_rows);
    Shape::for_each(C, [=](int, int j) {
        auto x = load_floats<W>(in + begin + j);
        const auto factor = drop.template factors<W>(j);
        if (residual != nullptr) {
            const auto r = load_floats<W>(residual + begin + j);
            FOR_VEC(k, W) x[k] = fmaf(x[k], factor[k], r[k]);
        } else {
            FOR_VEC(k, W) x[k] *= factor[k];
        }
        store_floats(out + begin + j, x);
    });
}

void check_dropout(const DropoutMask& m) {
    CHECK(m.p == 0 || (0 < m.p && m.p < 1 && m.site < 1u << 14 && m.first_sample != nullptr),
          "dropout: p {} at site {}: expected p in [0, 1), a site below 16384 and the batch's first sample", m.p,
          m.site);
}

template <typename T>
void dropout(T* out, const T* residual, const T* in, int N, int T_rows, int C, const DropoutMask& mask,
             const Stream& stream) {
    check_dropout(mask);
    for_row_shape<T, RowUse::elements>(vec_aligned<T, kVecWidth<T>>(C, out, residual, in), C,
                                       [&]<typename Shape>(Shape) {
                                           launch<dropout_kernel<T, Shape>>({Shape::blocks(N), Shape::kBlock}, stream,
                                                                            out, residual, in, N, T_rows, C, mask);
                                       });
}

FOR_STORAGE_TYPES(dropout);

}  // namespace teon
