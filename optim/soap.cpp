// SOAP (Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv 2409.11321, algorithm 3) for the
// hidden matrices: Adam in the eigenbases of L and R, the running means of G G^T and of G^T G.
//
//   G' = B_L G B_R^T;  M = beta1 M + (1-beta1) G;  M' = B_L M B_R^T;  V = beta2 V + (1-beta2) G'^2
//   W  = (1 - r wd) (W - r B_L^T (M' / (sqrt(V) + eps)) B_R);  L = beta2 L + (1-beta2) G G^T, R likewise
//
// The rows of B_L and B_R are the eigenvectors of L and R by ascending eigenvalue, recomputed every soap_frequency
// updates (algorithm 4 of the paper uses QR instead, to save time). As in the authors' program
// (https://github.com/nikhilvyas/SOAP), the first update only initializes L and R, because a gradient is diagonal in
// its own bases, and Adam would amplify the rounding errors off the diagonal; the rate has Adam's bias corrections, so
// that eps is added to the uncorrected root; and before new eigenvectors replace the old ones, V is ordered by the old
// ones' parts of the new factor. Unlike there, eigenvectors with an eigenvalue below 2^-14 of the largest share their
// second moments (SoapShared): rounding decides their directions, and must not decide steps. Sides longer than
// soap_max_dim keep the standard basis, without a factor or eigenvectors.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "kernels/fill.h"
#include "kernels/optimizers/soap.h"
#include "optim/methods.h"
#include "optim/placement.h"
#include "optim/stacks.h"

namespace teon {

namespace {

bool has_basis(const OptimizerOptions& options, int side) { return side <= options.soap_max_dim; }

std::vector<int> sides_with_basis(const Stack& stack, const OptimizerOptions& options) {
    std::vector<int> sides = {stack.m, stack.n};
    std::erase_if(sides, [&](int side) { return !has_basis(options, side); });
    return sides;
}

std::vector<StateShape> state_of(const OptimizerOptions& options, const ParamRow& row) {
    const int m = row.logical_rows;
    const int n = row.logical_cols;
    std::vector<StateShape> state = {{"m", m, n}, {"v", m, n}};
    // shared: how many eigenvectors share second moments. Version 0.2.0 had no such eigenvectors.
    if (has_basis(options, m))
        state.insert(state.end(), {{"left", m, m}, {"left_basis", m, m}, {"left_shared", 1, 1, true}});
    if (has_basis(options, n))
        state.insert(state.end(), {{"right", n, n}, {"right_basis", n, n}, {"right_shared", 1, 1, true}});
    return state;
}

// Three changes of basis, the factors' products (symmetric: half), and 9 n^3 for an eigendecomposition (Golub & Van
// Loan, Matrix Computations, section 8.3) every soap_frequency updates.
void plan_stack(Stack& stack, const OptimizerOptions& options) {
    for (const double side : sides_with_basis(stack, options))
        stack.flops += 7 * side * stack.m * stack.n + 9 * side * side * side / options.soap_frequency;
}

constexpr int kScratchMatrices = 3;

// The intermediate matrices, the workspace of an eigendecomposition (LAPACK's ssyevd: 1 + 6n + 2n^2), and the product
// and the arrays that order V.
int64_t scratch_of(const OptimizerPlan& plan, const OptimizerOptions& options, const Placement*) {
    int64_t elements = 0;
    int64_t work = 0;
    for (const Stack& stack : plan.stacks) {
        elements = std::max(elements, int64_t{stack.m} * stack.n);
        for (const int64_t side : sides_with_basis(stack, options))
            work = std::max(work, 2 + 10 * side + 3 * side * side);
    }
    return static_cast<int64_t>(sizeof(float)) * (kScratchMatrices * elements + work);
}

std::string describe(const Stack& stack, const OptimizerOptions& options) {
    const std::vector<int> sides = sides_with_basis(stack, options);
    return sides.empty() ? "none" : fmt::format("{} every {}", joined(sides, " and "), options.soap_frequency);
}

constexpr int kNotRead = -1;

// A side's factor and eigenvectors (size x size); nullptr for the standard basis.
struct Side {
    int size = 0;
    float* factor = nullptr;
    float* basis = nullptr;
    float* shared_state = nullptr;  // `shared` in the state, 0 before the first eigenvectors
    int shared = 0;  // eigenvectors that share their second moments, the first ones; kNotRead: read shared_state
};

struct SoapMatrix {
    const ParamRow* row;
    UpdateRate rate;
    float *m, *v;
    Side left_side;
    Side right_side;
};

class SoapUpdater : public MatrixUpdater {
public:
    explicit SoapUpdater(const MatrixSetup& setup) : options_(setup.options) {
        int64_t elements = 0;
        int64_t sides = 0;
        std::vector<int> params;
        for (const Stack& stack : setup.plan.stacks)
            for (int i : stack.params) {
                params.push_back(i);
                const std::vector<int64_t>& at = setup.at[i];
                if (at.empty()) continue;
                const ParamRow& row = setup.table[i];
                size_t next = 0;
                auto take = [&] { return setup.state + at[next++]; };
                auto take_side = [&](int size) {
                    if (!has_basis(options_, size)) return Side{.size = size};
                    float* factor = take();
                    float* basis = take();
                    return Side{size, factor, basis, take(), kNotRead};
                };
                SoapMatrix matrix{&row, rate_of(row, options_, lr_scale_of(row.role, options_)), take(), take(), {},
                                  {}};
                matrix.left_side = take_side(row.logical_rows);
                matrix.right_side = take_side(row.logical_cols);
                matrices_.push_back(matrix);
                elements = std::max(elements, row.logical_size());
                sides = std::max<int64_t>(sides, int64_t{row.logical_rows} + row.logical_cols);
            }
        std::sort(params.begin(), params.end());
        updated_ = setup.ownership.parts(params);
        for (Buffer<float>& scratch : scratch_) scratch = Buffer<float>(elements);
        means_ = Buffer<float>(1 + sides);
    }

