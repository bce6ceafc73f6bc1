// The optimizer as a whole: Muon and Teon compared with float64 and PyTorch, bitwise equalities, and the theory.
#include <numeric>
#include <string>

#include "checkpoint/safetensors.h"
#include "kernels/adamw.h"
#include "optim/methods.h"
#include "optim/optimizer.h"
#include "optim/stacks.h"
#include "test/optim/optimizer_run.h"
#include "test/optim/param_tables.h"
#include "test/oracle/orthogonal.h"
#include "test/oracle/update_rate.h"
#include "test/support/catch.h"
#include "test/support/os_threads.h"

using namespace teon;
using namespace teon::test;

namespace {

OptimizerOptions teon_options(int K, int mode, std::set<Role> roles = {Role::q, Role::k, Role::v}) {
    OptimizerOptions o;
    o.method = Method::teon;
    o.lr = 0.05f;
    o.adamw_lr = 0.01f;
    o.teon_k = K;
    o.teon_mode = mode;
    o.teon_roles = std::move(roles);
    o.ns_dtype = DType::f32;
    return o;
}

constexpr TableShape kSmall{.L = 5, .C = 32, .F = 48, .V = 50, .heads = 4};

// The logical part of a parameter, without padding.
Matrix logical_part(const std::vector<float>& values, const ParamRow& row) {
    Matrix x(row.logical_rows, row.logical_cols);
    for (int i = 0; i < x.rows; ++i)
        for (int j = 0; j < x.cols; ++j) x(i, j) = values[static_cast<size_t>(i) * row.cols + j];
    return x;
}
Matrix weights_of(Run& run, int row) { return logical_part(run.weights(row), run.table()[row]); }

// The optimizer's update in float64, stack by stack, by the paper's matricization, without padding.
struct Reference {
    const ParamTable& table;
    OptimizerOptions o;
    std::vector<Matrix> weights, momenta;
    std::vector<std::vector<double>> neurons;  // NorMuon's second moments of rows

