// Muon, NorMuon and Teon compared with float64, and the sizes of their updates with closed forms.
#include <map>
#include <string>

#include "optim/methods.h"
#include "optim/stacks.h"
#include "test/optim/optimizer_run.h"
#include "test/optim/param_tables.h"
#include "test/oracle/orthogonal.h"
#include "test/oracle/update_rate.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr TableShape kSmall{.L = 5, .C = 32, .F = 48, .V = 50, .heads = 4};

// The logical part of a parameter, without padding.
Matrix logical_part(const std::vector<float>& values, const ParamRow& row) {
    Matrix x(row.logical_rows, row.logical_cols);
    for (int i = 0; i < x.rows; ++i)
        for (int j = 0; j < x.cols; ++j) x(i, j) = values[static_cast<size_t>(i) * row.cols + j];
    return x;
}
Matrix weights_of(Run& run, int row) { return logical_part(run.weights(row), run.table()[row]); }

// The factor of a whole matrix's rate.
double expected_rate(const ParamRow& row, const OptimizerOptions& o) {
    const double m = row.logical_rows;
    const double n = row.logical_cols;
    const double of_role = o.lr_scale.contains(row.role) ? o.lr_scale.at(row.role) : 1;
    if (o.update_rms > 0) return of_role * o.update_rms * std::sqrt(std::max(m, n));
    if (o.update_scale == UpdateScale::none) return of_role;
    return of_role * std::sqrt(o.update_scale == UpdateScale::original ? std::max(1.0, m / n) : m / n);
}

// The optimizer's update in float64, stack by stack, by the paper's matricization, without padding. The momentum is an
// average, as most packages write it, where the optimizer has a sum.
struct Reference {
    const ParamTable& table;
    OptimizerOptions o;
    int updates = 0;
    std::vector<Matrix> weights, momenta;
    std::vector<std::vector<double>> neurons;  // NorMuon's second moments of rows, or of each head's columns

