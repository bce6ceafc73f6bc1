// Causal self-attention through batched gemm (the method of Vaswani et al. 2017, https://arxiv.org/abs/1706.03762,
// section 3.2.1, in blocks of query rows). For a block of rows [begin, end) only the keys [0, end) are multiplied, so
// that most masked scores never exist and memory grows with T, not with T^2. With P = softmax(S), S = Q K^T / sqrt(HS):
//
//   forward    O = P V,  lse = log sum exp S
//   backward   P = exp(S - lse),  dP = dO V^T,  D = rowsum(dO * O),  dS = P * (dP - D) / sqrt(HS)
//              dQ = dS K,  dK = dS^T Q,  dV = P^T dO
//
// D is rowsum(dP * P), the softmax's own reduction, taken where it costs HS products and not T (Dao et al. 2022,
// https://arxiv.org/abs/2205.14135, appendix B.4).
//
// With dropout, P is multiplied by the mask M / (1 - p) where V multiplies it, and so is dP. lse is that of S, and D
// stays the same: rowsum((P M) * dP') = rowsum(dO * O).
//
// Nothing is permuted: gemm reads Q, K, V and writes O, dQ, dK, dV in the packed layout. A batch runs over sequences
// and key/value heads; the query heads of a group take turns, which also fixes the order in which they add to dK, dV.
//
// S and dP are float for bf16 storage, too; P and dS, which are operands again, are rounded to T. Scores rounded to
// bf16 would save half of the scratch, but an error of 2^-9 |S| in the exponent grows with the scores: at standard
// deviations of 1, 4 and 16 it makes the error of O 1.5, 3.6 and 8 times larger, that of dQ and dK 1.6, 2.4 and 6 times
// (T = 256, HS = 64, against float64).
#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "base/math.h"
#include "kernels/attention/parts.h"
#include "kernels/attention/rows.h"
#include "kernels/common.h"
#include "kernels/dropout.h"
#include "kernels/dropout_row.h"

namespace teon {

namespace {

constexpr int W = kScoreWidth;

// Query rows [begin, end) of all heads. Their scores are (B, NH, rows, ld); every row starts at a multiple of W.
struct RowBlock {
    int B, NH, T, begin, end;
    TEON_HD int rows() const { return end - begin; }
    TEON_HD int64_t ld() const { return round_up(end, W); }
    TEON_HD int64_t count() const { return static_cast<int64_t>(B) * NH * rows(); }
};

RowBlock row_block(const AttentionShape& s, int begin, int end) { return {s.B, s.NH, s.T, begin, end}; }

// Blocks of 64 rows waste at most 64 / T of the scores that they compute. Blocks of 128 rows make fewer and larger
// products, but waste twice as much and take twice the scratch, which only long sequences can afford.
int block_rows(const AttentionShape& s) { return std::min(s.T, s.T <= 512 ? 64 : 128); }

// The row of a block that a thread works on. The row's lanes take its columns in turn, W at a time.
template <typename Shape>
struct ScoreRow {
    int64_t row, head;  // among the block's B * NH * rows; b * NH + h
    int first, t;       // visible columns: first <= column <= t
    bool exists;
    __device__ bool visible(int column) const { return first <= column && column <= t; }

    __device__ ScoreRow(const RowBlock& block, const int* first_key) : row(Shape::row()), exists(row < block.count()) {
        if (!exists) return;
        head = row / block.rows();
        t = block.begin + static_cast<int>(row % block.rows());
        first = first_key ? first_key[head / block.NH * block.T + t] : 0;
    }