    Reference(Run& run, const OptimizerOptions& options) : table(run.table()), o(options) {
        for (int row = 0; row < table.count(); ++row) {
            weights.push_back(weights_of(run, row));
            momenta.emplace_back(weights.back().rows, weights.back().cols);
            neurons.emplace_back(weights.back().rows, 0.0);
        }
    }
    // lr_factor: the schedule's.
    void step(Run& run, const OptimizerPlan& plan, double scale, double lr_factor) {
        for (const Stack& stack : plan.stacks)
            for (int head = 0; head < stack.heads; ++head) step(run, stack, head, scale, lr_factor);
    }
    // Algorithm 1 of NorMuon from line 6 on, for rows [first, first + x.rows) of a parameter.
    Matrix normalized(Matrix x, std::vector<double>& v, int first) const {
        const double before = frobenius(x);
        for (int i = 0; i < x.rows; ++i) {
            double sum = 0;
            for (int j = 0; j < x.cols; ++j) sum += x(i, j) * x(i, j);
            double& moment = v[first + i];
            moment = double{o.neuron_beta2} * moment + (1 - double{o.neuron_beta2}) * sum / x.cols;
            for (int j = 0; j < x.cols; ++j) x(i, j) /= std::sqrt(moment) + 1e-8;
        }
        const double norm = o.update_rms > 0 ? std::sqrt(x.rows * x.cols) : before;
        return combination(norm / frobenius(x), x, 0, x);
    }
    static void copy_rows(Matrix& to, int to_row, const Matrix& from, int from_row, int rows) {
        std::copy_n(from.a.begin() + int64_t{from_row} * from.cols, int64_t{rows} * from.cols,
                    to.a.begin() + int64_t{to_row} * to.cols);
    }
    void step(Run& run, const Stack& stack, int head, double scale, double lr_factor) {
        const int m = stack.logical_m;
        const int n = stack.logical_n;
        const int first = head * m;  // first row of the head in a parameter
        std::vector<Matrix> directions;
        for (int row : stack.params) {
            Matrix g(m, n);
            Matrix momentum(m, n);
            copy_rows(g, 0, logical_part(fetch(run.params.grad(row), table[row].size(), run.context), table[row]),
                      first, m);
            copy_rows(momentum, 0, momenta[row], first, m);
            momentum = combination(double{o.momentum}, momentum, scale, g);
            copy_rows(momenta[row], first, momentum, 0, m);
            Matrix d = o.nesterov ? combination(double{o.momentum}, momentum, scale, g) : momentum;
            if (o.teon_normalize_slices) d = combination(1 / (frobenius(d) + 1e-7), d, 0, d);
            directions.push_back(d);
        }
        const Matrix z = matricize(directions, stack.mode);
        const Matrix q =
            o.ortho == Ortho::svd ? polar_factor(z) : newton_schulz(z, ns_set(o.ortho), o.ns_steps, kExact, o.ns_aol);
        const auto updates = dematricize(q, stack.mode, m, n, stack.K());
        const double factor = update_scale(stack, o);
        for (int k = 0; k < stack.K(); ++k) {
            const int row = stack.params[k];
            Matrix w(m, n);
            copy_rows(w, 0, weights[row], first, m);
            const Matrix u = has_neuron_norm(o) ? normalized(updates[k], neurons[row], first) : updates[k];
            const OracleRate rate{o.lr, factor, table[row].decay ? double{o.weight_decay} : 0, o.cautious_weight_decay,
                                  lr_factor};
            for (size_t i = 0; i < w.a.size(); ++i) w.a[i] = updated(w.a[i], u.a[i], rate);
            copy_rows(weights[row], first, w, 0, m);
        }
    }
};

// The largest distance of a stacked weight to the reference, relative to the norm of one update.
double worst_difference(Run& run, const Reference& reference, const OptimizerPlan& plan) {
    double worst = 0;
    for (const Stack& stack : plan.stacks)
        for (int row : stack.params) {
            const Matrix w = weights_of(run, row);
            const double factor = update_scale(stack, reference.o);
            const bool unit = has_neuron_norm(reference.o) && reference.o.update_rms > 0;
            const double norm =
                unit ? std::sqrt(w.a.size())
                     : std::sqrt(stack.heads * std::min(stack.logical_m, stack.logical_n) / double(stack.K()));
            const double update = reference.o.lr * factor * norm;
            const double d = distance(w, reference.weights[row]) / update;
            if (!(d <= worst)) worst = d;
        }
    return worst;
}

}  // namespace

