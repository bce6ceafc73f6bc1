// Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864) in the rotate-half convention: the pair
// (x[j], x[j + HS/2]) of a head turns by the angle position * inv_freq[j]. The gradient turns back by the same angle.
#include "kernels/common.h"
#include "kernels/rotary.h"

namespace teon {

__global__ void __launch_bounds__(kFlatBlock)
    rotary_table_kernel(float* cos_sin, const float* inv_freq, int positions, int half, float size) {
    wait_for_earlier_kernels();
    const int64_t n = int64_t{positions} * half;
    for_each_vec<1>(n, [=](auto, int64_t i) {
        const int64_t position = i / half;
        const int64_t j = i % half;
        const float angle = static_cast<float>(position) * inv_freq[j];
        cos_sin[position * 2 * half + j] = size * cosf(angle);
        cos_sin[position * 2 * half + half + j] = size * sinf(angle);
    });
}

// heads = NH + NKV: query and key heads are adjacent. width: the elements of a row of x. direction: 1, or -1 to rotate
// back.
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock) rotary_kernel(T* x, const float* cos_sin, const int* positions, int N,
                                                               int heads, int half, int64_t width, float direction) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    x += row * width;
    cos_sin += int64_t{positions[row]} * 2 * half;
    Shape::for_each(heads * half, [=](int, int item) {
        const int head = item / half;
        const int j = item - head * half;
        T* first = x + head * 2 * half + j;
        T* second = first + half;
        auto a = load_floats<W>(first);
        auto b = load_floats<W>(second);
        auto c = load_floats<W>(cos_sin + j);
        auto s = load_floats<W>(cos_sin + half + j);
        Vec<float, W> u;
        Vec<float, W> v;
        FOR_VEC(k, W) {
            const float sine = direction * s[k];
            u[k] = fmaf(a[k], c[k], -b[k] * sine);
            v[k] = fmaf(b[k], c[k], a[k] * sine);
        }
        store_floats(first, u);
        store_floats(second, v);
    });
}

void rotary_table(float* cos_sin, const float* inv_freq, int positions, int HS, float size, const Stream& stream) {
    CHECK(HS % 2 == 0, "rotary_table: the head size is {}, but rotation needs pairs; use an even one", HS);
    launch<rotary_table_kernel>({flat_blocks<1>(int64_t{positions} * (HS / 2)), kFlatBlock}, stream, cos_sin, inv_freq,
                                positions, HS / 2, size);
}

template <typename T>
static void rotate(T* x, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS, float direction,
                   const Stream& stream) {
    CHECK(HS % 2 == 0, "rotary: the head size is {}, but rotation needs pairs; use an even one", HS);
    const int heads = NH + NKV;
    const int half = HS / 2;
    const int64_t width = int64_t{NH + 2 * NKV} * HS;
    for_row_shape<T, RowUse::elements>(
        vec_aligned<T, kVecWidth<T>>(half, x, cos_sin), int64_t{heads} * half, [&]<typename Shape>(Shape) {
            launch<rotary_kernel<T, Shape>>({Shape::blocks(N), Shape::kBlock}, stream, x, cos_sin, positions, N, heads,
                                            half, width, direction);
        });
}

template <typename T>
void rotary_forward(T* qkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                    const Stream& stream) {
    rotate(qkv, cos_sin, positions, N, NH, NKV, HS, 1.0f, stream);
}

template <typename T>
void rotary_backward(T* dqkv, const float* cos_sin, const int* positions, int N, int NH, int NKV, int HS,
                     const Stream& stream) {
    rotate(dqkv, cos_sin, positions, N, NH, NKV, HS, -1.0f, stream);
}

FOR_STORAGE_TYPES(rotary_forward);
FOR_STORAGE_TYPES(rotary_backward);

}  // namespace teon