    Reference(Run& run, const OptimizerOptions& options) : table(run.table()), o(options) {
        for (int row = 0; row < table.count(); ++row) {
            weights.push_back(weights_of(run, row));
            momenta.emplace_back(weights.back().rows, weights.back().cols);
            neurons.emplace_back(std::max(weights.back().rows, 8 * weights.back().cols), 0.0);
        }
    }
    // lr_factor: the schedule's.
    void step(Run& run, const OptimizerPlan& plan, double scale, double lr_factor) {
        ++updates;
        for (const Stack& stack : plan.stacks)
            for (int head = 0; head < stack.heads; ++head) step(run, stack, head, scale, lr_factor);
    }
    double momentum() const {
        const double rises = o.momentum_warmup > 0 ? std::min(1.0, (updates - 1.0) / o.momentum_warmup) : 1;
        return o.momentum_start + rises * (double{o.momentum} - o.momentum_start);
    }
    // What is orthogonalized, from the gradient and the new average.
    Matrix direction(const Matrix& average, const Matrix& g) const {
        const double mu = momentum();
        if (!o.nesterov) return average;
        if (o.nesterov_form == NesterovForm::ema) return combination(1, average, 1, g);
        if (o.nesterov_form == NesterovForm::usual) return combination(mu, average, 1 - mu, g);
        return combination(mu / (1 - std::pow(mu, updates + 1)), average, (1 - mu) / (1 - std::pow(mu, updates)), g);
    }
    static Matrix with_equal_rows(Matrix x) {
        const double norm = frobenius(x) / std::sqrt(x.rows);
        for (int i = 0; i < x.rows; ++i) {
            double sum = 0;
            for (int j = 0; j < x.cols; ++j) sum += x(i, j) * x(i, j);
            for (int j = 0; j < x.cols; ++j) x(i, j) *= norm / std::sqrt(sum);
        }
        return x;
    }
    // Algorithm 1 of NorMuon from line 6 on, for a head's rows of a parameter.
    Matrix normalized(Matrix x, std::vector<double>& v, int head) const {
        if (o.renormalize) x = combination(std::sqrt(std::min(x.rows, x.cols)) / frobenius(x), x, 0, x);
        if (o.neuron_axis == NeuronAxis::rows || x.rows >= x.cols) return with_equal_neurons(x, v, head * x.rows);
        return transposed(with_equal_neurons(transposed(x), v, head * x.cols));
    }
    Matrix with_equal_neurons(Matrix x, std::vector<double>& v, int first) const {
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
            Matrix average(m, n);
            copy_rows(g, 0, logical_part(run.grads(row), table[row]), first, m);
            copy_rows(average, 0, momenta[row], first, m);
            g = combination(scale, g, 0, g);
            average = combination(momentum(), average, 1 - momentum(), g);
            copy_rows(momenta[row], first, average, 0, m);
            Matrix d = direction(average, g);
            if (o.equalize_rows) d = with_equal_rows(d);
            if (o.teon_normalize_slices) d = combination(1 / (frobenius(d) + 1e-7), d, 0, d);
            directions.push_back(d);
        }
        const Matrix z = matricize(directions, stack.mode);
        const Matrix q = o.ortho == Ortho::svd ? polar_factor(z) : newton_schulz(z, ns_set(o.ortho), o.ns_steps);
        const auto updates = dematricize(q, stack.mode, m, n, stack.K());
        const double factor = update_scale(stack, o);
        for (int k = 0; k < stack.K(); ++k) {
            const int row = stack.params[k];
            Matrix w(m, n);
            copy_rows(w, 0, weights[row], first, m);
            const Matrix u = has_neuron_norm(o) ? normalized(updates[k], neurons[row], head) : updates[k];
            const double decay_factor = o.decay_at == DecayAt::adjusted ? expected_rate(table[row], o) : 1;
            const OracleRate rate{o.lr, factor, table[row].decay ? o.weight_decay * decay_factor : 0,
                                  o.cautious_weight_decay, lr_factor};
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

// Four steps of the optimizer and of the reference; returns the largest difference.
double difference_after_four_steps(const ParamTable& table, const OptimizerOptions& options) {
    Run run(table, options);
    Reference reference(run, options);
    for (int t = 0; t < 4; ++t) {
        const float scale = t == 2 ? 0.3f : 1.0f;
        run.set_grads(t);
        const float lr_factor = t == 1 ? 0.7f : 1.0f;
        reference.step(run, run.optimizer.plan(), scale, lr_factor);
        run.step(scale, 0, lr_factor);
    }
    return worst_difference(run, reference, run.optimizer.plan());
}
// Four updates, each within 6e-5 of float64: at singular values near zero, the polynomials amplify rounding noise of
// 2^-24 by their slope (jordan 3.4^5 = 485, polar-express 979). Rounding of the weights is below 1e-5 of a step.
constexpr double kFourSteps = 3e-4;

const std::set<Role> kRoles = {Role::q, Role::k, Role::v, Role::mlp_up, Role::mlp_down};

struct StepCase {
    const char* name;
    OptimizerOptions options;
};
const StepCase kStepCases[] = {
    {"muon", {.method = Method::muon}},
    {"nesterov", {.nesterov = true}},
    {"svd", {.ortho = Ortho::svd}},
    {"gram", {.ns_form = NsForm::gram}},
    {"you, 6 steps", {.ortho = Ortho::you, .ns_steps = 6}},
    {"rms match", {.teon_rms_match = true}},
    {"rms match, mode 3", {.teon_mode = 3, .teon_rms_match = true}},
    {"normalized slices", {.nesterov = true, .teon_normalize_slices = true}},
    {"normuon", {.method = Method::normuon}},
    {"normuon as in the paper", {.method = Method::normuon, .update_rms = 0.2f}},
    {"neuron norm of stacks", {.nesterov = true, .neuron_norm = true}},
    {"neuron norm of stacks, mode 2", {.neuron_norm = true, .teon_mode = 2}},
    {"neuron norm, svd, mode 3", {.neuron_norm = true, .ortho = Ortho::svd, .teon_mode = 3}},
    {"cautious weight decay", {.weight_decay = 0.02f, .cautious_weight_decay = true}},
    {"cautious, neuron norm", {.weight_decay = 0.02f, .cautious_weight_decay = true, .neuron_norm = true}},
    {"you, gram", {.ortho = Ortho::you, .ns_form = NsForm::gram}},
    {"per head", {.ortho_per_head = true}},
    {"per head, mode 2, rms match", {.ortho_per_head = true, .teon_mode = 2, .teon_rms_match = true}},
    {"per head, everything",
     {.weight_decay = 0.02f,
      .cautious_weight_decay = true,
      .nesterov = true,
      .neuron_norm = true,
      .ortho_per_head = true}},
    {"lr scale", {.lr_scale = {{Role::q, 0.5f}, {Role::o, 2.0f}}}},
    {"normuon of columns", {.method = Method::normuon, .neuron_axis = NeuronAxis::longer}},
    {"neuron norm of columns, mode 2, per head",
     {.nesterov = true,
      .neuron_norm = true,
      .neuron_axis = NeuronAxis::longer,
      .ortho_per_head = true,
      .teon_mode = 2}},
    {"renormalized", {.method = Method::normuon, .renormalize = true}},
    {"equal rows", {.method = Method::muon, .equalize_rows = true}},
    {"equal rows, mode 3, nesterov", {.nesterov = true, .equalize_rows = true, .teon_mode = 3}},
    {"scale original", {.update_scale = UpdateScale::original}},
    {"decay at the adjusted rate",
     {.weight_decay = 0.5f, .decay_at = DecayAt::adjusted, .lr_scale = {{Role::q, 0.5f}, {Role::mlp_up, 2.0f}}}},
    {"decay at the adjusted rate, original",
     {.weight_decay = 0.5f, .decay_at = DecayAt::adjusted, .update_scale = UpdateScale::original}},
    {"nesterov, bias-corrected", {.nesterov = true, .nesterov_form = NesterovForm::bias_corrected}},
    {"nesterov, ema", {.momentum = 0.9f, .nesterov = true, .nesterov_form = NesterovForm::ema}},
    {"nesterov form without nesterov", {.nesterov_form = NesterovForm::ema}},
    {"rising momentum", {.momentum_warmup = 3}},
    {"rising momentum, nesterov", {.momentum = 0.97f, .momentum_start = 0.5f, .momentum_warmup = 2, .nesterov = true}},
};

}  // namespace

TEST_CASE("optim/teon_float64: steps match float64 by the paper's matricization, for every mode, method and option") {
    const ParamTable table = make_table(kSmall);
    std::vector<StepCase> cases(std::begin(kStepCases), std::end(kStepCases));
    for (int mode : {1, 2, 3})
        for (int K : {2, 3, 5}) cases.push_back({"mode", {.teon_k = K, .teon_mode = mode}});
    for (StepCase& c : cases) {
        c.options.teon_roles = kRoles;
        const double d = difference_after_four_steps(table, teon_options(c.options));
        INFO(c.name << ", mode " << c.options.teon_mode << ", K " << c.options.teon_k << ": " << d);
        REQUIRE(d <= kFourSteps);
    }
}

TEST_CASE("optim/teon_float64: padding changes no update: odd MLP widths match float64 without padding") {
    for (const auto& [F, stored] : {std::pair(45, 48), {67, 72}, {31, 32}, {1, 8}}) {
        const ParamTable table = make_table({.L = 2, .C = 32, .F = F, .V = 50, .llama = true, .F_stored = stored});
        const std::set<Role> roles = {Role::q, Role::mlp_up, Role::mlp_gate, Role::mlp_down};
        for (const float rms : {0.0f, 0.2f})
            for (int mode : {1, 2, 3}) {
                const OptimizerOptions o = teon_options({.method = mode == 3 ? Method::normuon : Method::teon,
                                                         .update_rms = rms,
                                                         .neuron_norm = true,
                                                         .neuron_axis = rms > 0 ? NeuronAxis::longer : NeuronAxis::rows,
                                                         .renormalize = rms > 0,
                                                         .equalize_rows = rms > 0,
                                                         .teon_mode = mode,
                                                         .teon_roles = roles});
                const double d = difference_after_four_steps(table, o);
                INFO("MLP of " << F << " in " << stored << ", mode " << mode << ", update rms " << rms << ": " << d);
                REQUIRE(d <= kFourSteps);
            }
    }
}

namespace {

// The root mean square of what the first step moves the matrices of a role, all layers together, per unit of lr.
std::map<Role, double> update_sizes(const ParamTable& table, OptimizerOptions o) {
    o.weight_decay = 0;
    Run run(table, o);
    std::vector<Matrix> before;
    for (int row = 0; row < table.count(); ++row) before.push_back(weights_of(run, row));
    run.set_grads(7);
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
    return expected_rate(row, o) * std::sqrt(square / (m * n));
}

}  // namespace

TEST_CASE(
    "optim/teon_float64: updates have the documented size in every shape, whole or per head, with every scale rule") {
    const TableShape shapes[] = {
        {.L = 4,
         .C = 24,
         .F = 35,
         .V = 50,
         .llama = true,
         .KV = 32,
         .F_stored = 40,
         .heads = 4,
         .kv_heads = 2,
         .Q = 64},
        {.L = 2, .C = 32, .F = 67, .V = 50, .llama = true, .KV = 8, .F_stored = 72, .heads = 8, .kv_heads = 2},
        // A head has more rows than columns.
        {.L = 2, .C = 12, .F = 12, .V = 50, .KV = 32, .heads = 3, .kv_heads = 2, .Q = 48}};
    std::vector<OptimizerOptions> methods;
    for (const Method method : {Method::muon, Method::normuon, Method::teon})
        for (const int mode : {1, 2, 3}) {
            if (method != Method::teon && mode > 1) continue;
            for (const bool match : {false, true}) {
                methods.push_back(teon_options({.method = method,
                                                .neuron_norm = match && method != Method::teon,
                                                .ortho = Ortho::svd,
                                                .teon_mode = mode,
                                                .teon_roles = {Role::q, Role::k, Role::v, Role::o, Role::mlp_down},
                                                .teon_rms_match = match}));
            }
        }
    for (const TableShape& shape : shapes)
        for (const OptimizerOptions& method : methods)
            for (const UpdateScale scale :
                 {UpdateScale::spectral, UpdateScale::original, UpdateScale::rms, UpdateScale::none})
                for (const bool per_head : {false, true}) {
                    OptimizerOptions o = method;
                    o.update_scale = scale;
                    o.update_rms = scale == UpdateScale::rms ? 0.2f : 0.0f;
                    o.ortho_per_head = per_head;
                    const ParamTable table = make_table(shape);
                    const std::map<Role, double> sizes = update_sizes(table, o);
                    for (const ParamRow& row : table.rows()) {
                        if (!is_hidden_matrix(row.role) || row.layer > 0) continue;
                        const double expected = expected_size(row, o);
                        INFO(row.name << " " << row.logical_rows << " x " << row.logical_cols << ", "
                                      << name_of(o.method) << ", mode " << o.teon_mode << ", rms match "
                                      << o.teon_rms_match << ", scale " << name_of(scale) << ", per head " << per_head
                                      << ": " << sizes.at(row.role) << ", expected " << expected);
                        // float's rounding of weights of 0.2 that move by 0.05 x 0.02 or more
                        REQUIRE(std::abs(sizes.at(row.role) / expected - 1) <= 1e-4);
                    }
                }
}