namespace {

// Four steps of the optimizer and of the reference; returns the largest difference.
double difference_after_four_steps(const ParamTable& table, const OptimizerOptions& options) {
    Run run(table, options);
    run.zero_padding_of_masters();
    Reference reference(run, options);
    for (int t = 0; t < 4; ++t) {
        const float scale = t == 2 ? 0.3f : 1.0f;
        run.set_grads(t);
        for (int row = 0; row < table.count(); ++row) run.zero_padding(run.params.grad(row), row);
        const float lr_factor = t == 1 ? 0.7f : 1.0f;
        reference.step(run, run.optimizer.plan(), scale, lr_factor);
        run.step(scale, 0, lr_factor);
    }
    return worst_difference(run, reference, run.optimizer.plan());
}
// Four updates, each within 6e-5 of float64: at singular values near zero, the polynomials amplify rounding noise of
// 2^-24 by their slope (jordan 3.4^5 = 485, polar-express 979). Rounding of the weights is below 1e-5 of a step.
constexpr double kFourSteps = 3e-4;

struct StepCase {
    const char* name;
    OptimizerOptions options;
};

// Every mode, method and option.
std::vector<StepCase> cases_of_steps() {
    const std::set<Role> roles = {Role::q, Role::k, Role::v, Role::mlp_up, Role::mlp_down};
    std::vector<StepCase> cases;
    for (int mode : {1, 2, 3})
        for (int K : {2, 3, 5}) cases.push_back({"mode", teon_options(K, mode, roles)});
    auto with = [&](const char* name, auto change) {
        OptimizerOptions o = teon_options(2, 1, roles);
        change(o);
        cases.push_back({name, o});
    };
    with("muon", [](auto& o) { o.method = Method::muon; });
    with("nesterov", [](auto& o) { o.nesterov = true; });
    with("svd", [](auto& o) { o.ortho = Ortho::svd; });
    with("gram", [](auto& o) { o.ns_form = NsForm::gram; });
    with("you6, 6 steps", [](auto& o) {
        o.ortho = Ortho::you6;
        o.ns_steps = 6;
    });
    with("no shape scale", [](auto& o) { o.shape_scale = false; });
    with("rms match", [](auto& o) { o.teon_rms_match = true; });
    with("rms match, mode 3", [](auto& o) {
        o.teon_rms_match = true;
        o.teon_mode = 3;
    });
    with("normalized slices", [](auto& o) {
        o.teon_normalize_slices = true;
        o.nesterov = true;
    });
    with("normuon", [](auto& o) { o.method = Method::normuon; });
    with("normuon as in the paper", [](auto& o) {
        o.method = Method::normuon;
        o.update_rms = 0.2f;
    });
    with("neuron norm of stacks", [](auto& o) {
        o.neuron_norm = true;
        o.nesterov = true;
    });
    with("neuron norm of stacks, mode 2", [](auto& o) {
        o.neuron_norm = true;
        o.teon_mode = 2;
    });
    with("neuron norm, svd, mode 3", [](auto& o) {
        o.neuron_norm = true;
        o.teon_mode = 3;
        o.ortho = Ortho::svd;
    });
    with("cautious weight decay", [](auto& o) {
        o.cautious_weight_decay = true;
        o.weight_decay = 0.02f;
    });
    with("cautious, neuron norm", [](auto& o) {
        o.cautious_weight_decay = o.neuron_norm = true;
        o.weight_decay = 0.02f;
    });
    with("AOL", [](auto& o) {
        o.ns_aol = true;
        o.ns_steps = 4;
    });
    with("AOL, you, gram", [](auto& o) {
        o.ns_aol = true;
        o.ortho = Ortho::you;
        o.ns_form = NsForm::gram;
    });
    with("per head", [](auto& o) { o.ortho_per_head = true; });
    with("per head, mode 2, rms match", [](auto& o) {
        o.ortho_per_head = o.teon_rms_match = true;
        o.teon_mode = 2;
    });
    with("per head, everything", [](auto& o) {
        o.ortho_per_head = o.neuron_norm = o.ns_aol = o.nesterov = o.cautious_weight_decay = true;
        o.weight_decay = 0.02f;
    });
    with("lr scale", [](auto& o) { o.lr_scale = {{Role::q, 0.5f}, {Role::o, 2.0f}}; });
    return cases;
}

}  // namespace

TEST_CASE("optim/teon: steps match float64 by the paper's matricization, for every mode, method and option") {
    const ParamTable table = make_table(kSmall);
    for (const StepCase& c : cases_of_steps()) {
        const double d = difference_after_four_steps(table, c.options);
        INFO(c.name << ", mode " << c.options.teon_mode << ", K " << c.options.teon_k << ": " << d);
        REQUIRE(d <= kFourSteps);
    }
}

