#include "optim/optimizer_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/integer.h"
#include "optim/methods.h"

namespace teon {

namespace {

// Appends the stacks of one role, whose matrices are `params`, in layer order.
void stack_role(std::vector<Stack>& stacks, const ParamTable& table, const OptimizerOptions& options, Role role,
                const std::vector<int>& params) {
    const MethodInfo& info = info_of(options.method);
    const bool stacked = info.stacks && options.teon_roles.contains(role);
    const int K = stacked ? options.teon_k : 1;
    for (size_t begin = 0; begin < params.size();) {
        const ParamRow& first = table[params[begin]];
        const int heads = options.ortho_per_head ? first.heads : 1;
        Stack stack{.role = role,
                    .params = {},
                    .m = first.rows / heads,
                    .n = first.cols,
                    .logical_m = first.logical_rows / heads,
                    .logical_n = first.logical_cols,
                    .heads = heads};
        for (; begin < params.size() && stack.K() < K; ++begin) {
            const ParamRow& row = table[params[begin]];
            if (row.rows != first.rows || row.cols != first.cols) break;
            stack.params.push_back(params[begin]);
        }
        // The last stack of a role may be one matrix. It keeps the mode of the others: in mode 3 its update has another
        // size.
        stack.mode = stacked && K > 1 ? options.teon_mode : 1;
        const OrthoMethod method = method_of(options, NsForm::standard);
        const Unfolding u = unfolding_of(stack, method);
        stack.form = resolve_form(options.ns_form, method, u.rows(), u.cols());
        stack.flops = heads * ortho_flops(method_of(options, stack.form), u.rows(), u.cols());
        stacks.push_back(std::move(stack));
    }
}

bool has_role(const ParamTable& table, Role role) {
    return std::any_of(table.rows().begin(), table.rows().end(), [&](const ParamRow& row) { return row.role == role; });
}

void check_options(const ParamTable& table, const OptimizerOptions& options) {
    for (auto [role, scale] : options.lr_scale) {
        CHECK_USAGE(scale > 0 && std::isfinite(scale), "--lr-scale {}={}: the factor must be positive", name_of(role),
                    scale);
        CHECK_USAGE(has_role(table, role), "--lr-scale: this model has no {}; leave it out{}", name_of(role),
                    role == Role::head ? " (its head is the token embedding)" : "");
    }
    const MethodInfo& info = info_of(options.method);
    if (!info.orthogonalizes) return;
    CHECK_USAGE(options.ns_steps >= 1, "--ns-steps {}: at least one step is needed", options.ns_steps);
    CHECK_USAGE(scale_of(options) != UpdateScale::rms || options.update_rms > 0,
                "--update-scale rms: needs a root mean square above 0; give --update-rms 0.2");
    if (!info.stacks) return;
    CHECK_USAGE(options.teon_k >= 1, "--teon-k {}: a stack holds at least one matrix", options.teon_k);
    CHECK_USAGE(options.teon_mode >= 1 && options.teon_mode <= 3, "--teon-mode {}: modes are 1, 2 and 3",
                options.teon_mode);
    for (Role role : options.teon_roles) {
        CHECK_USAGE(is_hidden_matrix(role), "--teon-roles: {} is not one of q, k, v, o, mlp-up, mlp-gate, mlp-down",
                    name_of(role));
        CHECK_USAGE(has_role(table, role), "--teon-roles: this model has no {} matrices; leave it out", name_of(role));
    }
}

}  // namespace

OptimizerPlan plan_optimizer(const ParamTable& table, const OptimizerOptions& options) {
    check_options(table, options);
    const MethodInfo& info = info_of(options.method);
    OptimizerPlan plan;
    std::map<Role, std::vector<int>> matrices;
    for (int i = 0; i < table.count(); ++i) {
        if (info.orthogonalizes && is_hidden_matrix(table[i].role)) {
            matrices[table[i].role].push_back(i);
        } else {
            plan.element_params.push_back(i);
        }
    }
    for (auto& [role, params] : matrices) {
        std::stable_sort(params.begin(), params.end(), [&](int a, int b) { return table[a].layer < table[b].layer; });
        stack_role(plan.stacks, table, options, role, params);
    }

    int64_t floats = 0;
    for (const ElementRun& run : element_runs(table, plan, options))
        floats += std::ssize(info.elements->state) * run.size;
    for (const Stack& stack : plan.stacks) floats += state_elements(table, stack, options);
    plan.state_bytes = floats * static_cast<int64_t>(sizeof(float));
    plan.scratch_bytes = largest_scratch_bytes(group_stacks(plan.stacks, options));
    return plan;
}

std::vector<ElementRun> element_runs(const ParamTable& table, const OptimizerPlan& plan,
                                     const OptimizerOptions& options) {
    std::vector<ElementRun> runs;
    for (int i : plan.element_params) {
        const ParamRow& row = table[i];
        const float scale = lr_scale_of(row.role, options);
        const bool extends = !runs.empty() && runs.back().params.back() + 1 == i && runs.back().decay == row.decay &&
                             runs.back().lr_scale == scale;
        if (!extends) {
            const int64_t end = runs.empty() ? 0 : runs.back().begin + runs.back().size;
            const int64_t begin = round_up(end, kParamAlignment) + row.offset % kParamAlignment;
            runs.push_back({{}, row.offset, 0, begin, scale, row.decay});
        }
        runs.back().params.push_back(i);
        runs.back().size = row.offset + row.size() - runs.back().offset;
    }
    return runs;
}

int64_t state_elements(const ParamTable& table, const Stack& stack, const OptimizerOptions& options) {
    int64_t n = 0;
    for (int param : stack.params)
        for (const StateShape& s : matrix_state(options, table[param])) n += s.stride();
    return n;
}

// What the orthogonalizations of stacks differ in, and what all have in common.
static std::string form_text(NsForm form, const OptimizerOptions& options) {
    if (options.ortho == Ortho::svd) return "svd";
    return fmt::format("{}, {}", name_of(form), name_of(options.ns_dtype));
}
static std::string common_text(const OptimizerOptions& options) {
    const std::string neurons = has_neuron_norm(options) ? "neurons normalized, " : "";
    if (options.ortho == Ortho::svd) return neurons;
    return fmt::format("{} x{}, {}", name_of(options.ortho), options.ns_steps, neurons);
}

std::string plan_table(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options) {
    const MethodInfo& info = info_of(options.method);
    std::vector<std::vector<std::string>> lines = {
        {"role", "shape", "stacks", "K", "unfolding", "orthogonalizer", "GFLOP"}};
    double total = 0;
    for (size_t i = 0; i < plan.stacks.size();) {
        const Stack& first = plan.stacks[i];
        size_t end = i;
        double flops = 0;
        auto alike = [&](const Stack& s) {
            return std::tuple(s.role, s.m, s.n, s.K(), s.mode) ==
                   std::tuple(first.role, first.m, first.n, first.K(), first.mode);
        };
        for (; end < plan.stacks.size() && alike(plan.stacks[end]); ++end) flops += plan.stacks[end].flops;
        const Unfolding u(first.mode, first.m, first.n, first.K(), 1);
        const std::string heads = first.heads > 1 ? fmt::format("{} x ", first.heads) : "";
        lines.push_back({std::string(name_of(first.role)), fmt::format("{}{} x {}", heads, first.m, first.n),
                         fmt::format("{}", end - i), fmt::format("{}", first.K()),
                         fmt::format("mode {}: {} x {}", first.mode, u.rows(), u.cols()),
                         form_text(first.form, options), fmt::format("{:.1f}", flops * 1e-9)});
        total += flops;
        i = end;
    }

    std::vector<size_t> width(lines[0].size());
    for (auto& line : lines)
        for (size_t c = 0; c < line.size(); ++c) width[c] = std::max(width[c], line[c].size());
    std::string text;
    if (!plan.stacks.empty()) {
        for (auto& line : lines) {
            for (size_t c = 0; c < line.size(); ++c) {
                const bool number = c == 2 || c == 3 || c == 6;
                text += number ? fmt::format("{:>{}}", line[c], width[c]) : fmt::format("{:<{}}", line[c], width[c]);
                text += c + 1 < line.size() ? "  " : "\n";
            }
        }
        text += fmt::format("orthogonalization: {}{:.1f} GFLOP per step\n", common_text(options), total * 1e-9);
    }
    int64_t count = 0;
    for (int i : plan.element_params) count += table[i].logical_size();
    text += fmt::format("{}: {} tensors, {:.2f}M parameters\n", info.elements->name, plan.element_params.size(),
                        static_cast<double>(count) * 1e-6);
    text +=
        fmt::format("optimizer state {:.1f} MiB, scratch {:.1f} MiB\n", static_cast<double>(plan.state_bytes) / 0x1p20,
                    static_cast<double>(plan.scratch_bytes) / 0x1p20);
    return text;
}

}  // namespace teon