    __device__ DropoutRow dropout(const RowBlock& block, const DropoutMask& mask) const {
        return {mask, head / block.NH, head % block.NH * block.T + t};
    }
};

// The maximum over the lanes of a row, each of which has W numbers.
template <typename Shape>
__device__ float row_max(Vec<float, W> x) {
    if constexpr (Shape::kLanes == 1) {
        return largest_of(x);
    } else {
        return warp_max(largest_of(x));
    }
}

// probs = softmax(scores) row by row, 0 for masked columns; probs may alias scores. lse (B, NH, T). A NaN among the
// visible scores makes the row NaN. A thread that processes a whole row, whose scores are in its cache, stores the
// exponentials over them; lanes that share a row compute exponentials twice instead. DROPS: with dropout of probs.
template <typename T, typename Shape, bool DROPS>
__global__ void attention_softmax_forward_kernel(T* probs, float* lse, float* scores, const int* first_key,
                                                 RowBlock block, DropoutMask mask) {
    wait_for_earlier_kernels();
    constexpr int kStride = Shape::kLanes * W;
    constexpr bool kKeep = Shape::kLanes == 1;
    const ScoreRow<Shape> r(block, first_key);
    if (!r.exists) return;
    const int64_t ld = block.ld();
    float* s = scores + r.row * ld;
    T* p = probs + r.row * ld;
    const int begin = r.first / W * W + Shape::lane() * W;

    Vec<float, W> partial;
    FOR_VEC(i, W) partial[i] = -kAttentionInfinity;
    for (int j = begin; j <= r.t; j += kStride) {
        auto x = load_vec<W>(s + j);
        FOR_VEC(i, W) partial[i] = r.visible(j + i) && x[i] > partial[i] ? x[i] : partial[i];
    }
    const float maximum = row_max<Shape>(partial);

    partial = {};
    for (int j = begin; j <= r.t; j += kStride) {
        auto x = load_vec<W>(s + j);
        FOR_VEC(i, W) {
            x[i] = exp_fast(x[i] - maximum);
            partial[i] += r.visible(j + i) ? x[i] : 0.0f;
        }
        if constexpr (kKeep) store_vec(s + j, x);
    }
    const float sum = Shape::sum(partial);

    if (Shape::lane() == 0) lse[r.head * block.T + r.t] = maximum + logf(sum);
    const float normalize = 1.0f / sum;
    for (int j = Shape::lane() * W; j < ld; j += kStride) {
        Vec<float, W> y{};
        if (j + W > r.first && j <= r.t) {
            auto x = load_vec<W>(s + j);
            FOR_VEC(i, W) {
                float e = (kKeep ? x[i] : exp_fast(x[i] - maximum)) * normalize;
                y[i] = r.visible(j + i) ? e : 0.0f;
            }
            if constexpr (DROPS) {
                const auto factor = r.dropout(block, mask).template factors<W>(j);
                FOR_VEC(i, W) y[i] *= factor[i];
            }
        }
        store_floats(p + j, y);
    }
}

// probs = exp(scores - lse) and dscores = probs * (dprobs - scale * D), row by row, 0 for masked columns. dprobs is
// dP * scale. probs may alias scores, and dscores may alias dprobs. DROPS: dprobs is the gradient after dropout, and
// probs are dropped.
template <typename T>
struct SoftmaxBackward {
    T* probs;
    T* dscores;
    const float* scores;
    const float* dprobs;
    const T* dout;
    const T* out;
    const float* lse;
    const int* first_key;
};
template <typename T, typename Shape, bool DROPS>
__global__ void attention_softmax_backward_kernel(SoftmaxBackward<T> a, RowBlock block, int HS, float scale,
                                                  DropoutMask mask) {
    wait_for_earlier_kernels();
    constexpr int kStride = Shape::kLanes * W;
    const ScoreRow<Shape> r(block, a.first_key);
    if (!r.exists) return;

    const int64_t b = r.head / block.NH;
    const int64_t h = r.head % block.NH;
    const int64_t offset = ((b * block.T + r.t) * block.NH + h) * HS;
    const float D = scale * Shape::sum(partial_dot(a.dout + offset, a.out + offset, HS, Shape::lane() * W, kStride));

    const int64_t ld = block.ld();
    const int64_t start = r.row * ld;
    const float row_lse = a.lse[r.head * block.T + r.t];
    for (int j = Shape::lane() * W; j < ld; j += kStride) {
        // store_floats rounds them: rounding in the loop over exp would keep g++ from vectorizing it.
        Vec<float, W> p{};
        Vec<float, W> ds{};
        if (j + W > r.first && j <= r.t) {
            auto s = load_vec<W>(a.scores + start + j);
            auto dp = load_vec<W>(a.dprobs + start + j);
            [[maybe_unused]] Vec<float, W> factor;
            if constexpr (DROPS) {
                factor = r.dropout(block, mask).template factors<W>(j);
                FOR_VEC(i, W) dp[i] *= factor[i];
            }
            FOR_VEC(i, W) {
                float e = exp_fast(s[i] - row_lse);
                p[i] = r.visible(j + i) ? e : 0.0f;
                ds[i] = r.visible(j + i) ? e * (dp[i] - D) : 0.0f;
            }
            if constexpr (DROPS) FOR_VEC(i, W) p[i] *= factor[i];
        }
        store_floats(a.probs + start + j, p);
        store_floats(a.dscores + start + j, ds);
    }
}

// The last `columns` columns of dqkv (rows, width) = dkv (rows, columns), rounded. Each thread processes N columns;
// `columns` is a multiple of N.
template <typename T, int N>
__global__ void attention_round_kernel(T* dqkv, const float* dkv, int64_t rows, int columns, int64_t width) {
    wait_for_earlier_kernels();
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (i >= rows * columns) return;
    store_floats(dqkv + i / columns * width + (width - columns) + i % columns, load_vec<N>(dkv + i));
}

template <typename T>
void round_dkv(T* dqkv, const float* dkv, int64_t rows, int columns, int64_t width, const Stream& stream) {
    at_width<W>(columns % W == 0 && width % W == 0, [&]<int N>(Constant<N>) {
        launch<attention_round_kernel<T, N>>({ceil_div(rows * columns / N, 256), 256}, stream, dqkv, dkv, rows, columns,
                                             width);
    });
}

// The pieces of scratch: the scores of one row block, and dK and dV in float before they are rounded to T.
template <typename T>
struct Scratch {
    float *scores, *dprobs;
    T *probs, *dscores;    // scores and dprobs if T is float
    float* dkv = nullptr;  // (B, T, 2 NKV HS), keys then values; bf16 only
    size_t bytes;

