#include "optim/orthogonalize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/integer.h"
#include "kernels/optimizers/teon.h"
#include "runtime/context.h"

namespace teon {

namespace {

// The aligned arrays of orthogonalize()'s scratch. Without memory, only `bytes` is valid.
struct Scratch {
    void* Y = nullptr;                                // second buffer for X
    std::array<void*, 4> square{};                    // (count, side, side)
    float *U = nullptr, *S = nullptr, *Vt = nullptr;  // svd: rows x r, r, r x cols, of one matrix
    int64_t bytes = 0;

    Scratch(void* memory, const OrthoMethod& method, const MatrixBatch& batch) {
        const int64_t r = std::min(batch.rows, batch.cols);
        const int64_t s = batch.side();
        const int64_t square_size = batch.count * s * round_up(s, method.row_alignment());
        auto take = [&](int64_t elements, size_t element_bytes) -> void* {
            void* begin = memory ? static_cast<std::byte*>(memory) + bytes : nullptr;
            bytes += aligned(elements * static_cast<int64_t>(element_bytes));
            return begin;
        };
        auto take_floats = [&](int64_t n) { return static_cast<float*>(take(n, sizeof(float))); };
        if (method.ortho == Ortho::svd) {
            U = take_floats(batch.rows * r);
            S = take_floats(r);
            Vt = take_floats(r * batch.cols);
            return;
        }
        Y = take(batch.size(), size_of(method.dtype));
        for (int i = 0; i < (method.form == NsForm::gram ? 4 : 2); ++i)
            square[i] = take(square_size, size_of(method.dtype));
    }
};

// One Newton-Schulz run. All squares are polynomials of one symmetric matrix, so they commute and every product of two
// is symmetric.
class NewtonSchulz {
public:
    NewtonSchulz(void* X, const Scratch& scratch, const MatrixBatch& batch, const OrthoMethod& method, Context& context)
        : batch_(batch),
          method_(method),
          context_(context),
          scratch_(scratch),
          set_(ns_set(method.ortho)),
          X_(X),
          Y_(scratch.Y) {}

    void* standard() {
        void* R = scratch_.square[0];
        void* Z = scratch_.square[1];
        for (int t = 0; t < method_.ns_steps; ++t) {
            const NsTriple q = set_.at(t);
            gram(R);
            multiply(Z, R, R, q.c, q.b, R);  // Z = b R + c R^2
            apply(Z, q.a);                   // X <- a X + Z X
        }
        return X_;
    }

    // q(R) = a I + Z. The multiple of I is kept as a number, so that half precision need not represent it in Z.
    void* gram_form() {
        auto [R, Z, Q, spare] = scratch_.square;
        int done = 0;  // steps accumulated in Q since X was last multiplied by it
        for (int t = 0; t < method_.ns_steps; ++t) {
            const NsTriple q = set_.at(t);
            const bool last = t + 1 == method_.ns_steps || restarts_after(method_, side(), t + 1);
            if (done == 0) gram(R);
            multiply(Z, R, R, q.c, q.b, R);  // Z = b R + c R^2
            if (last && done == 0) {
                apply(Z, q.a);  // X <- a X + Z X
                continue;
            }
            if (done == 0) {
                add_identity(Q, Z, q.a);  // Q = a I + Z
            } else {
                multiply(spare, Q, Z, 1, q.a, Q);  // Q <- a Q + Q Z
                std::swap(Q, spare);
            }
            if (last) {
                apply(Q, 0);  // X <- Q X
            } else {
                multiply(spare, R, Z, 1, q.a, R);      // R q
                multiply(R, spare, Z, 1, q.a, spare);  // R <- R q^2
            }
            done = last ? 0 : done + 1;
        }
        return X_;
    }

private:
    int side() const { return batch_.side(); }
    bool by_rows() const { return batch_.by_rows; }
    int64_t square_ld() const { return round_up(int64_t{side()}, method_.row_alignment()); }
    Mat whole(void* p) const { return {p, method_.dtype, batch_.ld, batch_.stride(), 0}; }
    Mat square(void* p) const { return {p, method_.dtype, square_ld(), side() * square_ld(), 0}; }

    void run(Gemm g) const {
        g.batch_inner = batch_.count;
        context_.linalg.gemm(g);
    }

    // R = X X^T, or X^T X by columns.
    void gram(void* R) const {
        run({.M = side(),
             .N = side(),
             .K = by_rows() ? batch_.cols : batch_.rows,
             .trans_a = !by_rows(),
             .trans_b = by_rows(),
             .A = whole(X_),
             .B = whole(X_),
             .C = square(R),
             .symmetric = true});
    }

    // C = alpha A B + beta addend; C is neither A nor B.
    void multiply(void* C, void* A, void* B, double alpha, double beta, void* addend) const {
        Gemm g{.M = side(),
               .N = side(),
               .K = side(),
               .trans_b = true,
               .A = square(A),
               .B = square(B),
               .C = square(C),
               .alpha = static_cast<float>(alpha),
               .beta = static_cast<float>(beta),
               .symmetric = true};
        if (addend != C) g.addend = square(addend);
        run(g);
    }

    // X <- a X + Q X, or a X + X Q by columns.
    void apply(void* Q, double a) {
        Gemm g{.M = batch_.rows,
               .N = batch_.cols,
               .K = side(),
               .A = by_rows() ? square(Q) : whole(X_),
               .B = by_rows() ? whole(X_) : square(Q),
               .C = whole(Y_),
               .beta = static_cast<float>(a)};
        if (a != 0) g.addend = whole(X_);
        run(g);
        std::swap(X_, Y_);
    }

