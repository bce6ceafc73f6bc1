// The division of the optimizer among ranks. One rank owns a stack, holds its state and updates it, because the
// orthogonalization needs the whole stack. Elementwise updates are divided evenly, at any element. The placement
// depends only on the table, the plan and the number of ranks: every rank and --plan-only compute the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/param_layout.h"
#include "optim/optimizer_plan.h"
#include "runtime/cuda/comm.h"

namespace teon {

// Returns the owner of each piece of work by longest processing time: the most expensive remaining piece goes to the
// least loaded rank; ties go to the earlier piece and the lower rank. The largest load is at most 4/3 of the optimum
// (Graham, 1969).
std::vector<int> longest_processing_time(const std::vector<double>& cost, int ranks);

struct Placement {
    int ranks = 1;
    std::vector<int> owner;            // rank of each stack of the plan
    std::vector<double> load;          // FLOPs of the stacks' update per step, by rank
    std::vector<Part> elements;        // the elements of all runs in order, divided into one part per rank
    std::vector<int64_t> state_bytes;  // by rank
    int64_t scratch_bytes = 0;         // of the rank that needs most; OptimizerPlan's is for a single rank

    struct Param {
        int64_t offset, size;  // in the flat buffers
        int owner = -1;        // rank, if the parameter is in a stack; -1: updated element by element
        int64_t begin = 0;     // then its position among the elements of all runs
    };
    std::vector<Param> params;  // of the table

    double imbalance() const;  // largest load / mean load; 1 if there is no load
    // Returns the parts of the flat buffers that hold these parameters (ascending indices of the table), with their
    // owners, in ascending order. Adjacent parameters of one owner form one part, with the gaps between them.
    std::vector<Part> parts_of(const std::vector<int>& indices) const;
    std::vector<Part> all_parts() const;
    std::vector<Part> own_parts(int rank) const;  // that `rank` owns
};
Placement place(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options, int ranks);

constexpr int64_t kBucketBytes = int64_t{4} << 20;
// Returns what is reduced after each layer of the backward pass, which goes from the last layer to the first: buckets[l
// + 1] after layer l, buckets[0] at the end, after what belongs to no layer. A bucket has the layer's own gradients
// and those that earlier buckets left; it is left empty, for the next one to take all, while they are fewer than
// bucket_bytes as float.
std::vector<std::vector<Part>> gradient_buckets(const ParamTable& table, const Placement& placement,
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
std::string placement_table(const ParamTable& table, Placement placement, const Exchange& exchange, double gb_per_s);

}  // namespace teon
