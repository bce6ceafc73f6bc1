// The division of the optimizer between ranks. One rank owns a whole stack, holds its state and updates it, because the
// orthogonalization needs all of it. Elementwise updates are divided evenly, at any element. The placement depends only
// on the table, the plan and the number of ranks: every rank computes the same one, and so does --plan-only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/param_layout.h"
#include "optim/optimizer_options.h"
#include "optim/stacks.h"
#include "runtime/comm.h"

namespace teon {

// Owner of each piece of work by longest processing time: the most expensive remaining piece goes to the least loaded
// rank; ties go to the earlier piece and the lower rank. The largest load is at most 4/3 of the optimum (Graham, 1969).
std::vector<int> longest_processing_time(const std::vector<double>& cost, int ranks);

Placement place(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options, int ranks);
double imbalance(const Placement& placement);  // largest load / mean load; 1 if there is no load

class Ownership {
public:
    Ownership(const ParamTable& table, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options);
    const Placement& placement() const { return placement_; }
    // The parts of the flat buffers that hold the parameters of `rows` (ascending), with their owners, ascending.
    // Neighbours of one owner are one part, with the alignment gaps between them.
    std::vector<Part> parts(const std::vector<int>& rows) const;
    std::vector<Part> all() const;
    std::vector<Part> of(int rank) const;  // of all, those that it owns

private:
    struct Row {
        int owner = -1;     // of a row in a stack; -1: updated element by element
        int64_t begin = 0;  // among the elements of all runs
    };
    ParamTable table_;
    Placement placement_;
    std::vector<Row> rows_;
};

// Gradients that are reduced together, ascending: at l + 1 those that follow when backward has left the window_layer l.
// A layer's parts wait for those of the layers below until all have bucket_bytes as float (0: none waits).
constexpr int64_t kBucketBytes = int64_t{4} << 20;
std::vector<std::vector<Part>> gradient_buckets(const ParamTable& table, const Ownership& ownership,
                                                int64_t bucket_bytes);
// Elements of a buffer for any one of them, with ParamLayout::of_parts().
int64_t exchange_elements(const std::vector<std::vector<Part>>& buckets);

// What ranks exchange in a step.
struct Exchange {
    Sharding sharding = Sharding::optimizer;
    DType weights = DType::f32, gradients = DType::f32;
    int micro_steps = 1;
};
// Bytes that a rank sends in a step, on average over the ranks. Beside them there are a few numbers, such as losses.
struct StepTraffic {
    double gradients, weights;
};
StepTraffic step_traffic(const ParamTable& table, int ranks, const Exchange& exchange);

// As text: the load and the memory of each rank by kind, the traffic, and its time at `gb_per_s` GB/s per rank (0:
// without it).
std::string placement_table(const ParamTable& table, const Ownership& ownership, const Exchange& exchange,
                            double gb_per_s);

}  // namespace teon
