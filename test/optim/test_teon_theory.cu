// The paper's theory, with the float64 oracles and on the device.
#include "test/optim/optimizer_run.h"
#include "test/optim/param_tables.h"
#include "test/oracle/orthogonal.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("optim/teon_theory: the norm and dual norm inequalities hold for modes 1 and 2 on random tensors") {
    for (int trial = 0; trial < 60; ++trial) {
        const int m = 2 + trial % 7;
        const int n = 2 + trial / 7 % 6;
        const int K = 1 + trial % 5;
        std::vector<Matrix> slices;
        double muon = 0;
        double muon_dual = 0;
        for (int k = 0; k < K; ++k) {
            slices.push_back(
                combination(std::pow(4.0, (trial * 7 + k) % 3), gaussian(m, n, trial * 10 + k), 0, Matrix(m, n)));
            muon = std::max(muon, operator_norm(slices.back()));
            muon_dual += nuclear_norm(slices.back());
        }
        for (int mode : {1, 2}) {
            const Matrix z = matricize(slices, mode);
            const double teon = operator_norm(z);
            const double dual = nuclear_norm(z);
            const double root = std::sqrt(K);
            const double slack = 1 + 1e-12;
            REQUIRE(muon <= teon * slack);
            REQUIRE(teon <= root * muon * slack);
            REQUIRE(dual <= muon_dual * slack);
            REQUIRE(muon_dual <= root * dual * slack);
        }
    }
}

namespace {

// Rank-one slices u_k v_k^T: u (or v) is shared, and the other vectors are orthonormal.
std::vector<Matrix> rank_one_family(int m, int n, int K, bool shared_left) {
    const Matrix basis = with_spectrum(16, 16, std::vector<double>(16, 1.0), 3);
    std::vector<Matrix> slices;
    for (int k = 0; k < K; ++k) {
        Matrix x(m, n);
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) x(i, j) = basis(shared_left ? 0 : k, i) * basis(shared_left ? k : 0, j);
        slices.push_back(x);
    }
    return slices;
}

}  // namespace

TEST_CASE(
    "optim/teon_theory: on rank-one slices, mode 1 gains sqrt(K) with shared left vectors, mode 2 with shared right "
    "vectors") {
    for (int K : {2, 4, 8})
        for (bool shared_left : {true, false}) {
            const auto slices = rank_one_family(16, 16, K, shared_left);
            double muon_dual = 0;
            for (const Matrix& x : slices) muon_dual += nuclear_norm(x);
            for (int mode : {1, 2}) {
                const bool gains = shared_left == (mode == 1);
                const Matrix z = matricize(slices, mode);
                // The ratio of the dual norms, and of the norms of Muon's update: slices have norm 1, so max_k is 1.
                REQUIRE(std::abs(muon_dual / nuclear_norm(z) - (gains ? std::sqrt(K) : 1)) <= 1e-10);
                REQUIRE(std::abs(operator_norm(z) - (gains ? std::sqrt(K) : 1)) <= 1e-10);
                // Without a gain the update is Muon's.
                const auto updates = dematricize(polar_factor(z), mode, 16, 16, K);
                for (int k = 0; k < K; ++k) {
                    const double expected = gains ? 1 - 1 / std::sqrt(K) : 0;
                    REQUIRE(std::abs(distance(updates[k], polar_factor(slices[k])) - expected) <= 1e-9);
                }
            }
        }
}

TEST_CASE(
    "optim/teon_theory: with shared right vectors, the device's mode-1 step equals Muon's; with shared left vectors, "
    "it is smaller by sqrt(K)") {
    const int K = 4;
    ParamTable table;
    for (int l = 0; l < K; ++l) table.add(matrix_row("q." + std::to_string(l), Role::q, l, 16, 16));
    for (bool shared_left : {true, false}) {
        const auto slices = rank_one_family(16, 16, K, shared_left);
        auto step_with = [&](int K) {
            Run run(table, teon_options({.ortho = Ortho::svd, .teon_k = K, .teon_roles = {Role::q}}));
            const std::vector<float> before = run.all();
            for (int k = 0; k < table.count(); ++k) run.set(run.params.grad(k), to_floats(slices[k]));
            run.step();
            std::vector<double> moved;
            const auto after = run.all();
            for (size_t i = 0; i < after.size(); ++i) moved.push_back(double{before[i]} - after[i]);
            return moved;
        };
        const auto a = step_with(1);  // Muon's
        const auto b = step_with(K);
        const double ratio = shared_left ? 1 / std::sqrt(K) : 1;
        for (size_t i = 0; i < a.size(); ++i)
            REQUIRE(std::abs(b[i] - ratio * a[i]) <= 1e-6);  // weights of 0.2 in float
    }
}

TEST_CASE("optim/teon_theory: no feasible direction beats the exact step in the paper's trust-region problem") {
    // min <G, X> subject to ||X||_teon-i <= eta: the step attains -eta ||G||_teon-i,*.
    const int m = 6;
    const int n = 9;
    const int K = 3;
    std::vector<Matrix> G;
    for (int k = 0; k < K; ++k) G.push_back(gaussian(m, n, 40 + k));
    ParamTable table;
    for (int l = 0; l < K; ++l) table.add(matrix_row("q." + std::to_string(l), Role::q, l, m, n));
    for (int mode : {1, 2, 3}) {
        const OptimizerOptions o =
            teon_options({.ortho = Ortho::svd, .teon_k = K, .teon_mode = mode, .teon_roles = {Role::q}});
        Run run(table, o);
        const std::vector<float> before = run.all();
        for (int k = 0; k < K; ++k) run.set(run.params.grad(k), to_floats(G[k]));
        run.step();
        const std::vector<float> after = run.all();
        const double eta = o.lr * std::sqrt(double(m) / n);
        double attained = 0;
        std::vector<Matrix> step;
        for (int k = 0; k < K; ++k) {
            Matrix x(m, n);
            for (int e = 0; e < m * n; ++e) x.a[e] = double{after[table[k].offset + e]} - before[table[k].offset + e];
            attained += inner(G[k], x);
            step.push_back(x);
        }
        const Matrix z = matricize(G, mode);
        REQUIRE(std::abs(attained + eta * nuclear_norm(z)) <= 1e-5 * eta * nuclear_norm(z));  // weights of 0.2 in float
        REQUIRE(operator_norm(matricize(step, mode)) <= eta * (1 + 1e-5));
        for (int trial = 0; trial < 200; ++trial) {
            Matrix x = gaussian(z.rows, z.cols, 1000 + trial);
            // Every second direction is near the optimum.
            if (trial % 2) x = combination(-1, polar_factor(z), 0.1 * (trial % 20) / 20, x);
            x = combination(eta / operator_norm(x), x, 0, x);
            REQUIRE(inner(z, x) >= attained - 1e-5 * eta * nuclear_norm(z));
        }
    }
}
