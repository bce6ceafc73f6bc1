// How kernels divide flat arrays and rows among threads, and the vector width of their accesses. Private to kernels/.
//
// Only this file chooses widths: kVecWidth elements if all rows start aligned, else 1. For a given C, the elements of a
// row are always summed in the same order, whatever the grid. A result that depends on one element alone has the same
// bits at every width; therefore products that are added to something are explicit fmaf, because compilers contract a
// vector body and its tail differently.
#pragma once

#include <type_traits>

#include "base/integer.h"
#include "runtime/simt.h"

namespace teon {

// Instantiates operation<T> for the types that models are stored in.
#define FOR_STORAGE_TYPES(operation)                      \
    template decltype(operation<float>) operation<float>; \
    template decltype(operation<bf16>) operation<bf16>

// ---- vectors ------------------------------------------------------------------------------------

// Passes an integer as a type: f(Constant<4>{}) calls [&]<int N>(Constant<N>) { ... } with N = 4.
template <int N>
using Constant = std::integral_constant<int, N>;

// Calls f(Constant<W>{}) if accesses of W elements are possible, else f(Constant<1>{}).
template <int W, typename F>
void at_width(bool possible, F f) {
    if (possible) {
        f(Constant<W>{});
    } else {
        f(Constant<1>{});
    }
}

// Calls f<CONDITIONS...>() with the values of conditions that are known at run time.
template <bool... KNOWN, typename F>
void at_conditions(F f) {
    f.template operator()<KNOWN...>();
}
template <bool... KNOWN, typename F, typename... More>
void at_conditions(F f, bool condition, More... more) {
    if (condition) {
        at_conditions<KNOWN..., true>(f, more...);
    } else {
        at_conditions<KNOWN..., false>(f, more...);
    }
}

// Loads W elements of T as floats; store_floats rounds them back.
template <int W, typename T>
__device__ __forceinline__ Vec<float, W> load_floats(const T* p) {
    Vec<T, W> x = load_vec<W>(p);
    Vec<float, W> y;
    FOR_VEC(k, W) y[k] = static_cast<float>(x[k]);
    return y;
}
template <typename T, int W>
__device__ __forceinline__ void store_floats(T* p, const Vec<float, W>& x) {
    store_vec(p, round_vec<T>(x));
}

// The sum of the elements, by halves.
template <int W>
__device__ __forceinline__ float sum_of(const Vec<float, W>& x) {
    if constexpr (W == 1) {
        return x[0];
    } else {
        Vec<float, W / 2> half;
        FOR_VEC(k, W / 2) half[k] = x[k] + x[k + W / 2];
        return sum_of(half);
    }
}

// ---- flat arrays --------------------------------------------------------------------------------

inline constexpr int kFlatBlock = 256;
inline constexpr int kFlatVecsPerThread = 4;

// The number of blocks with which for_each_vec<W> covers n elements.
template <int W>
int64_t flat_blocks(int64_t n) {
    int64_t per_block = int64_t{kFlatBlock} * kFlatVecsPerThread * W;
    return ceil_div(n, per_block);
}

// Calls f(width, i) for each piece [i, i + width) of this thread: width is W, or 1 in the tail of n.
template <int W, typename F>
__device__ __forceinline__ void for_each_vec(int64_t n, F f) {
    for (int k = 0; k < kFlatVecsPerThread; ++k) {
        int64_t i = ((int64_t{blockIdx.x} * kFlatVecsPerThread + k) * kFlatBlock + threadIdx.x) * W;
        if (i + W <= n) {
            f(Constant<W>{}, i);
        } else {
            for (; i < n; ++i) f(Constant<1>{}, i);
            return;
        }
    }
}

// ---- rows ---------------------------------------------------------------------------------------

// kLanes threads (a warp, or one thread) process a row, kWidth elements at a time. If kHeld > 0, each lane can hold its
// part of the row, at most kHeld vectors, in registers.
template <int WIDTH, int LANES, int HELD>
struct RowShape {
    static constexpr int kWidth = WIDTH;
    static constexpr int kLanes = LANES;
    static constexpr int kHeld = HELD;
    static constexpr int kBlock = LANES == 1 ? 32 : 128;
    static constexpr int kRowsPerBlock = kBlock / LANES;
    static constexpr int kUnroll = WIDTH == 1 ? 1 : 4;  // unaligned rows are rare: their code stays small

