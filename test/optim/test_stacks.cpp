#include "optim/methods.h"
#include "optim/optimizer_plan.h"

#include <cmath>
#include <string>

#include "test/optim/param_tables.h"
#include "test/support/catch.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr Role kHidden[] = {Role::q, Role::k, Role::v, Role::o, Role::mlp_up, Role::mlp_gate, Role::mlp_down};

OptimizerOptions options_of(Method method, int K = 2, int mode = 1,
                            std::set<Role> roles = {Role::q, Role::k, Role::v}) {
    OptimizerOptions o;
    o.method = method;
    o.teon_k = K;
    o.teon_mode = mode;
    o.teon_roles = std::move(roles);
    return o;
}

// Returns whether the plan contains each row exactly once.
bool covers_once(const ParamTable& table, const OptimizerPlan& plan) {
    std::vector<int> seen(table.count(), 0);
    for (int row : plan.element_params) ++seen[row];
    for (const Stack& stack : plan.stacks)
        for (int row : stack.params) ++seen[row];
    for (int count : seen)
        if (count != 1) return false;
    return true;
}

// Returns whether every stack has one role, one shape and consecutive layers, and K layers except a role's last stack.
bool stacks_are_right(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& o, int L) {
    std::map<Role, int> next_layer;
    for (const Stack& stack : plan.stacks) {
        const int K = o.method == Method::teon && o.teon_roles.contains(stack.role) ? o.teon_k : 1;
        int& layer = next_layer[stack.role];
        for (int row : stack.params) {
            const ParamRow& r = table[row];
            if (r.role != stack.role || r.layer != layer++ || r.rows != stack.m || r.cols != stack.n) return false;
        }
        if (stack.K() != K && (layer != L || stack.K() != L % K)) return false;
    }
    for (auto [role, layers] : next_layer)
        if (layers != L) return false;
    return true;
}

std::string usage_error(const ParamTable& table, const OptimizerOptions& o) {
    return error_of<UsageError>([&] { plan_optimizer(table, o); });
}

}  // namespace

TEST_CASE("optim/stacks: every preset, role subset and K covers each parameter exactly once") {
    for (const TableShape& shape : preset_shapes()) {
        const ParamTable table = make_table(shape);
        for (Method method : {Method::adamw, Method::muon})
            REQUIRE(covers_once(table, plan_optimizer(table, options_of(method))));
        for (int subset = 0; subset < 128; ++subset) {
            std::set<Role> roles;
            for (int i = 0; i < 7; ++i)
                if (subset >> i & 1) roles.insert(kHidden[i]);
            if (!shape.llama && roles.contains(Role::mlp_gate)) continue;
            // Test every K for the paper's roles and for all roles; for other subsets, the K at which the plan changes.
            const bool all = subset == 7 || subset == 127;
            for (int K = 1; K <= shape.L + 1; ++K) {
                if (!all && K != 2 && K != 5 && K < shape.L) continue;
                for (int mode : {1, 2, 3}) {
                    if (!all && mode != 1 + subset % 3) continue;
                    const OptimizerOptions o = options_of(Method::teon, K, mode, roles);
                    const OptimizerPlan plan = plan_optimizer(table, o);
                    const bool right = covers_once(table, plan) && stacks_are_right(table, plan, o, shape.L);
                    if (!right) FAIL("C = " << shape.C << ", subset " << subset << ", K = " << K << ", mode " << mode);
                }
            }
        }
    }
}

TEST_CASE("optim/stacks: AdamW has no stacks, Muon has one per hidden matrix") {
    const ParamTable table = make_table(preset_shapes()[0]);
    REQUIRE(plan_optimizer(table, options_of(Method::adamw)).stacks.empty());
    const OptimizerPlan muon = plan_optimizer(table, options_of(Method::muon));
    REQUIRE(muon.stacks.size() == 12 * 6);
    for (const Stack& stack : muon.stacks) REQUIRE((stack.K() == 1 && stack.mode == 1));
    for (int row : muon.element_params) REQUIRE(!is_hidden_matrix(table[row].role));
}