TEST_CASE("optim/teon: padding changes no update: odd MLP widths match float64 without padding") {
    for (const auto& [F, stored] : {std::pair(45, 48), {67, 72}, {31, 32}, {1, 8}}) {
        TableShape shape{.L = 2, .C = 32, .F = F, .V = 50, .llama = true};
        shape.F_stored = stored;
        const ParamTable table = make_table(shape);
        const std::set<Role> roles = {Role::q, Role::mlp_up, Role::mlp_gate, Role::mlp_down};
        for (const bool aol : {false, true})
            for (const float rms : {0.0f, 0.2f})
                for (int mode : {1, 2, 3}) {
                    OptimizerOptions o = teon_options(2, mode, roles);
                    o.update_rms = rms;
                    o.ns_aol = aol;
                    o.neuron_norm = true;
                    if (mode == 3) o.method = Method::normuon;
                    const double d = difference_after_four_steps(table, o);
                    INFO("MLP of " << F << " in " << stored << ", mode " << mode << ", update rms " << rms << ", AOL "
                                   << aol << ": " << d);
                    REQUIRE(d <= kFourSteps);
                }
    }
}

TEST_CASE("optim/teon: AOL scales the rows of the paper's matricization where an unfolding is square") {
    for (const auto& [rows, mode, K] :
         {std::tuple(32, 1, 1), {32, 2, 2}, {32, 3, 2}, {16, 2, 2}, {8, 2, 4}, {64, 1, 2}}) {
        ParamTable table;  // with rows = 16, two are a square in mode 2; three layers leave a stack of one
        for (int l = 0; l < 5; ++l) table.add(matrix_row("q." + std::to_string(l), Role::q, l, rows, 32));
        for (const NsForm form : {NsForm::standard, NsForm::gram}) {
            OptimizerOptions o = teon_options(K, mode, {Role::q});
            o.ns_aol = true;
            o.ns_form = form;
            const double d = difference_after_four_steps(table, o);
            INFO(rows << " rows, mode " << mode << ", K " << K << ": " << d);
            REQUIRE(d <= kFourSteps);
        }
    }
}

namespace {

// The root mean square of what the first step moves the matrices of a role, all layers together, per unit of lr.
std::map<Role, double> update_sizes(const ParamTable& table, OptimizerOptions o) {
    o.weight_decay = 0;
    Run run(table, o);
    run.zero_padding_of_masters();
    std::vector<Matrix> before;
    for (int row = 0; row < table.count(); ++row) before.push_back(weights_of(run, row));
    run.set_grads(7);
    for (int row = 0; row < table.count(); ++row) run.zero_padding(run.params.grad(row), row);
    run.step();
    std::map<Role, double> squares;
    std::map<Role, double> elements;
    for (int row = 0; row < table.count(); ++row) {
        const Role role = table[row].role;
        squares[role] += std::pow(distance(weights_of(run, row), before[row]), 2);
        elements[role] += static_cast<double>(table[row].logical_size());
    }
    std::map<Role, double> sizes;
    for (auto [role, sum] : squares) sizes[role] = std::sqrt(sum / elements[role]) / o.lr;
    return sizes;
}

// The same in closed form, for whole matrices with orthonormal rows or columns.
double expected_size(const ParamRow& row, const OptimizerOptions& o) {
    if (o.update_rms > 0 && has_neuron_norm(o)) return o.update_rms;
    const double m = row.logical_rows;
    const double n = row.logical_cols;
    const double K = o.teon_k;
    const bool stacked = o.method == Method::teon && o.teon_roles.contains(row.role);
    const double sides[] = {std::min(m, K * n) / K, std::min(n, K * m) / K, 1};
    const double square = stacked && !o.teon_rms_match ? sides[o.teon_mode - 1] : std::min(m, n);
    double scale = o.shape_scale ? std::sqrt(m / n) : 1;
    if (o.update_rms > 0) scale = o.update_rms * std::sqrt(std::max(m, n));
    return scale * std::sqrt(square / (m * n));
}

}  // namespace