    static int64_t blocks(int64_t rows) { return ceil_div(rows, kRowsPerBlock); }

    static __device__ __forceinline__ int row() {
        return static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / LANES;
    }
    static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % LANES; }

    // The sum over the lanes of a row; every lane gets it.
    static __device__ __forceinline__ float sum(const Vec<float, WIDTH>& x) {
        if constexpr (LANES == 1) {
            return sum_of(x);
        } else {
            return warp_sum(sum_of(x));
        }
    }

    // Calls f(slot, j) for each of this lane's vectors [j, j + WIDTH) of a row of C elements.
    template <typename F>
    static __device__ __forceinline__ void for_each(int C, F f) {
        if constexpr (HELD > 0) {
#pragma unroll
            for (int slot = 0; slot < HELD; ++slot) {
                int j = (slot * LANES + lane()) * WIDTH;
                if (j < C) f(slot, j);
            }
        } else {
#pragma unroll kUnroll
            for (int j = lane() * WIDTH; j < C; j += LANES * WIDTH) f(0, j);
        }
    }
};

// This lane's part of a row that is read several times: held in registers if it fits, else read again (from cache).
// First keep() all vectors in a loop of its own, so that all loads start before the first is waited for.
template <typename T, typename Shape, bool HOLD = (Shape::kHeld > 0)>
struct RowCache {
    Vec<T, Shape::kWidth> held[HOLD ? Shape::kHeld : 1];

    __device__ __forceinline__ void keep(int slot, const T* p) {
        if constexpr (HOLD) held[slot] = load_vec<Shape::kWidth>(p);
    }
    // Vector `slot`, whose memory is p.
    __device__ __forceinline__ Vec<float, Shape::kWidth> get(int slot, const T* p) const {
        if constexpr (HOLD) {
            return load_floats<Shape::kWidth>(held[slot].v);
        } else {
            return load_floats<Shape::kWidth>(p);
        }
    }
};

// One thread reduces a row of up to kThreadRow elements; a warp or block reduces a longer one. On a CPU a warp-wide
// reduction costs as much as reading a short row. On a GPU neighbouring threads share every row, so that their loads
// coalesce.
inline constexpr int kThreadRow = kGpu ? 0 : 2048;
inline constexpr bool kRowsByThread = kThreadRow > 0;

// What a kernel does with a row: it changes each element by itself, it also sums over the row, or it sums over a row
// that it reads several times, which a GPU holds in registers if it fits.
enum class RowUse { elements, sums, held };

// Calls f(shape) with the RowShape that processes rows of `row` elements WIDTH elements at a time.
template <int WIDTH, RowUse USE, typename F>
void for_row_lanes(int64_t row, F f) {
    constexpr bool kOneThread = kRowsByThread && USE == RowUse::elements;
    if constexpr (kRowsByThread)
        if (kOneThread || row <= kThreadRow) return f(RowShape<WIDTH, 1, 0>{});
    if constexpr (!kOneThread) f(RowShape<WIDTH, 32, 0>{});
}

// Calls f(shape) with the RowShape for rows of `row` elements of T, which uses vectors if the rows are aligned.
template <typename T, RowUse USE, typename F>
void for_row_shape(bool aligned, int64_t row, F f) {
    constexpr int W = kVecWidth<T>;
    if (!aligned) return for_row_lanes<1, USE>(row, f);
    if constexpr (kGpu && USE == RowUse::held) {
        if (row <= 32 * W * 4) return f(RowShape<W, 32, 4>{});
        if (row <= 32 * W * 8) return f(RowShape<W, 32, 8>{});
    }
    for_row_lanes<W, USE>(row, f);
}

}  // namespace teon