TEST_CASE("optim/stacks: stacks of equal shape share a group, regardless of role, in chunks of bounded scratch") {
    const ParamTable table = make_table(preset_shapes()[0]);
    OptimizerOptions o = options_of(Method::teon);
    o.ns_dtype = DType::f32;
    const OptimizerPlan plan = plan_optimizer(table, o);
    const std::vector<StackGroup> groups = group_stacks(plan.stacks, o);
    REQUIRE(groups.size() == 4);  // q, k, v pairs; o; up; down
    REQUIRE(groups[0].stacks.size() == 18);
    REQUIRE(groups[0].slices(18) == 36);
    REQUIRE(groups[1].stacks.size() == 12);
    for (const TableShape& shape : preset_shapes()) {
        const ParamTable large = make_table(shape);
        for (int K : {1, 2, 5}) {
            o.teon_k = K;
            const OptimizerPlan p = plan_optimizer(large, o);
            std::vector<int> seen(p.stacks.size(), 0);
            int64_t largest = 0;
            for (const StackGroup& group : group_stacks(p.stacks, o)) {
                for (int s : group.stacks) ++seen[s];
                REQUIRE((group.chunk >= 1 && group.chunk <= static_cast<int>(group.stacks.size())));
                REQUIRE((group.scratch_bytes() <= kScratchBound || group.chunk == 1));
                largest = std::max(largest, group.scratch_bytes());
            }
            for (int count : seen) REQUIRE(count == 1);
            REQUIRE(p.scratch_bytes == largest);
        }
    }
}

TEST_CASE("optim/stacks: state is momentum for stacks and two moments for AdamW's rows") {
    const ParamTable table = make_table({2, 64, 256, 100});
    int64_t hidden = 0;
    int64_t rest = 0;
    for (const ParamRow& row : table.rows()) (is_hidden_matrix(row.role) ? hidden : rest) += row.size();
    REQUIRE(plan_optimizer(table, options_of(Method::muon)).state_bytes == 4 * (hidden + 2 * rest));  // no gaps here
    REQUIRE(plan_optimizer(table, options_of(Method::adamw)).state_bytes == 8 * table.size());
    REQUIRE(plan_optimizer(table, options_of(Method::adamw)).scratch_bytes == 0);
    REQUIRE(plan_optimizer(table, options_of(Method::lion)).state_bytes == 4 * table.size());
    int64_t neurons = 0;
    for (const ParamRow& row : table.rows()) neurons += is_hidden_matrix(row.role) ? row.rows : 0;
    REQUIRE(plan_optimizer(table, options_of(Method::normuon)).state_bytes == 4 * (hidden + neurons + 2 * rest));
}

TEST_CASE("optim/stacks: every method has one description") {
    for (const auto& [method, name] : kEnumNames<Method>) {
        REQUIRE(std::count_if(methods().begin(), methods().end(),
                              [method = method](auto& m) { return m.method == method; }) == 1);
        const MethodInfo& info = info_of(method);
        REQUIRE((info.elements != nullptr && info.lr > 0 && info.beta1 > 0 && info.beta2 > 0));
    }
}

TEST_CASE("optim/stacks: per head, the rows of a head are a matrix, and the same heads of K layers form a stack") {
    const ParamTable table = make_table({.L = 3, .C = 32, .F = 64, .V = 50, .llama = true, .KV = 16, .heads = 4});
    OptimizerOptions o = options_of(Method::teon);
    o.ortho_per_head = true;
    const OptimizerPlan plan = plan_optimizer(table, o);
    for (const Stack& s : plan.stacks) {
        const bool split = s.role == Role::q || s.role == Role::k || s.role == Role::v;
        REQUIRE(s.heads == (split ? 4 : 1));
        REQUIRE(s.m * s.heads == table[s.params[0]].rows);
        // The size of the update is that of the whole matrix: sqrt(rows / columns) of the parameter.
        const ParamRow& r = table[s.params[0]];
        REQUIRE(std::abs(update_scale(s, o) - std::sqrt(double(r.rows) / r.cols)) <= 1e-12);
    }
    for (const StackGroup& group : group_stacks(plan.stacks, o)) {
        REQUIRE(group.slices(1) == group.heads * group.unfolding.K);
        REQUIRE(group.batch(2).count == 2 * group.heads);
    }
}

