// Compares SOAP with algorithm 3 of arXiv 2409.11321 in float64.
#include <map>
#include <numeric>

#include "optim/stacks.h"
#include "test/optim/optimizer_run.h"
#include "test/optim/param_tables.h"
#include "test/oracle/orthogonal.h"
#include "test/oracle/update_rate.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

OptimizerOptions soap_options(int max_dim = 10000) {
    OptimizerOptions o;
    o.method = Method::soap;
    o.lr = 0.01f;
    o.beta1 = o.beta2 = 0.95f;
    o.soap_frequency = 3;
    o.soap_max_dim = max_dim;
    return o;
}

constexpr TableShape kTable{.L = 2, .C = 8, .F = 12, .V = 20};

// The state tensor called `name`.
Matrix state_of(Run& run, const std::string& name) {
    for (const StateTensor& t : run.optimizer.state())
        if (t.name == name) return to_matrix(fetch(t.data, t.size(), run.context.stream), t.rows, t.cols);
    throw Error("no state " + name);
}

// Takes the eigenvectors from the optimizer and checks that they are eigenvectors: those of equal eigenvalues (zeros)
// have many bases.
struct SoapReference {
    OptimizerOptions o;
    Matrix W, M, V, L, R, BL, BR;
    int null_rows = 0, null_columns = 0;

    SoapReference(const OptimizerOptions& o, const Matrix& weight)
        : o(o), W(weight), M(W.rows, W.cols), V(W.rows, W.cols), L(W.rows, W.rows), R(W.cols, W.cols) {}