    void update(ParamStore& params, const StepControl* control,
                const std::function<void(const std::vector<Part>&)>& exchange, Context& context) override {
        StepControl now;
        download(&now, control, 1, context.stream);
        context.stream.synchronize();
        if (now.skip == 0)
            for (SoapMatrix& matrix : matrices_) update_matrix(matrix, params, control, now, context);
        exchange(updated_);
    }

    bool update_waits() const override { return true; }

private:
    // now: control's content.
    void update_matrix(SoapMatrix& x, ParamStore& params, const StepControl* control, const StepControl& now,
                       Context& context) {
        const int updates = now.updates - 1;  // not counting the first
        const float* grad = params.sums().at<float>(x.row->offset);
        if (updates > 0) {
            const float* direction = update_moments(x, grad, now, updates, context);
            soap_apply(params.masters().at<float>(x.row->offset), params.work_copy_at(x.row->offset), direction,
                       x.left_side.size, x.right_side.size, x.row->cols, x.rate, control, context.stream);
        }
        // The products below do not take the scale as a factor: CPUs generate code per factor, and the scale changes.
        const int m = x.left_side.size;
        const int n = x.right_side.size;
        float* scaled = scratch_[0].data();
        zero(scaled, int64_t{m} * n, context.stream);
        soap_momentum(scaled, grad, m, n, x.row->cols, now.scale, 0.0f, context.stream);
        for (Side* side : {&x.left_side, &x.right_side}) {
            if (side->factor == nullptr) continue;
            const bool is_left = side == &x.left_side;
            context.linalg.gemm({.M = side->size,
                                 .N = side->size,
                                 .K = is_left ? n : m,
                                 .trans_a = !is_left,
                                 .trans_b = is_left,
                                 .A = mat(scaled, n),
                                 .B = mat(scaled, n),
                                 .C = mat(side->factor, side->size),
                                 .alpha = 1.0f - options_.beta2,
                                 .beta = updates > 0 ? options_.beta2 : 0.0f,
                                 .symmetric = true});
            if (updates % options_.soap_frequency != 0) continue;
            if (updates > 0) reorder_second_moments(x, is_left, context);
            compute_basis(
                *side, fmt::format("{}: no eigenvectors of SOAP's {} factor", x.row->name, is_left ? "left" : "right"),
                context);
        }
    }

    // Returns the direction of the update (m x n) after the moments' update.
    const float* update_moments(SoapMatrix& x, const float* grad, const StepControl& now, int updates,
                                Context& context) {
        const OptimizerOptions& o = options_;
        const int m = x.left_side.size;
        const int n = x.right_side.size;
        const Stream& stream = context.stream;
        float* g = scratch_[0].data();
        float* moment = scratch_[1].data();
        soap_momentum(x.m, grad, m, n, x.row->cols, now.scale, o.beta1, stream);
        change_basis(g, mat(grad, x.row->cols), x, true, context);
        change_basis(moment, mat(x.m, n), x, true, context);
        const SoapShared shared = shared_of(x, stream);
        const Side& side = shared.rows > 0 ? x.left_side : x.right_side;
        if (shared.any()) soap_shared_means(shared, g, side.factor, side.size, m, n, stream);
        soap_direction(g, x.v, g, moment, shared, m, n,
                       {now.scale, o.beta2, correction(o.beta1, updates), correction(o.beta2, updates), o.eps}, stream);
        change_basis(moment, mat(g, n), x, false, context);
        return moment;
    }