    Scratch(void* base, const AttentionShape& s) {
        Pieces<aligned(1)> pieces(base);
        const int64_t n = static_cast<int64_t>(s.B) * s.NH * block_rows(s) * row_block(s, 0, s.T).ld();
        scores = pieces.take<float>(n);
        dprobs = pieces.take<float>(n);
        probs = pieces.take_rounded<T>(scores, n);
        dscores = pieces.take_rounded<T>(dprobs, n);
        if (!std::is_same_v<T, float>) dkv = pieces.take<float>(static_cast<int64_t>(s.B) * s.T * 2 * s.NKV * s.HS);
        bytes = pieces.bytes();
    }
};

// Describes heads to gemm as batches of matrices over key/value heads (inner) and sequences (outer).
struct Heads {
    const AttentionShape& s;
    int group = s.NH / s.NKV;

    // Query head g of every group, from row t on, in a tensor (B, T, width) whose rows begin with NH heads.
    template <typename T>
    Mat query(const T* x, int64_t width, int g, int t) const {
        return mat(x + t * width + g * s.HS, width, group * s.HS, s.T * width);
    }
    // Every key/value head of a tensor (B, T, width), after the first `skip` heads of each row.
    template <typename T>
    Mat key_value(const T* x, int64_t width, int skip) const {
        return mat(x + static_cast<int64_t>(skip) * s.HS, width, s.HS, s.T * width);
    }
    // Query head g of every group in the scores (B, NH, rows, ld) of a row block.
    template <typename T>
    Mat scores(const T* x, RowBlock block, int g) const {
        const int64_t head = block.rows() * block.ld();
        return mat(x + g * head, block.ld(), group * head, s.NH * head);
    }
};

// C (M x N) = alpha op(A) (M x K) op(B) (K x N) + beta C, for all sequences and key/value heads.
struct BatchedGemm {
    Linalg& linalg;
    const AttentionShape& s;
    void operator()(const Mat& C, const Mat& A, bool trans_a, const Mat& B, bool trans_b, int M, int N, int K,
                    float alpha, float beta) const {
        Gemm g;
        g.M = M;
        g.N = N;
        g.K = K;
        g.A = A;
        g.B = B;
        g.C = C;
        g.trans_a = trans_a;
        g.trans_b = trans_b;
        g.alpha = alpha;
        g.beta = beta;
        g.batch_inner = s.NKV;
        g.batch_outer = s.B;
        linalg.gemm(g);
    }
};

// Calls f with the shape of the block's rows and whether the probabilities are dropped.
template <typename F>
void for_row_lanes_and_mask(const RowBlock& block, const DropoutMask& mask, F f) {
    for_row_lanes<W, RowUse::sums>(block.ld(), [&](auto shape) {
        at_conditions([&]<bool DROPS>() { f(shape, std::bool_constant<DROPS>()); }, mask.p > 0);
    });
}

}  // namespace

template <typename T>
size_t attention_rows_scratch_bytes(const AttentionShape& s) {
    return Scratch<T>(nullptr, s).bytes;
}

template <typename T>
void attention_rows_forward(T* out, float* lse, void* scratch, const T* qkv, const int* first_key,
                            const AttentionShape& s, Context& context, const DropoutMask& dropout) {
    const Scratch<T> work(scratch, s);
    const Heads heads{s};
    const BatchedGemm gemm{context.linalg, s};
    const int64_t width = s.qkv_width();
    const int64_t out_width = s.out_width();
    const Mat K = heads.key_value(qkv, width, s.NH);
    const Mat V = heads.key_value(qkv, width, s.NH + s.NKV);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.HS));

    for (int begin = 0, step = block_rows(s); begin < s.T; begin += step) {
        const RowBlock block = row_block(s, begin, std::min(begin + step, s.T));
        const int rows = block.rows();
        const int keys = block.end;
        for (int g = 0; g < heads.group; ++g) {
            const Mat Q = heads.query(qkv, width, g, begin);
            const Mat S = heads.scores(work.scores, block, g);
            gemm(S, Q, false, K, true, rows, keys, s.HS, scale, 0.0f);
        }
        for_row_lanes_and_mask(block, dropout, [&]<typename Shape, bool DROPS>(Shape, std::bool_constant<DROPS>) {
            launch<attention_softmax_forward_kernel<T, Shape, DROPS>>({Shape::blocks(block.count()), Shape::kBlock},
                                                                      context.stream, work.probs, lse, work.scores,
                                                                      first_key, block, dropout);
        });
        for (int g = 0; g < heads.group; ++g) {
            const Mat O = heads.query(out, out_width, g, begin);
            const Mat P = heads.scores(work.probs, block, g);
            gemm(O, P, false, V, false, rows, s.HS, keys, 1.0f, 0.0f);
        }
    }
}

