#include "optim/stacks.h"

#include "base/integer.h"
#include "optim/methods.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>

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
        // The last stack of a role may be one matrix. It keeps the mode of the others: vec(M) has another size of the
        // update, and mode 2 another side for AOL if the matrix is square.
        stack.mode = stacked && K > 1 ? options.teon_mode : 1;
        info.matrices->plan(stack, options);
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
    if (!info.matrices) return;
    CHECK_USAGE(options.ns_steps >= 1, "--ns-steps {}: at least one step is needed", options.ns_steps);
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
        if (info.matrices && is_hidden_matrix(table[i].role)) {
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
    if (info.matrices) plan.scratch_bytes = info.matrices->scratch_bytes(plan, options, nullptr);
    return plan;
}

std::vector<StackGroup> group_stacks(const OptimizerPlan& plan, const OptimizerOptions& options,
                                     const Placement* placement) {
    std::vector<StackGroup> groups;
    std::map<std::tuple<int, int, int, int, int, int, int, NsForm>, size_t> index;
    for (size_t i = 0; i < plan.stacks.size(); ++i) {
        const Stack& stack = plan.stacks[i];
        auto key = std::tuple(stack.m, stack.n, stack.logical_m, stack.logical_n, stack.K(), stack.mode, stack.heads,
                              stack.form);
        auto [it, fresh] = index.try_emplace(key, groups.size());
        if (fresh) {
            const OrthoMethod method = method_of(options, stack.form);
            groups.push_back({{},
                              unfolding_of(stack, method),
                              Unfolding(stack.mode, stack.logical_m, stack.logical_n, stack.K(), 1),
                              method,
                              stack.heads,
                              1});
        }
        groups[it->second].stacks.push_back(static_cast<int>(i));
    }
    for (StackGroup& group : groups) {
        const int64_t count = static_cast<int64_t>(group.stacks.size());
        const int64_t largest_chunk = std::clamp(kScratchBound / scratch_bytes(group), int64_t{1}, count);
        const int64_t chunks = ceil_div(count, largest_chunk);
        group.chunk = static_cast<int>(ceil_div(count, chunks));  // about equal chunks
        if (!placement || placement->ranks == 1) continue;
        std::vector<int> owned(placement->ranks, 0);
        for (int s : group.stacks) ++owned[placement->owner[s]];
        constexpr int kRounds = 4;
        group.chunk = std::min(group.chunk, ceil_div(*std::max_element(owned.begin(), owned.end()), kRounds));
    }
    return groups;
}

int64_t scratch_bytes(const StackGroup& group) {
    const MatrixBatch batch = group.batch(group.chunk);
    const int64_t unfolded = aligned(batch.size() * size_of(group.method.dtype));
    return unfolded + ortho_scratch_bytes(group.method, batch);
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
        for (const StateShape& s : info_of(options.method).matrices->state(options, table[param])) n += s.stride();
    return n;
}

float lr_scale_of(Role role, const OptimizerOptions& options) {
    auto it = options.lr_scale.find(role);
    return it == options.lr_scale.end() ? 1.0f : it->second;
}

UpdateRate rate_of(const ParamRow& row, const OptimizerOptions& options, double lr_scale) {
    return {.lr = options.lr,
            .lr_scale = static_cast<float>(lr_scale),
            .weight_decay = row.decay ? options.weight_decay : 0.0f,
            .cautious = options.cautious_weight_decay};
}

bool has_neuron_norm(const OptimizerOptions& options) {
    return options.neuron_norm || options.method == Method::normuon;
}

OrthoMethod method_of(const OptimizerOptions& options, NsForm form) {
    const bool exact = options.ortho == Ortho::svd;
    return {options.ortho, options.ns_steps, form, exact ? DType::f32 : options.ns_dtype, options.ns_aol && !exact};
}

Unfolding unfolding_of(const Stack& stack, const OrthoMethod& method) {
    return Unfolding(stack.mode, stack.m, stack.n, stack.K(), method.row_alignment());
}

double update_scale(const Stack& stack, const OptimizerOptions& options) {
    const double m = static_cast<double>(stack.logical_m) * stack.heads;
    const double n = stack.logical_n;
    double factor = lr_scale_of(stack.role, options);
    if (options.update_rms > 0 && has_neuron_norm(options))
        return factor * options.update_rms;  // of a slice with rms 1
    if (options.update_rms > 0)
        factor *= options.update_rms * std::sqrt(std::max(m, n));
    else if (options.shape_scale)
        factor *= std::sqrt(m / n);
    // The mean ||O_k||_F^2 of K slices of a semi-orthogonal unfolding is (its short side) / K.
    auto mean_square = [&](int heads) {
        const Unfolding u(stack.mode, stack.logical_m * stack.heads / heads, stack.logical_n, stack.K(), 1);
        return static_cast<double>(heads) * std::min(u.rows(), u.cols()) / stack.K();
    };
    const double target = options.teon_rms_match ? std::min(m, n) : mean_square(1);
    return factor * std::sqrt(target / mean_square(stack.heads));
}

// Returns what the methods of all stacks begin with, up to a comma: "polar-express x5, ". Empty if they differ there.
static std::string common_method(const OptimizerPlan& plan, const OptimizerOptions& options) {
    std::string common;
    for (const Stack& stack : plan.stacks) {
        const std::string method = info_of(options.method).matrices->describe(stack, options);
        const std::string part = method.substr(0, method.find(", ") == std::string::npos ? 0 : method.find(", ") + 2);
        if (&stack != &plan.stacks.front() && part != common) return "";
        common = part;
    }
    return common;
}

std::string plan_table(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options) {
    const MethodInfo& info = info_of(options.method);
    std::vector<std::vector<std::string>> lines = {
        {"role", "shape", "stacks", "K", "unfolding", info.matrices ? info.matrices->what : "", "GFLOP"}};
    const std::string common = common_method(plan, options);
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
        const std::string method = info.matrices->describe(first, options);
        const std::string heads = first.heads > 1 ? fmt::format("{} x ", first.heads) : "";
        lines.push_back({std::string(name_of(first.role)), fmt::format("{}{} x {}", heads, first.m, first.n),
                         fmt::format("{}", end - i), fmt::format("{}", first.K()),
                         fmt::format("mode {}: {} x {}", first.mode, u.rows(), u.cols()), method.substr(common.size()),
                         fmt::format("{:.1f}", flops * 1e-9)});
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
        text += fmt::format("{}: {}{:.1f} GFLOP per step\n", info.matrices->work, common, total * 1e-9);
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
