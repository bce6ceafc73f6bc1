// The optimizer as a whole: bitwise equalities, PyTorch's and the paper's steps, and reports.
#include <map>
#include <string>

#include "checkpoint/safetensors.h"
#include "kernels/optimizers/adamw.h"
#include "optim/methods.h"
#include "test/optim/optimizer_run.h"
#include "test/optim/param_tables.h"
#include "test/oracle/orthogonal.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr TableShape kSmall{.L = 5, .C = 32, .F = 48, .V = 50, .heads = 4};

}  // namespace

TEST_CASE("optim/teon: Teon with K = 1 is Muon bit for bit, in every mode") {
    const ParamTable table = make_table(kSmall);
    auto train = [&](OptimizerOptions o, DType dtype) {
        o.nesterov = true;
        Run run(table, o, dtype);
        run.train(0, 3);
        return run.bytes();
    };
    for (DType dtype : {DType::f32, DType::bf16}) {
        OptimizerOptions muon = teon_options(1, 1);
        muon.method = Method::muon;
        muon.ns_dtype = dtype;
        const std::string expected = train(muon, dtype);
        for (int mode : {1, 2, 3}) {
            OptimizerOptions teon = teon_options(1, mode, {Role::q, Role::o, Role::mlp_up});
            teon.ns_dtype = dtype;
            REQUIRE(train(teon, dtype) == expected);
            teon.teon_rms_match = true;  // nothing to match
            REQUIRE(train(teon, dtype) == expected);
        }
        REQUIRE(train(teon_options(2, 1), dtype) != expected);
    }
}

TEST_CASE("optim/teon: ten steps match PyTorch's Muon and Teon as written out in make_optim.py") {
    const SafetensorsFile file("test/golden/optim.safetensors");
    const std::pair<std::string, Role> roles[] = {{"q", Role::q}, {"up", Role::mlp_up}, {"down", Role::mlp_down}};
    ParamTable table;
    for (int l = 0; l < 3; ++l)
        for (auto [name, role] : roles) {
            const TensorInfo& t = file.at(name + "." + std::to_string(l));
            ParamRow row = matrix_row(t.name, role, l, static_cast<int>(t.shape[0]), static_cast<int>(t.shape[1]));
            row.decay = true;
            table.add(row);
        }
    struct Case {
        std::string name;
        double bound;
        OptimizerOptions options;
    };
    // Bounds are relative to the distance that the weights move. Float differs from float64 by at most ten updates of
    // 6e-5. Two bf16 runs, PyTorch's and this program's, differ from each other as much as each differs from float64
    // (docs/optimizers.md, "Rounding": .02 on such gradients).
    std::vector<Case> cases = {{"torch.plain", .03, {.ortho = Ortho::jordan, .teon_k = 1}},
                               {"torch.nesterov", .03, {.nesterov = true, .ortho = Ortho::jordan, .teon_k = 1}},
                               {"teon.muon", 1e-4, {.teon_k = 1}},
                               {"teon.muon-svd", 1e-4, {.ortho = Ortho::svd, .teon_k = 1}},
                               {"teon.nesterov", 1e-4, {.nesterov = true}},
                               {"teon.you", 1e-4, {.ortho = Ortho::you}},
                               {"teon.jordan", 1e-4, {.ortho = Ortho::jordan}},
                               {"teon.rms", 1e-4, {.teon_rms_match = true}},
                               {"teon.normalize", 1e-4, {.teon_k = 3, .teon_normalize_slices = true}}};
    for (int mode : {1, 2, 3})
        for (int K : {2, 3})
            cases.push_back({fmt::format("teon.mode{}.k{}", mode, K), 1e-4, {.teon_k = K, .teon_mode = mode}});
    for (const Case& c : cases)
        for (NsForm form : {NsForm::standard, NsForm::gram}) {
            OptimizerOptions options = teon_options(c.options);
            const bool is_torch = c.name.starts_with("torch");
            if (is_torch) options.ns_dtype = DType::bf16;
            options.ns_form = form;
            options.teon_roles = {Role::q, Role::mlp_up, Role::mlp_down};
            if (is_torch && form == NsForm::gram) continue;
            Run run(table, options);
            for (int row = 0; row < table.count(); ++row)
                run.set(run.params.master(row), file.read_float(file.at(table[row].name)));
            for (int t = 0; t < 10; ++t) {
                for (int row = 0; row < table.count(); ++row) {
                    const auto grads = file.read_float(file.at(table[row].name + ".grads"));
                    const int64_t n = table[row].size();
                    run.set(run.params.grad(row),
                            std::vector<float>(grads.begin() + t * n, grads.begin() + (t + 1) * n));
                }
                run.step();
            }
            double difference = 0;
            double moved = 0;
            for (int row = 0; row < table.count(); ++row) {
                const auto expected = file.read_float(file.at(c.name + "." + table[row].name));
                const auto before = file.read_float(file.at(table[row].name));
                const auto after = run.weights(row);
                for (size_t i = 0; i < after.size(); ++i) {
                    difference += std::pow(after[i] - expected[i], 2);
                    moved += std::pow(expected[i] - before[i], 2);
                }
            }
            INFO(c.name << ", " << name_of(form) << ": " << std::sqrt(difference / moved));
            REQUIRE(std::sqrt(difference / moved) <= c.bound);
        }
}

