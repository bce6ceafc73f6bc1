#include "optim/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "optim/methods.h"

namespace teon {

std::vector<int> longest_processing_time(const std::vector<double>& cost, int ranks) {
    std::vector<int> order(cost.size());
    std::vector<int> owner(cost.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cost[a] > cost[b]; });
    std::vector<double> load(ranks, 0.0);
    for (int piece : order) {
        const auto least = std::min_element(load.begin(), load.end());
        *least += cost[piece];
        owner[piece] = static_cast<int>(least - load.begin());
    }
    return owner;
}

Placement place(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options, int ranks) {
    CHECK(ranks >= 1, "placement on {} ranks", ranks);
    Placement p;
    p.ranks = ranks;
    std::vector<double> cost;
    for (const Stack& stack : plan.stacks) cost.push_back(stack.flops);
    p.owner = longest_processing_time(cost, ranks);
    const std::vector<ElementRun> runs = element_runs(table, plan, options);
    p.elements = even_parts(runs.empty() ? 0 : runs.back().begin + runs.back().size, ranks, kParamAlignment);
    p.scratch_bytes = largest_scratch_bytes(group_stacks(plan.stacks, options, ranks, p.owner));
    for (const ParamRow& row : table.rows()) p.params.push_back({row.offset, row.size()});
    for (const ElementRun& run : runs)
        for (int param : run.params) p.params[param].begin = run.begin + table[param].offset - run.offset;

    p.load.assign(ranks, 0.0);
    p.state_bytes.assign(ranks, 0);
    constexpr int64_t bytes = sizeof(float);
    for (const Part& part : p.elements)
        p.state_bytes[part.root] += std::ssize(info_of(options.method).elements->state) * bytes * part.size;
    for (size_t i = 0; i < plan.stacks.size(); ++i) {
        const Stack& stack = plan.stacks[i];
        p.load[p.owner[i]] += stack.flops;
        p.state_bytes[p.owner[i]] += bytes * state_elements(table, stack, options);
        for (int param : stack.params) p.params[param].owner = p.owner[i];
    }
    return p;
}

double Placement::imbalance() const {
    const double total = std::accumulate(load.begin(), load.end(), 0.0);
    return total > 0 ? *std::max_element(load.begin(), load.end()) * ranks / total : 1.0;
}

std::vector<Part> Placement::parts_of(const std::vector<int>& indices) const {
    std::vector<Part> parts;
    int previous_param = -2;  // the last one of the last part
    auto add = [&](int param, int64_t offset, int64_t size, int rank) {
        const bool adjacent = !parts.empty() && parts.back().root == rank && param <= previous_param + 1;
        if (adjacent) {
            parts.back().size = offset + size - parts.back().offset;
        } else {
            parts.push_back({offset, size, rank});
        }
        previous_param = param;
    };
    for (int param : indices) {
        const Param& p = params[param];
        if (p.owner >= 0) {
            add(param, p.offset, p.size, p.owner);
            continue;
        }
        for (const Part& part : elements) {
            const int64_t from = std::max(p.begin, part.offset);
            const int64_t to = std::min(p.begin + p.size, part.offset + part.size);
            if (from < to) add(param, p.offset + from - p.begin, to - from, part.root);
        }
    }
    return parts;
}

std::vector<Part> Placement::all_parts() const {
    std::vector<int> indices(params.size());
    std::iota(indices.begin(), indices.end(), 0);
    return parts_of(indices);
}

std::vector<Part> Placement::own_parts(int rank) const {
    std::vector<Part> parts = all_parts();
    std::erase_if(parts, [&](const Part& part) { return part.root != rank; });
    return parts;
}

std::vector<std::vector<Part>> gradient_buckets(const ParamTable& table, const Placement& placement,
                                                int64_t bucket_bytes) {
    const std::vector<std::vector<int>> params = rows_by_window(table);
    std::vector<std::vector<Part>> buckets(params.size());
    std::vector<Part> bucket;
    int64_t bytes = 0;
    for (size_t l = params.size(); l-- > 0;) {
        for (const Part& part : placement.parts_of(params[l])) {
            bucket.push_back(part);
            bytes += part.size * size_of(DType::f32);
        }
        if (l > 0 && bytes < bucket_bytes) continue;
        std::sort(bucket.begin(), bucket.end(), [](const Part& a, const Part& b) { return a.offset < b.offset; });
        buckets[l] = std::exchange(bucket, {});
        bytes = 0;
    }
    return buckets;
}

int64_t exchange_elements(const std::vector<std::vector<Part>>& buckets) {
    int64_t largest_size = 0;
    for (const std::vector<Part>& bucket : buckets)
        largest_size = std::max(largest_size, ParamLayout::of_parts(bucket).size());
    return largest_size;
}

