// Token and position embedding: a gather, and its transpose, a sum over the rows that share an id. The sum needs no
// atomics because the rows of an id are one segment of `order`.
#include <algorithm>

#include "kernels/common.h"
#include "kernels/embedding.h"

namespace teon {

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kBlock)
    embedding_forward_kernel(T* out, const int* tokens, const int* positions, const T* wte, const T* wpe, int N,
                             int C) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    const int row = Shape::row();
    if (row >= N) return;
    out += int64_t{row} * C;
    wte += int64_t{tokens[row]} * C;
    if (wpe == nullptr) {
        Shape::for_each(C, [=](int, int j) { store_vec(out + j, load_vec<W>(wte + j)); });
        return;
    }
    wpe += int64_t{positions[row]} * C;
    Shape::for_each(C, [=](int, int j) {
        auto x = load_floats<W>(wte + j);
        auto p = load_floats<W>(wpe + j);
        FOR_VEC(k, W) x[k] += p[k];
        store_floats(out + j, x);
    });
}

// PARTS workers of kLanes threads share a segment. Worker p sums the rows p, p + PARTS, ... of it, a tile of columns at
// a time, and the partial sums are then added in the order of p. Workers whose position of `order` begins no segment
// return at once.
inline constexpr int kSegmentVecs = 4;  // vectors of a lane in a tile

template <typename T, typename Shape, int PARTS>
__global__ void __launch_bounds__(PARTS == 1 ? Shape::kBlock : PARTS * 32)
    embedding_backward_kernel(float* dtable, const T* dout, const int* ids, const int* order, int N, int C) {
    wait_for_earlier_kernels();
    constexpr int W = Shape::kWidth;
    constexpr int kLanes = Shape::kLanes;
    constexpr int kTile = kLanes * W * kSegmentVecs;
    const int begin = PARTS == 1 ? Shape::row() : static_cast<int>(blockIdx.x);
    const int part = PARTS == 1 ? 0 : static_cast<int>(threadIdx.x) / kLanes;
    if (begin >= N) return;
    const int id = ids[order[begin]];
    if (begin > 0 && ids[order[begin - 1]] == id) return;
    dtable += int64_t{id} * C;

    for (int tile = 0; tile < C; tile += kTile) {
        Vec<float, W> sums[kSegmentVecs] = {};
        auto add_row = [&](int i) {
            const T* source = dout + int64_t{order[i]} * C;
#pragma unroll
            for (int v = 0; v < kSegmentVecs; ++v) {
                const int j = tile + (v * kLanes + Shape::lane()) * W;
                if (j >= C) continue;
                const auto d = load_floats<W>(source + j);
                FOR_VEC(k, W) sums[v][k] += d[k];
            }
        };
        // Four rows at a time, so that their loads overlap. As ids are sorted, checking the last of the four suffices.
        int i = begin + part;
        for (; i + 3 * PARTS < N && ids[order[i + 3 * PARTS]] == id; i += 4 * PARTS) {
#pragma unroll
            for (int r = 0; r < 4; ++r) add_row(i + r * PARTS);
        }
        for (; i < N && ids[order[i]] == id; i += PARTS) add_row(i);

        if constexpr (PARTS == 1) {
#pragma unroll
            for (int v = 0; v < kSegmentVecs; ++v) {
                const int j = tile + (v * kLanes + Shape::lane()) * W;
                if (j >= C) continue;
                auto total = load_vec<W>(dtable + j);
                FOR_VEC(k, W) total[k] += sums[v][k];
                store_vec(dtable + j, total);
            }
        } else {
            DYN_SHARED(float, partial);  // (PARTS, kTile)
            __syncthreads();             // the previous tile's sums have been read
#pragma unroll
            for (int v = 0; v < kSegmentVecs; ++v)
                store_vec(partial + part * kTile + (v * kLanes + Shape::lane()) * W, sums[v]);
            __syncthreads();
            const int width = std::min(kTile, C - tile);
            for (int j = static_cast<int>(threadIdx.x); j < width; j += PARTS * kLanes) {
                float total = 0.0f;
#pragma unroll
                for (int p = 0; p < PARTS; ++p) total += partial[p * kTile + j];
                dtable[tile + j] += total;
            }
        }
    }
}

template <typename T>
void embedding_forward(T* out, const int* tokens, const int* positions, const T* wte, const T* wpe, int N, int C,
                       const Stream& stream) {
    for_row_shape<T, RowUse::elements>(vec_aligned<T, kVecWidth<T>>(C, out, wte, wpe), C, [&]<typename Shape>(Shape) {
        launch<embedding_forward_kernel<T, Shape>>({Shape::blocks(N), Shape::kBlock}, stream, out, tokens, positions,
                                                   wte, wpe, N, C);
    });
}

template <typename T>
void embedding_backward(float* dtable, const T* dout, const int* ids, const int* order, int N, int C,
                        const Stream& stream) {
    for_row_shape<T, RowUse::sums>(vec_aligned<T, kVecWidth<T>>(C, dtable, dout), C, [&]<typename Shape>(Shape) {
        if constexpr (Shape::kLanes == 1) {
            launch<embedding_backward_kernel<T, Shape, 1>>({Shape::blocks(N), Shape::kBlock}, stream, dtable, dout, ids,
                                                           order, N, C);
        } else {
            constexpr int kParts = 8;
            constexpr size_t smem = sizeof(float) * kParts * 32 * Shape::kWidth * kSegmentVecs;
            launch<embedding_backward_kernel<T, Shape, kParts>>({N, kParts * 32, smem}, stream, dtable, dout, ids,
                                                                order, N, C);
        }
    });
}

FOR_STORAGE_TYPES(embedding_forward);
FOR_STORAGE_TYPES(embedding_backward);

}  // namespace teon