TEST_CASE("optim/teon: a skipped step changes no bit of weights or state, and the next step continues from them") {
    const ParamTable table = make_table(kSmall);
    for (DType dtype : {DType::f32, DType::bf16}) {
        Run run(table, teon_options(2, 1), dtype);
        Run straight(table, teon_options(2, 1), dtype);
        run.train(1, 2);
        const std::string before = run.bytes();
        for (int row = 0; row < table.count(); ++row)
            run.set(run.params.grad(row), std::vector<float>(table[row].size(), row % 2 ? NAN : INFINITY));
        run.step(NAN, 1);
        REQUIRE((run.bytes() == before));
        run.optimizer.check_finite(run.context);
        run.train(2, 3);
        straight.train(1, 3);
        REQUIRE((run.bytes() == straight.bytes()));
    }
}

TEST_CASE("optim/teon: a momentum that is not finite is reported by name and does not affect other stacks") {
    const ParamTable table = make_table(kSmall);
    Run run(table, teon_options(2, 1));
    Run clean(table, teon_options(2, 1));
    const int bad = table.find("h.3.k");
    for (Run* r : {&run, &clean}) r->set_grads(1);
    auto grad = random_values<float>(table[bad].size(), 5);
    grad[7] = 1e30f;
    run.set(run.params.grad(bad), grad);
    run.step();
    clean.step();
    // The error names the first matrix of the stack.
    REQUIRE(contains(error_of([&] { run.optimizer.check_finite(run.context); }), "h.2.k"));
    clean.optimizer.check_finite(clean.context);
    for (int row = 0; row < table.count(); ++row) {
        const ParamRow& r = table[row];
        const bool same = bool(same_bits(run.weights(row), clean.weights(row)));
        REQUIRE(same == !(r.role == Role::k && (r.layer == 2 || r.layer == 3)));
        for (float w : run.weights(row))
            if (!std::isfinite(w)) FAIL(r.name << " is not finite");
    }
}

TEST_CASE("optim/teon: working weights are the rounded master weights and padding stays zero, with any optimizer") {
    const ParamTable table = make_table({.L = 3, .C = 32, .F = 45, .V = 50, .llama = true, .F_stored = 48});
    for (const MethodInfo& method : methods())
        for (Ortho ortho : {Ortho::polar_express, Ortho::svd})
            for (int mode : {1, 2, 3}) {
                if (method.method != Method::teon && (mode > 1 || ortho == Ortho::svd)) continue;
                OptimizerOptions o = teon_options(2, mode, {Role::q, Role::mlp_up, Role::mlp_down});
                o.method = method.method;
                o.ortho = ortho;
                Run run(table, o, DType::bf16);
                run.train(0, 5);
                INFO(name_of(method.method) << ", mode " << mode);
                // svd leaves zero rows zero up to rounding.
                for (int row = 0; row < table.count(); ++row)
                    REQUIRE(run.is_rounded_and_padded(row, ortho == Ortho::svd ? 1e-7 : 0.0));
            }
}

TEST_CASE("optim/teon: AdamW's rows are updated as by the kernel alone, and decay uses the unscaled rate") {
    const ParamTable table = make_table(kSmall);
    OptimizerOptions o = teon_options(2, 1);
    o.method = Method::adamw;
    o.lr_scale = {{Role::q, 0.3f}};
    Run run(table, o);
    const std::vector<float> before = run.all();
    run.set_grads(3);
    run.step(0.5f, 0, 0.7f);
    Context& context = run.context;
    for (int row = 0; row < table.count(); ++row) {
        const ParamRow& r = table[row];
        const int64_t n = r.size();
        const float scale = r.role == Role::q ? 0.3f : 1.0f;
        Guarded<float> w(std::vector<float>(before.begin() + r.offset, before.begin() + r.offset + n), context.stream);
        Guarded<float> m(std::vector<float>(n, 0), context.stream);
        Guarded<float> v(std::vector<float>(n, 0), context.stream);
        float* no_work = nullptr;
        adamw_update(w.data(), no_work, m.data(), v.data(), run.params.grad(row), run.control.data(), n,
                     {o.adamw_lr, scale, r.decay ? o.weight_decay : 0.0f}, {o.beta1, o.beta2, o.eps}, context.stream);
        REQUIRE(same_bits(run.weights(row), w.get()));
    }
}