    static Matrix in_basis(const Matrix& x, const Matrix& BL, const Matrix& BR) {
        const Matrix half = BL.rows > 0 ? BL * x : x;
        return BR.rows > 0 ? half * transposed(BR) : half;
    }
    static void check_basis(const Matrix& B, const Matrix& factor) {
        const Matrix unit = B * transposed(B);
        const Matrix diagonal = B * factor * transposed(B);
        double before = -1;
        for (int i = 0; i < B.rows; ++i) {
            for (int j = 0; j < B.rows; ++j) {
                REQUIRE(std::abs(unit(i, j) - (i == j)) <= 1e-5);
                if (i != j) REQUIRE(std::abs(diagonal(i, j)) <= 1e-5 * frobenius(factor));
            }
            REQUIRE(diagonal(i, i) >= before - 1e-5 * frobenius(factor));
            before = diagonal(i, i);
        }
    }
    // The number of eigenvectors whose eigenvalue is below 2^-14 of the largest.
    static int null_of(const Matrix& B, const Matrix& factor) {
        const Matrix diagonal = B * factor * transposed(B);
        int count = 0;
        for (int i = 0; i < B.rows; ++i) count += diagonal(i, i) < 0x1p-14 * diagonal(B.rows - 1, B.rows - 1);
        return count;
    }
    // The squares of g, in null rows and columns their means and what keeps rounding noise small.
    static Matrix squares(const Matrix& g, int rows, int columns, double mean_square) {
        Matrix s = g;
        for (double& x : s.a) x *= x;
        auto average = [](Matrix x, int rows) {
            for (int j = 0; j < x.cols && rows > 0; ++j) {
                double sum = 0;
                for (int i = 0; i < rows; ++i) sum += x(i, j);
                for (int i = 0; i < rows; ++i) x(i, j) = sum / rows;
            }
            return x;
        };
        s = transposed(average(transposed(average(s, rows)), columns));
        for (int i = 0; i < s.rows; ++i)
            for (int j = 0; j < s.cols; ++j)
                if (i < rows || j < columns) s(i, j) += 0x1p-20 * mean_square;
        return s;
    }
    static double trace(const Matrix& x) {
        double sum = 0;
        for (int i = 0; i < x.rows; ++i) sum += x(i, i);
        return sum;
    }
    // V's rows by what the factor has along the rows of B.
    static Matrix reordered(const Matrix& v, const Matrix& B, const Matrix& factor, int null) {
        Matrix parts = B * factor * transposed(B);
        double shared = 0;  // null rows stay together
        for (int i = 0; i < null; ++i) shared += parts(i, i) / null;
        for (int i = 0; i < null; ++i) parts(i, i) = shared;
        std::vector<int> order(B.rows);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return parts(i, i) < parts(j, j); });
        Matrix result(v.rows, v.cols);
        for (int i = 0; i < v.rows; ++i)
            for (int j = 0; j < v.cols; ++j) result(i, j) = v(order[i], j);
        return result;
    }
    void step(const Matrix& unscaled, double scale, int t, const OracleRate& rate, Run& run, const std::string& name) {
        const Matrix g = combination(scale, unscaled, 0, unscaled);
        const double b1 = o.beta1;
        const double b2 = o.beta2;
        if (t > 1) {
            M = combination(b1, M, 1 - b1, g);
            const Matrix g_projected = in_basis(g, BL, BR);
            Matrix n = in_basis(M, BL, BR);
            V = combination(b2, V, 1 - b2, squares(g_projected, null_rows, null_columns, trace(L) / W.a.size()));
            for (size_t i = 0; i < n.a.size(); ++i) {
                n.a[i] *= std::sqrt(1 - std::pow(b2, t - 1)) / (1 - std::pow(b1, t - 1)) / (std::sqrt(V.a[i]) + o.eps);
            }
            const Matrix u = in_basis(n, transposed(BL), transposed(BR));
            const double lr = rate.lr * rate.lr_factor;
            for (size_t i = 0; i < W.a.size(); ++i) {  // decay comes after the update, as in the authors' program
                const bool decays = !rate.cautious || u.a[i] * W.a[i] >= 0;
                W.a[i] = (W.a[i] - lr * rate.lr_scale * u.a[i]) * (decays ? 1 - lr * rate.weight_decay : 1);
            }
        }
        const double keep = t > 1 ? b2 : 0;
        L = combination(keep, L, 1 - b2, g * transposed(g));
        R = combination(keep, R, 1 - b2, transposed(g) * g);
        if ((t - 1) % o.soap_frequency != 0) return;
        if (t > 1 && BL.rows > 0) V = reordered(V, BL, L, null_rows);
        if (t > 1 && BR.rows > 0) V = transposed(reordered(transposed(V), BR, R, null_columns));
        if (W.rows <= o.soap_max_dim) check_basis(BL = state_of(run, name + ".left_basis"), L);
        if (W.cols <= o.soap_max_dim) check_basis(BR = state_of(run, name + ".right_basis"), R);
        null_rows = BL.rows > 0 ? null_of(BL, L) : 0;
        null_columns = BR.rows > 0 ? null_of(BR, R) : 0;
    }
};

}  // namespace

TEST_CASE("optim/soap: steps match the paper's algorithm in float64, with a basis on both sides, one or none") {
    const ParamTable table = make_table(kTable);
    for (const int max_dim : {10000, 8, 0})
        for (const bool cautious : {false, true}) {
            OptimizerOptions options = soap_options(max_dim);
            options.cautious_weight_decay = cautious;
            options.weight_decay = cautious ? 0.02f : 0.1f;  // limits the effect of a rounded sign
            options.lr_scale = {{Role::q, 0.3f}};
            Run run(table, options);
            std::map<int, SoapReference> references;
            for (int row = 0; row < table.count(); ++row)
                if (is_hidden_matrix(table[row].role))
                    references.emplace(
                        row, SoapReference(options, to_matrix(run.weights(row), table[row].rows, table[row].cols)));
            REQUIRE(references.size() == 12);
            for (int t = 1; t <= 9; ++t) {
                const float scale = t == 3 ? 0.3f : 1.0f;
                run.set_grads(t);
                run.step(scale, 0, 0.7f);
                for (auto& [row, reference] : references) {
                    const ParamRow& r = table[row];
                    const Matrix g = to_matrix(run.grads(row), r.rows, r.cols);
                    const OracleRate rate{options.lr, r.role == Role::q ? 0.3 : 1.0, options.weight_decay, cautious,
                                          0.7};
                    reference.step(g, scale, t, rate, run, r.name);
                }
            }
            for (auto& [row, reference] : references) {
                const Matrix w = to_matrix(run.weights(row), table[row].rows, table[row].cols);
                // Eight updates of about lr in each element; a wrong formula shows as 0.05 or more.
                const double update = 0.7 * options.lr * std::sqrt(double(w.a.size()));
                INFO(table[row].name << ", sides up to " << max_dim << ": " << distance(w, reference.W) / update);
                REQUIRE(distance(w, reference.W) <= 2e-3 * update);
            }
        }
}