    // Q = a I + Z
    void add_identity(void* Q, const void* Z, double a) const {
        visit_dtype(method_.dtype, [&]<typename T>(T) {
            teon::add_identity(static_cast<T*>(Q), static_cast<const T*>(Z), static_cast<float>(a), batch_.count,
                               side(), square_ld(), context_.stream);
        });
    }

    const MatrixBatch& batch_;
    const OrthoMethod& method_;
    Context& context_;
    const Scratch& scratch_;
    const NsSet set_;
    void *X_, *Y_;  // swapped after each product
};

void polar_by_svd(float* X, const Scratch& scratch, const MatrixBatch& batch, Context& context) {
    const int r = std::min(batch.rows, batch.cols);
    // svd, not eigh of X X^T: squaring in float would lose the singular vectors below 3e-4 sigma_1. Rounding gives zero
    // singular values a size of about epsilon * sigma_1.
    const float tolerance = 0x1p-23f * std::sqrt(static_cast<float>(r));
    for (int i = 0; i < batch.count; ++i) {
        float* x = X + i * batch.stride();
        context.linalg.svd(x, batch.rows, batch.cols, scratch.U, scratch.S, scratch.Vt);
        drop_null_directions(scratch.U, scratch.S, batch.rows, r, tolerance, context.stream);
        context.linalg.gemm({.M = batch.rows,
                             .N = batch.cols,
                             .K = r,
                             .A = mat(scratch.U, r),
                             .B = mat(scratch.Vt, batch.cols),
                             .C = mat(x, batch.ld)});
    }
}

}  // namespace

double OrthoMethod::margin() const { return ortho == Ortho::svd ? 1.0 : ns_set(ortho).margin; }

// Whole vectors of any element type on either backend; LAPACK needs dense rows.
int OrthoMethod::row_alignment() const { return ortho == Ortho::svd ? 1 : 16; }

// Rounding gives R small negative eigenvalues, which a step multiplies by about a^2. f16 and bf16: the rules of
// Dao-AILab's gram-newton-schulz, continued (docs/optimizers.md). The steep sets map singular values of up to 2, where
// its second step is steep, and on short sides few roundings of R average out. Spectra from 1 to .03 in bf16, on 12 x
// 20 to 50 x 150: .15 to 1.6 with two steps on R, .03 with one; with 96 rows, .06 and .014. float: error against
// float64 of five polar-express steps on 192 x 384 matrices with spectra 1/i, logarithmic to 1e-3 and to 1e-6: 1e-4 to
// 8e-4 without a restart, 1e-4 to 2e-4 with one after four steps, 1e-5 to 2e-5 after three, 1e-5 to 1e-4 after two
// (standard form: 2e-6 to 1e-5); eight steps without a restart, up to 1.5e-2.
bool restarts_after(const OrthoMethod& method, int side, int ns_steps) {
    switch (method.dtype) {
        case DType::f32:
            return ns_steps % 3 == 0;
        case DType::f16:
            return ns_steps % 3 == 2;
        case DType::bf16:
            return ns_steps % 2 == 1 || (ns_set(method.ortho).steep && side < kShortSide);
        case DType::e4m3:
        case DType::e5m2:
            break;
    }
    return true;
}

double ortho_flops(const OrthoMethod& method, int rows, int cols) {
    const int side = std::min(rows, cols);
    const double s = side;
    const double l = std::max(rows, cols);
    if (method.ortho == Ortho::svd) return 6 * l * s * s + 20 * s * s * s + 2 * l * s * s;
    if (method.form != NsForm::gram) return method.ns_steps * (3 * l * s * s + s * s * s);
    double flops = 0;
    for (int t = 0, length = 0; t < method.ns_steps; ++t) {
        ++length;  // of the segment since the last restart
        const bool last = t + 1 == method.ns_steps || restarts_after(method, side, t + 1);
        flops += (length > 1 ? 2 : 1) * s * s * s;      // the step, and Q times it
        flops += last ? 3 * l * s * s : 2 * s * s * s;  // X X^T and Q X of the segment; R q^2
        if (last) length = 0;
    }
    return flops;
}

NsForm resolve_form(NsForm requested, const OrthoMethod& method, int rows, int cols) {
    if (requested != NsForm::automatic) return requested;
    if (method.ortho == Ortho::svd) return NsForm::standard;
    OrthoMethod standard = method;
    OrthoMethod gram = method;
    standard.form = NsForm::standard;
    gram.form = NsForm::gram;
    return ortho_flops(gram, rows, cols) <= 0.9 * ortho_flops(standard, rows, cols) ? NsForm::gram : NsForm::standard;
}

int64_t ortho_scratch_bytes(const OrthoMethod& method, const MatrixBatch& batch) {
    return Scratch(nullptr, method, batch).bytes;
}

void* orthogonalize(void* X, void* scratch, const MatrixBatch& batch, const OrthoMethod& method, Context& context) {
    CHECK(batch.count > 0 && batch.rows > 0 && batch.cols > 0 && batch.ld >= batch.cols,
          "orthogonalize: {} matrices of {} x {}, row stride {}", batch.count, batch.rows, batch.cols, batch.ld);
    CHECK(method.ns_steps > 0, "orthogonalize: {} steps; at least one is needed", method.ns_steps);
    CHECK(method.form != NsForm::automatic, "orthogonalize: the form must be resolved (resolve_form)");
    const Scratch arrays(scratch, method, batch);
    if (method.ortho == Ortho::svd) {
        CHECK(method.dtype == DType::f32 && batch.ld == batch.cols, "svd works on dense float matrices");
        polar_by_svd(static_cast<float*>(X), arrays, batch, context);
        return X;
    }
    NewtonSchulz run(X, arrays, batch, method, context);
    return method.form == NsForm::gram ? run.gram_form() : run.standard();
}

}  // namespace teon