// Without gradients every direction is 0, so that only decay changes weights.
TEST_CASE("optim/teon: a factor of the learning rate changes no bit of weight decay, with any optimizer") {
    const ParamTable table = make_table(kSmall);
    for (const MethodInfo& method : methods())
        for (const bool cautious : {false, true}) {
            auto decayed = [&](float factor) {
                OptimizerOptions o = teon_options(2, 1);
                o.method = method.method;
                o.lr = o.adamw_lr = 0.7f;
                o.weight_decay = 0.9f;
                o.cautious_weight_decay = cautious;
                for (const Role role : {Role::token_embedding, Role::q, Role::mlp_up}) o.lr_scale[role] = factor;
                Run run(table, o);
                run.step(1, 0, 0.7f);
                return run.all();
            };
            const std::vector<float> expected = decayed(1);
            INFO(name_of(method.method));
            for (const float factor : {0.3f, 1e-30f, 3.0f}) REQUIRE(same_bits(decayed(factor), expected));
        }
}

TEST_CASE("optim/teon: state() lists each tensor once, with its parameter's shape, and contains the momentum") {
    const ParamTable table = make_table(kSmall);
    Run run(table, teon_options(2, 1));
    run.train(1, 2);
    std::set<std::string> names;
    std::vector<int> tensors(table.count(), 0);
    for (const StateTensor& t : run.optimizer.state()) {
        const ParamRow& row = table[t.param];
        REQUIRE(names.insert(t.name).second);
        REQUIRE((t.rows == row.rows && t.cols == row.cols));
        ++tensors[t.param];
        if (is_hidden_matrix(row.role)) {
            REQUIRE(t.name == row.name + ".momentum");  // equal to the gradient after one step
            REQUIRE(same_bits(fetch(t.data, row.size(), run.context.stream), run.grads(t.param)));
        } else {
            REQUIRE((t.name == row.name + ".m" || t.name == row.name + ".v"));
        }
    }
    for (int row = 0; row < table.count(); ++row) REQUIRE(tensors[row] == (is_hidden_matrix(table[row].role) ? 1 : 2));
}

TEST_CASE("optim/teon: two steps do not depend on the number of threads") {
    const ParamTable table = make_table({2, 24, 40, 30});
    REQUIRE(same_with_any_threads([&] {
        Run run(table, teon_options(2, 1), DType::bf16);
        run.train(0, 2);
        return run.bytes();
    }));
}

TEST_CASE("optim/teon: diagnose() returns the alignment and norm ratio of consecutive layers") {
    const ParamTable table = make_table(kSmall);
    for (int mode : {1, 2, 3}) {
        OptimizerOptions o = teon_options(2, mode);
        Run run(table, o);
        REQUIRE(run.optimizer.diagnose(run.context).empty());  // no entries for zero momenta
        run.train(1, 2);
        std::map<std::pair<Role, int>, Matrix> momenta;
        for (const StateTensor& t : run.optimizer.state())
            momenta[{table[t.param].role, table[t.param].layer}] =
                to_matrix(fetch(t.data, t.size(), run.context.stream), t.rows, t.cols);
        const auto alignments = run.optimizer.diagnose(run.context);
        REQUIRE(alignments.size() == 6 * (kSmall.L - 1));
        for (const Alignment& a : alignments) {
            REQUIRE(a.layer_b == a.layer_a + 1);
            const Matrix& x = momenta[{a.role, a.layer_a}];
            const Matrix& y = momenta[{a.role, a.layer_b}];
            const Svd dx = svd(x);
            const Svd dy = svd(y);
            double left_product = 0;
            double right_product = 0;
            for (int i = 0; i < x.rows; ++i) left_product += dx.U(i, 0) * dy.U(i, 0);
            for (int i = 0; i < x.cols; ++i) right_product += dx.V(i, 0) * dy.V(i, 0);
            const double ratio = (nuclear_norm(x) + nuclear_norm(y)) / nuclear_norm(matricize({x, y}, mode));
            // Rounding turns float eigenvectors of M M^T by 2^-24 sigma_1^2 / gap; here the gap to the next eigenvalue
            // exceeds 1e-3 sigma_1^2. The smallest of 32 singular values, some 1e-2 of the largest, has a relative
            // error of 1e-3.
            INFO(name_of(a.role) << " " << a.layer_a << " mode " << mode);
            REQUIRE(std::abs(a.left_alignment - std::abs(left_product)) <= 1e-3);
            REQUIRE(std::abs(a.right_alignment - std::abs(right_product)) <= 1e-3);
            REQUIRE(std::abs(a.norm_ratio - ratio) <= 1e-3 * ratio);
        }
    }
    OptimizerOptions adamw;
    Run run(table, adamw);
    REQUIRE(run.optimizer.diagnose(run.context).empty());
}