StepTraffic step_traffic(const ParamTable& table, int ranks, const Exchange& e) {
    // All other ranks send each element's gradient to its owner. The owner sends the new weight to all others.
    const double share = static_cast<double>(ranks - 1) / ranks;
    const double elements = share * static_cast<double>(table.size());
    const double gradients = elements * size_of(e.gradients);
    const double weights = elements * size_of(e.weights);
    switch (e.sharding) {
        case Sharding::none:
            return {2 * gradients, 0};
        case Sharding::optimizer:
            return {gradients, weights};
        case Sharding::gradients:
            return {e.micro_steps * gradients, weights};
        case Sharding::all:
            break;
    }
    // A layer is sent for each pass unless the previous pass has left it in its window. Until the update, forward
    // passes leave the last two layers in the windows, backward passes the first two.
    const int L = static_cast<int>(rows_by_window(table).size()) - 1;
    double sent = 0;
    for (const ParamRow& row : table.rows()) {
        const int l = window_layer(row);
        const int forward = l < 2 ? 1 : e.micro_steps;
        const int backward = l >= L - 2 ? 0 : e.micro_steps;
        const int times = l < 0 ? 1 : forward + backward;
        sent += share * times * static_cast<double>(row.size()) * size_of(e.weights);
    }
    return {e.micro_steps * gradients, sent};
}

// Sets the value of each rank to the sum of all: without sharding, each has everything.
template <typename Number>
static void replicate_sum(std::vector<Number>& of_ranks) {
    const Number sum = std::accumulate(of_ranks.begin(), of_ranks.end(), Number{});
    std::fill(of_ranks.begin(), of_ranks.end(), sum);
}

std::string placement_table(const ParamTable& table, Placement placement, const Exchange& exchange, double gb_per_s) {
    const int ranks = placement.ranks;
    std::vector<int64_t> stacks(ranks, 0);
    for (int owner : placement.owner) ++stacks[owner];
    std::vector<std::vector<Part>> parts_of_rank(ranks);
    for (const Part& part : placement.all_parts()) parts_of_rank[part.root].push_back(part);
    if (exchange.sharding == Sharding::none) {
        replicate_sum(stacks);
        replicate_sum(placement.load);
        replicate_sum(placement.state_bytes);
    }

    const auto mib = [](int64_t elements, DType dtype) {
        return static_cast<double>(elements) * size_of(dtype) / 0x1p20;
    };
    const auto describe = [&](int r) {
        const ParamLayouts layouts(table, exchange.weights, {exchange.sharding, parts_of_rank[r]});
        return fmt::format("{:>8}{:>12.2f}{:>11.1f}{:>13.1f}{:>13.1f}{:>15.1f}\n", stacks[r], placement.load[r] * 1e-9,
                           static_cast<double>(placement.state_bytes[r]) / 0x1p20,
                           mib(layouts.masters.size(), DType::f32),
                           mib(layouts.copy.size() + layouts.weight_windows.size(), exchange.weights),
                           mib(layouts.gradients.size() + layouts.sums.size(), DType::f32));
    };
    std::string text = fmt::format("{:>6}{:>8}{:>12}{:>11}{:>13}{:>13}{:>15}\n", "rank", "stacks", "GFLOP/step",
                                   "state MiB", "masters MiB", "weights MiB", "gradients MiB");
    std::vector<std::string> lines;
    for (int r = 0; r < ranks; ++r) lines.push_back(describe(r));
    for (auto first = lines.begin(); first != lines.end();) {  // one line for equal ranks
        const auto end = std::find_if(first, lines.end(), [&](const std::string& line) { return line != *first; });
        const auto rank = first - lines.begin();
        const auto last_rank = end - lines.begin() - 1;
        text += fmt::format(
            "{:>6}{}", rank == last_rank ? fmt::format("{}", rank) : fmt::format("{}-{}", rank, last_rank), *first);
        first = end;
    }
    const StepTraffic sent = step_traffic(table, ranks, exchange);
    text += fmt::format("load max/mean {:.2f}\n", placement.imbalance());
    text += fmt::format("sent per step and rank: {:.1f} MiB of gradients + {:.1f} MiB of weights",
                        sent.gradients / 0x1p20, sent.weights / 0x1p20);
    if (gb_per_s > 0)
        text += fmt::format("; predicted {:.2f} ms + {:.2f} ms at {} GB/s", sent.gradients / gb_per_s * 1e-6,
                            sent.weights / gb_per_s * 1e-6, gb_per_s);
    return text + "\n";
}

}  // namespace teon