TEST_CASE("optim/soap: the first update and a skipped step do not change the matrices, and the plan counts the state") {
    const ParamTable table = make_table(kTable);
    Run run(table, soap_options());
    const std::vector<float> before = run.all();
    run.train(1, 2);
    const std::vector<float> after = run.all();
    for (const ParamRow& row : table.rows()) {
        const bool same = std::equal(before.begin() + row.offset, before.begin() + row.offset + row.size(),
                                     after.begin() + row.offset);
        REQUIRE(same == is_hidden_matrix(row.role));
    }
    const std::string state = run.state_bytes();
    run.set_grads(2);
    run.step(1, 1);
    REQUIRE((bytes_of(run.all()) == bytes_of(after) && run.state_bytes() == state));
    REQUIRE(run.optimizer.step_waits());

    OptimizerOptions muon;
    muon.method = Method::muon;
    auto matrices = [](Run& r) {  // floats, each tensor aligned
        int64_t floats = 0;
        for (const StateTensor& t : r.optimizer.state())
            if (is_hidden_matrix(r.table()[t.param].role)) floats += (t.size() + 63) / 64 * 64;
        return floats;
    };
    Run other(table, muon);
    REQUIRE(run.optimizer.plan().state_bytes - other.optimizer.plan().state_bytes ==
            4 * (matrices(run) - matrices(other)));
    // The state of a 12 x 8 matrix: two moments and two matrices per side.
    int64_t up = 0;
    for (const StateTensor& t : run.optimizer.state())
        if (t.name.starts_with("h.0.up.")) up += t.size();
    REQUIRE(up == 2 * 12 * 8 + 2 * 12 * 12 + 2 * 8 * 8 + 2);  // and the numbers of shared directions
}

TEST_CASE("optim/soap: the numbers of shared directions are state of their own, from which a run continues") {
    const ParamTable table = make_table(kTable);
    Run run(table, soap_options());
    run.train(1, 2);  // a 12 x 8 matrix has rank 8
    REQUIRE(state_of(run, "h.0.up.left_shared")(0, 0) == 4);
    REQUIRE(state_of(run, "h.0.up.right_shared")(0, 0) == 0);
    run.train(2, 3);
    for (const double second : state_of(run, "h.0.up.v").a) REQUIRE(second >= 0);

    Run resumed(table, soap_options());
    for (int row = 0; row < table.count(); ++row) resumed.set(resumed.params.master(row), run.weights(row));
    const std::vector<StateTensor> saved = run.optimizer.state();
    const std::vector<StateTensor> loaded = resumed.optimizer.state();
    for (size_t i = 0; i < saved.size(); ++i)
        resumed.set(loaded[i].data, fetch(saved[i].data, saved[i].size(), run.context.stream));
    resumed.updates = run.updates;
    for (int t = 3; t <= 8; ++t) {
        run.train(t, t + 1);
        resumed.train(t, t + 1);
        REQUIRE(same_bits(resumed.all(), run.all()));
    }
}