TEST_CASE("optim/teon: updates have the documented size in every shape, whole or per head, with every scale rule") {
    std::vector<ParamTable> tables;
    TableShape qwen3{
        .L = 4, .C = 24, .F = 35, .V = 50, .llama = true, .KV = 32};  // heads x head size: 2.67 x the width
    qwen3.F_stored = 40;
    qwen3.heads = 4;
    qwen3.kv_heads = 2;
    qwen3.Q = 64;
    tables.push_back(make_table(qwen3));
    TableShape gqa{.L = 2, .C = 32, .F = 67, .V = 50, .llama = true, .KV = 8};
    gqa.F_stored = 72;
    gqa.heads = 8;
    gqa.kv_heads = 2;
    tables.push_back(make_table(gqa));
    TableShape long_heads{.L = 2, .C = 12, .F = 12, .V = 50, .KV = 32};  // a head has more rows than columns
    long_heads.heads = 3;
    long_heads.kv_heads = 2;
    long_heads.Q = 48;
    tables.push_back(make_table(long_heads));
    std::vector<OptimizerOptions> methods;
    for (const Method method : {Method::muon, Method::normuon, Method::teon})
        for (const int mode : {1, 2, 3}) {
            if (method != Method::teon && mode > 1) continue;
            for (const bool match : {false, true}) {
                OptimizerOptions o = teon_options(2, mode, {Role::q, Role::k, Role::v, Role::o, Role::mlp_down});
                o.method = method;
                o.teon_rms_match = match;
                o.ortho = Ortho::svd;
                if (match && method != Method::teon) o.neuron_norm = true;
                methods.push_back(o);
            }
        }
    for (const ParamTable& table : tables)
        for (const OptimizerOptions& method : methods)
            for (const auto& [rms, shape_scale] : {std::pair(0.2f, true), {0.0f, true}, {0.0f, false}})
                for (const bool per_head : {false, true}) {
                    OptimizerOptions o = method;
                    o.update_rms = rms;
                    o.shape_scale = shape_scale;
                    o.ortho_per_head = per_head;
                    const std::map<Role, double> sizes = update_sizes(table, o);
                    for (const ParamRow& row : table.rows()) {
                        if (!is_hidden_matrix(row.role) || row.layer > 0) continue;
                        const double expected = expected_size(row, o);
                        INFO(row.name << " " << row.logical_rows << " x " << row.logical_cols << ", "
                                      << name_of(o.method) << ", mode " << o.teon_mode << ", rms match "
                                      << o.teon_rms_match << ", update rms " << rms << ", shape scale " << shape_scale
                                      << ", per head " << per_head << ": " << sizes.at(row.role) << ", expected "
                                      << expected);
                        // float's rounding of weights of 0.2 that move by 0.05 x 0.02 or more
                        REQUIRE(std::abs(sizes.at(row.role) / expected - 1) <= 1e-4);
                    }
                }
}