    SoapShared shared_of(SoapMatrix& x, const Stream& stream) {
        for (Side* side : {&x.left_side, &x.right_side}) {
            if (side->shared != kNotRead) continue;
            float shared = 0;
            download(&shared, side->shared_state, 1, stream);
            stream.synchronize();
            side->shared = static_cast<int>(shared);
        }
        float* means = means_.data();
        return {x.left_side.shared, x.right_side.shared, means + 1, means + 1 + x.right_side.size, means};
    }

    void compute_basis(Side& side, const std::string& fault, Context& context) {
        const int n = side.size;
        copy(side.basis, side.factor, int64_t{n} * n, context.stream);
        try {
            context.linalg.eigh(side.basis, n, vector(n));
        } catch (const Error& error) { throw Error(fmt::format("{}: {}", fault, error.what())); }
        const std::vector<float> w = download_vector(n, context.stream);
        const float limit = 0x1p-14f * w.back();
        side.shared = static_cast<int>(std::count_if(w.begin(), w.end(), [&](float x) { return x <= limit; }));
        if (!(w.back() > 0)) side.shared = 0;  // no gradient so far: the standard basis
        fill_constant(side.shared_state, 1, 1, 1, 1, static_cast<float>(side.shared), context.stream);
    }

    static float correction(float beta, int updates) {
        return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), updates));
    }

    float* vector(int n) {
        if (vector_.size() < n) vector_ = Buffer<float>(n);  // its last reader has waited for the stream
        return vector_.data();
    }
    std::vector<float> download_vector(int n, const Stream& stream) {
        std::vector<float> values(n);
        download(values.data(), vector_.data(), n, stream);
        stream.synchronize();
        return values;
    }

    // Sorts the rows of V, or its columns, by what the factor has along the present eigenvectors, b F b^T.
    void reorder_second_moments(const SoapMatrix& x, bool is_left, Context& context) {
        const Side& side = is_left ? x.left_side : x.right_side;
        const int n = side.size;
        const Stream& stream = context.stream;
        if (product_.size() < int64_t{n} * n) product_ = Buffer<float>(int64_t{n} * n);
        if (order_.size() < n) order_ = Buffer<int>(n);
        context.linalg.gemm(
            {.M = n, .N = n, .K = n, .A = mat(side.basis, n), .B = mat(side.factor, n), .C = mat(product_.data(), n)});
        soap_row_products(vector(n), product_.data(), side.basis, n, stream);
        std::vector<float> parts = download_vector(n, stream);
        // Directions that share second moments stay together.
        const double sum = std::accumulate(parts.begin(), parts.begin() + side.shared, 0.0);
        std::fill_n(parts.begin(), side.shared, static_cast<float>(sum / std::max(side.shared, 1)));
        if (!std::all_of(parts.begin(), parts.end(), [](float part) { return std::isfinite(part); })) return;
        std::vector<int> order(n);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return parts[i] < parts[j]; });
        upload(order_.data(), order.data(), n, stream);
        soap_reorder(scratch_[1].data(), x.v, order_.data(), x.left_side.size, x.right_side.size, !is_left, stream);
        copy(x.v, scratch_[1].data(), int64_t{x.left_side.size} * x.right_side.size, stream);
        stream.synchronize();  // the upload reads `order`
    }

    // out (dense) = B_L X B_R^T, or B_L^T X B_R if not `forward`. Uses the last of the scratch matrices.
    void change_basis(float* out, const Mat& X, const SoapMatrix& x, bool forward, Context& context) {
        const int m = x.left_side.size;
        const int n = x.right_side.size;
        Mat half = X;
        if (x.left_side.basis) {
            half = mat(x.right_side.basis ? scratch_[2].data() : out, n);
            context.linalg.gemm(
                {.M = m, .N = n, .K = m, .trans_a = !forward, .A = mat(x.left_side.basis, m), .B = X, .C = half});
        }
        if (x.right_side.basis) {
            context.linalg.gemm({.M = m,
                                 .N = n,
                                 .K = n,
                                 .trans_b = forward,
                                 .A = half,
                                 .B = mat(x.right_side.basis, n),
                                 .C = mat(out, n)});
        } else if (!x.left_side.basis) {
            for (int i = 0; i < m; ++i)  // no basis: copy the rows of X, which has another stride
                copy(out + int64_t{i} * n, static_cast<const float*>(X.data) + i * X.ld, n, context.stream);
        }
    }

    const OptimizerOptions& options_;
    std::vector<SoapMatrix> matrices_;  // on this rank
    std::vector<Part> updated_;         // on all ranks
    Buffer<float> scratch_[kScratchMatrices], vector_, product_;
    Buffer<float> means_;  // SoapShared's floor, row_means and column_means
    Buffer<int> order_;
};

}  // namespace

const MatrixRule kSoap{"eigenvectors", "changes of basis",       state_of, plan_stack, scratch_of,
                       describe,       make_updater<SoapUpdater>};

}  // namespace teon