TEST_CASE("optim/soap: gradients that differ by rounding, as those of several ranks do, give the same weights") {
    const ParamTable table = make_table(kTable);
    for (const int frequency : {1, 3, 10}) {
        OptimizerOptions options = soap_options();
        options.soap_frequency = frequency;
        Run run(table, options);
        Run other(table, options);
        const std::vector<float> begin = run.all();
        for (int t = 1; t <= 25; ++t) {
            run.train(t, t + 1);
            for (int row = 0; row < table.count(); ++row) {
                std::vector<float> grad = run.grads(row);
                for (size_t i = 0; i < grad.size(); i += 2) grad[i] *= 1 + 0x1p-23f;
                other.set(other.params.grad(row), grad);
            }
            other.step();
            double difference = 0;
            double moved = 0;
            const std::vector<float> a = run.all();
            const std::vector<float> b = other.all();
            for (int row = 0; row < table.count(); ++row) {
                if (!is_hidden_matrix(table[row].role)) continue;
                for (int64_t i = table[row].offset; i < table[row].offset + table[row].size(); ++i) {
                    difference += std::pow(double{a[i]} - b[i], 2);
                    moved += std::pow(double{a[i]} - begin[i], 2);
                }
            }
            INFO("every " << frequency << ", step " << t << ": " << std::sqrt(difference / moved));
            // An eigenvector turns by 2^-23 of the largest eigenvalue / the gap to the next one; 1.2e-5 in all here.
            // Steps along the noise's own directions would show as 0.3 or more.
            REQUIRE((t == 1 || std::sqrt(difference / moved) <= 1e-4));
        }
    }
}

TEST_CASE("optim/soap: weights do not move along directions that no gradient had") {
    const ParamTable table = make_table(kTable);
    OptimizerOptions options = soap_options();
    options.weight_decay = 0;
    Run run(table, options);
    const int row = table.find("h.0.up");
    const int m = table[row].rows;
    const int n = table[row].cols;
    const Matrix before = to_matrix(run.weights(row), m, n);
    const Matrix u = gaussian(m, 2, 1);
    const Matrix v = gaussian(2, n, 2);  // gradients u X v have these columns and rows
    for (int t = 1; t <= 12; ++t) {
        run.set_grads(t);
        const Matrix g = u * gaussian(2, 2, 10 + t) * v;
        run.set(run.params.grad(row), to_floats(g));
        run.step();
    }
    const Matrix moved = combination(1, to_matrix(run.weights(row), m, n), -1, before);
    const Matrix left_factor = polar_factor(u);
    const Matrix right_factor = polar_factor(v);
    const Matrix within = left_factor * transposed(left_factor) * moved * transposed(right_factor) * right_factor;
    REQUIRE(frobenius(moved) >= 0.05);
    INFO(distance(moved, within) / frobenius(moved));
    // Rounding, 2^-24 of the gradient's largest elements, divided by 2^-10 of its root mean square: 2e-3 for each of 92
    // elements beside four whole steps.
    REQUIRE(distance(moved, within) <= 5e-2 * frobenius(moved));
}

TEST_CASE("optim/soap: after a first gradient of zero, updates are Adam's until the next eigenvectors") {
    const ParamTable table = make_table(kTable);
    Run run(table, soap_options());
    const int row = table.find("h.0.up");
    const std::vector<float> before = run.weights(row);
    run.set_grads(1);
    run.set(run.params.grad(row), std::vector<float>(table[row].size(), 0));
    run.step();
    run.train(2, 3);
    const std::vector<float> after = run.weights(row);
    const double lr = soap_options().lr;
    const double keep = 1 - lr * soap_options().weight_decay * table[row].decay;
    for (size_t i = 0; i < after.size(); ++i)  // a step of lr in each element
        REQUIRE(std::abs(std::abs(after[i] / keep - before[i]) - lr) <= 1e-5);
}