TEST_CASE("optim/teon: Teon with K = 1 is Muon bit for bit, in every mode") {
    const ParamTable table = make_table(kSmall);
    auto train = [&](OptimizerOptions o, DType dtype) {
        o.nesterov = true;
        Run run(table, o, dtype);
        for (int t = 0; t < 3; ++t) {
            run.set_grads(t);
            run.step();
        }
        return bytes_of(run.all()) + run.state_bytes();
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
        OptimizerOptions options;
        double bound;
    };
    // Bounds are relative to the distance that the weights move. Float differs from float64 by at most ten updates of
    // 6e-5. Two bf16 runs, PyTorch's and this program's, differ from each other as much as each differs from float64
    // (docs/optimizers.md, "Rounding": .02 on such gradients).
    std::vector<Case> cases;
    auto add = [&](std::string name, int K, int mode, double bound, auto change) {
        OptimizerOptions o = teon_options(K, mode, {Role::q, Role::mlp_up, Role::mlp_down});
        change(o);
        cases.push_back({std::move(name), o, bound});
    };
    auto as_torch = [](bool nesterov) {
        return [nesterov](auto& o) {
            o.ortho = Ortho::jordan;
            o.ns_dtype = DType::bf16;
            o.nesterov = nesterov;
        };
    };
    add("torch.plain", 1, 1, .03, as_torch(false));
    add("torch.nesterov", 1, 1, .03, as_torch(true));
    add("teon.muon", 1, 1, 1e-4, [](auto&) {});
    add("teon.muon-svd", 1, 1, 1e-4, [](auto& o) { o.ortho = Ortho::svd; });
    add("teon.nesterov", 2, 1, 1e-4, [](auto& o) { o.nesterov = true; });
    add("teon.you", 2, 1, 1e-4, [](auto& o) { o.ortho = Ortho::you; });
    add("teon.you6", 2, 1, 1e-4, [](auto& o) {
        o.ortho = Ortho::you6;
        o.ns_steps = 6;
    });
    add("teon.jordan", 2, 1, 1e-4, [](auto& o) { o.ortho = Ortho::jordan; });
    add("teon.rms", 2, 1, 1e-4, [](auto& o) { o.teon_rms_match = true; });
    add("teon.normalize", 3, 1, 1e-4, [](auto& o) { o.teon_normalize_slices = true; });
    for (int mode : {1, 2, 3})
        for (int K : {2, 3}) add(fmt::format("teon.mode{}.k{}", mode, K), K, mode, 1e-4, [](auto&) {});
    for (const Case& c : cases)
        for (NsForm form : {NsForm::standard, NsForm::gram}) {
            OptimizerOptions options = c.options;
            options.ns_form = form;
            if (form == NsForm::gram && c.name.starts_with("torch")) continue;
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
        run.set_grads(1);
        run.step();
        const std::string before = bytes_of(run.all()) + run.state_bytes();
        for (int row = 0; row < table.count(); ++row)
            run.set(run.params.grad(row), std::vector<float>(table[row].size(), row % 2 ? NAN : INFINITY));
        run.step(NAN, 1);
        REQUIRE(bytes_of(run.all()) + run.state_bytes() == before);
        run.optimizer.check_finite(run.context);
        run.set_grads(2);
        run.step();
        straight.set_grads(1);
        straight.step();
        straight.set_grads(2);
        straight.step();
        REQUIRE(bytes_of(run.all()) == bytes_of(straight.all()));
        REQUIRE(run.state_bytes() == straight.state_bytes());
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

TEST_CASE("optim/teon: working weights are the rounded master weights and padding stays zero") {
    TableShape shape = {3, 32, 45, 50, true};
    shape.F_stored = 48;
    const ParamTable table = make_table(shape);
    for (Ortho ortho : {Ortho::polar_express, Ortho::svd})
        for (int mode : {1, 2, 3}) {
            OptimizerOptions o = teon_options(2, mode, {Role::q, Role::mlp_up, Role::mlp_down});
            o.ortho = ortho;
            Run run(table, o, DType::bf16);
            run.zero_padding_of_masters();
            for (int t = 0; t < 3; ++t) {
                run.set_grads(t);
                for (int row = 0; row < table.count(); ++row) run.zero_padding(run.params.grad(row), row);
                run.step();
            }
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

// Without gradients every direction is 0, so that only decay changes weights. SOAP's first step does not.
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
                run.step();
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
    run.set_grads(1);
    run.step();
    std::set<std::string> names;
    std::vector<int> tensors(table.count(), 0);
    for (const StateTensor& t : run.optimizer.state()) {
        const ParamRow& row = table[t.param];
        REQUIRE(names.insert(t.name).second);
        REQUIRE((t.rows == row.rows && t.cols == row.cols));
        ++tensors[t.param];
        if (is_hidden_matrix(row.role)) {
            REQUIRE(t.name == row.name + ".momentum");  // equal to the gradient after one step
            REQUIRE(same_bits(fetch(t.data, row.size(), run.context),
                              fetch(run.params.grad(t.param), row.size(), run.context)));
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
        for (int t = 0; t < 2; ++t) {
            run.set_grads(t);
            run.step();
        }
        return bytes_of(run.all()) + run.state_bytes();
    }));
}

TEST_CASE("optim/teon: diagnose() returns the alignment and norm ratio of consecutive layers") {
    const ParamTable table = make_table(kSmall);
    for (int mode : {1, 2, 3}) {
        OptimizerOptions o = teon_options(2, mode);
        Run run(table, o);
        REQUIRE(run.optimizer.diagnose(run.context).empty());  // no entries for zero momenta
        run.set_grads(1);
        run.step();
        std::map<std::pair<Role, int>, Matrix> momenta;
        for (const StateTensor& t : run.optimizer.state()) {
            if (!is_hidden_matrix(table[t.param].role)) continue;
            Matrix m(t.rows, t.cols);
            const auto values = fetch(t.data, int64_t{t.rows} * t.cols, run.context);
            std::copy(values.begin(), values.end(), m.a.begin());
            momenta[{table[t.param].role, table[t.param].layer}] = m;
        }
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

// ---- the paper's theory, with the float64 oracles and on the device ------------------------------

TEST_CASE("optim/teon: the norm and dual norm inequalities hold for modes 1 and 2 on random tensors") {
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
    "optim/teon: on rank-one slices, mode 1 gains sqrt(K) with shared left vectors, mode 2 with shared right vectors") {
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
    "optim/teon: with shared right vectors, the device's mode-1 step equals Muon's; with shared left vectors, it is "
    "smaller by sqrt(K)") {
    const int K = 4;
    ParamTable table;
    for (int l = 0; l < K; ++l) table.add(matrix_row("q." + std::to_string(l), Role::q, l, 16, 16));
    for (bool shared_left : {true, false}) {
        const auto slices = rank_one_family(16, 16, K, shared_left);
        auto step_with = [&](OptimizerOptions o) {
            o.ortho = Ortho::svd;
            Run run(table, o);
            const std::vector<float> before = run.all();
            for (int k = 0; k < K; ++k)
                run.set(run.params.grad(k), std::vector<float>(slices[k].a.begin(), slices[k].a.end()));
            run.step();
            std::vector<double> moved;
            const auto after = run.all();
            for (size_t i = 0; i < after.size(); ++i) moved.push_back(double{before[i]} - after[i]);
            return moved;
        };
        OptimizerOptions muon = teon_options(1, 1, {Role::q});
        OptimizerOptions teon = teon_options(K, 1, {Role::q});
        const auto a = step_with(muon);
        const auto b = step_with(teon);
        const double ratio = shared_left ? 1 / std::sqrt(K) : 1;
        for (size_t i = 0; i < a.size(); ++i)
            REQUIRE(std::abs(b[i] - ratio * a[i]) <= 1e-6);  // weights of 0.2 in float
    }
}

TEST_CASE("optim/teon: no feasible direction beats the exact step in the paper's trust-region problem") {
    // min <G, X> subject to ||X||_teon-i <= eta: the step attains -eta ||G||_teon-i,*.
    const int m = 6;
    const int n = 9;
    const int K = 3;
    std::vector<Matrix> G;
    for (int k = 0; k < K; ++k) G.push_back(gaussian(m, n, 40 + k));
    ParamTable table;
    for (int l = 0; l < K; ++l) table.add(matrix_row("q." + std::to_string(l), Role::q, l, m, n));
    for (int mode : {1, 2, 3}) {
        OptimizerOptions o = teon_options(K, mode, {Role::q});
        o.ortho = Ortho::svd;
        o.shape_scale = false;
        Run run(table, o);
        const std::vector<float> before = run.all();
        for (int k = 0; k < K; ++k) run.set(run.params.grad(k), std::vector<float>(G[k].a.begin(), G[k].a.end()));
        run.step();
        const std::vector<float> after = run.all();
        const double eta = o.lr;
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