TEST_CASE("optim/stacks: runs of rows with the same update cover AdamW's rows") {
    const ParamTable table = make_table({3, 33, 70, 101});
    OptimizerOptions o = options_of(Method::adamw);
    o.lr_scale = {{Role::q, 0.5f}};
    const OptimizerPlan plan = plan_optimizer(table, o);
    std::vector<int> seen(table.count(), 0);
    const auto runs = element_runs(table, plan, o);
    REQUIRE(runs.size() < plan.element_params.size());
    for (const ElementRun& run : runs) {
        for (int row : run.params) {
            const ParamRow& r = table[row];
            ++seen[row];
            REQUIRE(r.decay == run.decay);
            REQUIRE(run.lr_scale == (r.role == Role::q ? 0.5f : 1.0f));
            REQUIRE((r.offset >= run.offset && r.offset + r.size() <= run.offset + run.size));
        }
    }
    for (int count : seen) REQUIRE(count == 1);
}

TEST_CASE("optim/stacks: the step factor is the role's factor, sqrt(m/n) of the unpadded slice and the rms match") {
    const ParamTable table = make_table({4, 2048, 5461, 100, true, 0, 5464});
    auto factor = [&](OptimizerOptions o, Role role) {
        for (const Stack& s : plan_optimizer(table, o).stacks)
            if (s.role == role) return update_scale(s, o);
        return 0.0;
    };
    auto close = [](double a, double b) { return std::abs(a - b) <= 1e-6 * b; };  // lr_scale is a float
    OptimizerOptions o = options_of(Method::teon);
    REQUIRE(close(factor(o, Role::q), 1.0));
    REQUIRE(close(factor(o, Role::mlp_up), std::sqrt(5461.0 / 2048)));
    REQUIRE(close(factor(o, Role::mlp_down), std::sqrt(2048.0 / 5461)));
    o.lr_scale = {{Role::mlp_up, 0.7f}};
    REQUIRE(close(factor(o, Role::mlp_up), 0.7 * std::sqrt(5461.0 / 2048)));
    o.update_rms = 0.2f;  // Moonlight: 0.2 sqrt(max(rows, columns))
    REQUIRE(close(factor(o, Role::mlp_up), 0.7 * 0.2 * std::sqrt(5461.0)));
    REQUIRE(close(factor(o, Role::mlp_down), 0.2 * std::sqrt(5461.0)));
    REQUIRE(close(factor(o, Role::q), 0.2 * std::sqrt(2048.0)));
    o.update_rms = 0;
    o.teon_rms_match = true;
    o.teon_roles = {Role::q, Role::mlp_up, Role::mlp_down};
    o.lr_scale = {};
    const double up = std::sqrt(5461.0 / 2048);  // sqrt(m / n); of mlp-down the inverse, of q 1
    for (int K : {2, 3, 4}) {
        o.teon_k = K;
        const double of_long_side = std::sqrt(2048.0 * K / std::min(5461, 2048 * K));  // the short side is n K or m
        o.teon_mode = 1;
        REQUIRE(close(factor(o, Role::q), std::sqrt(K)));
        REQUIRE(close(factor(o, Role::mlp_up), up * of_long_side));
        REQUIRE(close(factor(o, Role::mlp_down), std::sqrt(K) / up));
        o.teon_mode = 2;
        REQUIRE(close(factor(o, Role::mlp_up), up * std::sqrt(K)));
        REQUIRE(close(factor(o, Role::mlp_down), of_long_side / up));
        o.teon_mode = 3;
        REQUIRE(close(factor(o, Role::q), std::sqrt(2048.0)));  // ||O_k||_F = 1
        for (const Stack& s : plan_optimizer(table, o).stacks)  // also of the last stack, which has one layer if K = 3
            if (s.role == Role::q) REQUIRE(close(update_scale(s, o), std::sqrt(2048.0)));
    }
}