template <typename T>
void attention_rows_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                             const int* first_key, const AttentionShape& s, Context& context,
                             const DropoutMask& dropout) {
    const Scratch<T> work(scratch, s);
    const Heads heads{s};
    const BatchedGemm gemm{context.linalg, s};
    const int64_t width = s.qkv_width();
    const int64_t out_width = s.out_width();
    const Mat K = heads.key_value(qkv, width, s.NH);
    const Mat V = heads.key_value(qkv, width, s.NH + s.NKV);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.HS));

    // Float gradients accumulate in place, bf16 ones in scratch, so that they are rounded once.
    Mat dK;
    Mat dV;
    const int dkv_columns = 2 * s.NKV * s.HS;
    if constexpr (std::is_same_v<T, float>) {
        dK = heads.key_value(dqkv, width, s.NH);
        dV = heads.key_value(dqkv, width, s.NH + s.NKV);
    } else {
        dK = heads.key_value(work.dkv, dkv_columns, 0);
        dV = heads.key_value(work.dkv, dkv_columns, s.NKV);
    }

    // Starts with the last block, which sees all keys and so writes all of dK and dV; the others add to them.
    const int step = block_rows(s);
    for (int begin = (s.T - 1) / step * step; begin >= 0; begin -= step) {
        const RowBlock block = row_block(s, begin, std::min(begin + step, s.T));
        const int rows = block.rows();
        const int keys = block.end;
        for (int g = 0; g < heads.group; ++g) {
            const Mat Q = heads.query(qkv, width, g, begin);
            const Mat dO = heads.query(dout, out_width, g, begin);
            gemm(heads.scores(work.scores, block, g), Q, false, K, true, rows, keys, s.HS, scale, 0.0f);
            gemm(heads.scores(work.dprobs, block, g), dO, false, V, true, rows, keys, s.HS, scale, 0.0f);
        }
        for_row_lanes_and_mask(block, dropout, [&]<typename Shape, bool DROPS>(Shape, std::bool_constant<DROPS>) {
            launch<attention_softmax_backward_kernel<T, Shape, DROPS>>(
                {Shape::blocks(block.count()), Shape::kBlock}, context.stream,
                SoftmaxBackward<T>{work.probs, work.dscores, work.scores, work.dprobs, dout, out, lse, first_key},
                block, s.HS, scale, dropout);
        });
        for (int g = 0; g < heads.group; ++g) {
            const Mat Q = heads.query(qkv, width, g, begin);
            const Mat dO = heads.query(dout, out_width, g, begin);
            const Mat P = heads.scores(work.probs, block, g);
            const Mat dS = heads.scores(work.dscores, block, g);
            const float beta = keys == s.T && g == 0 ? 0.0f : 1.0f;
            gemm(heads.query(dqkv, width, g, begin), dS, false, K, false, rows, s.HS, keys, 1.0f, 0.0f);
            gemm(dK, dS, true, Q, false, keys, s.HS, rows, 1.0f, beta);
            gemm(dV, P, true, dO, false, keys, s.HS, rows, 1.0f, beta);
        }
    }
    if constexpr (!std::is_same_v<T, float>) {
        round_dkv(dqkv, work.dkv, static_cast<int64_t>(s.B) * s.T, dkv_columns, width, context.stream);
    }
}

FOR_STORAGE_TYPES(attention_rows_scratch_bytes);
FOR_STORAGE_TYPES(attention_rows_forward);
FOR_STORAGE_TYPES(attention_rows_backward);

}  // namespace teon
