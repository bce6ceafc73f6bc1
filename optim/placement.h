// The division of the optimizer among ranks. One rank owns a stack, holds its state and updates it, because the
// orthogonalization needs the whole stack. Elementwise updates are divided evenly, at any element. The placement
// depends only on the table, the plan and the number of ranks: every rank and --plan-only compute the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/param_layout.h"
#include "optim/optimizer_options.h"
#include "optim/stacks.h"
#include "runtime/cuda/comm.h"

namespace teon {

// Returns the owner of each piece of work by longest processing time: the most expensive remaining piece goes to the
// least loaded rank; ties go to the earlier piece and the lower rank. The largest load is at most 4/3 of the optimum
// (Graham, 1969).
std::vector<int> longest_processing_time(const std::vector<double>& cost, int ranks);

Placement place(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options, int ranks);
double imbalance(const Placement& placement);  // largest load / mean load; 1 if there is no load

class Ownership {
public:
    Ownership(const ParamTable& table, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options);
    const Placement& placement() const { return placement_; }
    // Returns the parts of the flat buffers that hold `params` (ascending indices of the table), with their owners, in
    // ascending order. Adjacent parameters of one owner form one part, which includes the gaps between them.
    std::vector<Part> parts(const std::vector<int>& params) const;
    std::vector<Part> all() const;
    std::vector<Part> of(int rank) const;  // the parts that `rank` owns

private:
    struct OwnedParam {
        int owner = -1;     // rank, if the parameter is in a stack; -1: updated element by element
        int64_t begin = 0;  // position among the elements of all runs
    };
    ParamTable table_;
    Placement placement_;
    std::vector<OwnedParam> params_;
};

constexpr int64_t kBucketBytes = int64_t{4} << 20;
// Returns the gradients that are reduced together, in ascending order: the bucket at l + 1 is reduced when the backward
// pass has finished the window_layer l. A bucket collects layers until it has bucket_bytes as float (0: one layer).
std::vector<std::vector<Part>> gradient_buckets(const ParamTable& table, const Ownership& ownership,
                                                int64_t bucket_bytes);
// Elements of a buffer that fits any of the buckets, laid out by ParamLayout::of_parts().
int64_t exchange_elements(const std::vector<std::vector<Part>>& buckets);

// The exchange of weights and gradients in a step.
struct Exchange {
    Sharding sharding = Sharding::optimizer;
    DType weights = DType::f32, gradients = DType::f32;
    int micro_steps = 1;
};
// Bytes that a rank sends in a step, averaged over the ranks, without a few numbers such as losses.
struct StepTraffic {
    double gradients, weights;
};
StepTraffic step_traffic(const ParamTable& table, int ranks, const Exchange& exchange);

// Returns a table of each rank's load and memory by kind, followed by the traffic and its time at `gb_per_s` GB/s per
// rank (0: no time).
std::string placement_table(const ParamTable& table, const Ownership& ownership, const Exchange& exchange,
                            double gb_per_s);

}  // namespace teon