TEST_CASE("optim/stacks: auto chooses the Gram form for long unfoldings and the standard form for square ones") {
    const ParamTable table = make_table(preset_shapes()[0]);
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        OptimizerOptions o = options_of(Method::teon);
        o.ns_dtype = dtype;
        for (const Stack& s : plan_optimizer(table, o).stacks)
            REQUIRE(s.form == (s.role == Role::o ? NsForm::standard : NsForm::gram));
        o.ns_form = NsForm::standard;
        for (const Stack& s : plan_optimizer(table, o).stacks) REQUIRE(s.form == NsForm::standard);
    }
}

TEST_CASE("optim/stacks: the last stack of a role keeps its mode, and matrices that are not stacked have mode 1") {
    const ParamTable table = make_table({5, 32, 64, 100});
    for (int mode : {1, 2, 3})
        for (const Stack& s : plan_optimizer(table, options_of(Method::teon, 2, mode, {Role::q})).stacks)
            REQUIRE(s.mode == (s.role == Role::q ? mode : 1));
    for (const Stack& s : plan_optimizer(table, options_of(Method::teon, 1, 3, {Role::q})).stacks) REQUIRE(s.mode == 1);
}

TEST_CASE("optim/stacks: the table shows role, shape, stacks, unfolding, orthogonalizer and cost in aligned columns") {
    const ParamTable table = make_table({5, 768, 3072, 50257});
    const OptimizerOptions o = options_of(Method::teon, 2);
    const std::string text = plan_table(table, plan_optimizer(table, o), o);
    INFO(text);
    for (const char* expected : {"role", "mlp-down", "3072 x 768", "mode 1: 768 x 1536", "gram, f16", "standard, f16",
                                 "orthogonalization: polar-express x5, ", "GFLOP", "adamw: "})
        REQUIRE(contains(text, expected));
    size_t header = text.find("GFLOP") + 5;  // each line has the length of the header
    int lines = 0;
    for (size_t begin = 0; text.compare(begin, 6, "orthog") != 0; ++lines) {
        size_t end = text.find('\n', begin);
        REQUIRE(end - begin == header);
        begin = end + 1;
    }
    REQUIRE(header < 80);
    REQUIRE(lines == 1 + 3 * 2 + 3);  // q, k and v also have a short stack
    REQUIRE(
        plan_table(table, plan_optimizer(table, options_of(Method::adamw)), options_of(Method::adamw)).find("role") ==
        std::string::npos);
}

TEST_CASE("optim/stacks: invalid options are usage errors that name the flag") {
    const ParamTable gpt2 = make_table({2, 32, 64, 100});
    REQUIRE(contains(usage_error(gpt2, options_of(Method::teon, 0)), "--teon-k 0"));
    REQUIRE(contains(usage_error(gpt2, options_of(Method::teon, 2, 4)), "--teon-mode 4"));
    REQUIRE(contains(usage_error(gpt2, options_of(Method::teon, 2, 1, {Role::mlp_gate})), "no mlp-gate"));
    REQUIRE(contains(usage_error(gpt2, options_of(Method::teon, 2, 1, {Role::head})), "--teon-roles: head"));
    OptimizerOptions o = options_of(Method::muon);
    o.ns_steps = 0;
    REQUIRE(contains(usage_error(gpt2, o), "--ns-steps 0"));
    o = options_of(Method::adamw);
    for (float bad : {0.0f, -1.0f, INFINITY, NAN}) {
        o.lr_scale = {{Role::q, bad}};
        REQUIRE(contains(usage_error(gpt2, o), "--lr-scale q="));
    }
}
