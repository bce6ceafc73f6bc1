// The division of the optimizer between ranks. One rank owns a whole stack, holds its state and updates it, because the
// orthogonalization needs all of it. Elementwise updates are divided evenly, at any element. The placement depends only
// on the table, the plan and the number of ranks: every rank computes the same one, and so does --plan-only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/optimizer_options.h"
#include "optim/stacks.h"
#include "runtime/comm.h"

namespace teon {

// Owner of each piece of work by longest processing time: the most expensive remaining piece goes to the least loaded
// rank; ties go to the earlier piece and the lower rank. The largest load is at most 4/3 of the optimum (Graham, 1969).
std::vector<int> longest_processing_time(const std::vector<double>& cost, int ranks);

struct Placement {
    int ranks = 1;
    std::vector<int> owner;            // of each stack of the plan
    std::vector<double> load;          // FLOPs of the stacks' update per step, by rank
    std::vector<Part> elements;        // of the elements of all runs in order, one part per rank
    std::vector<int64_t> state_bytes;  // by rank
    double imbalance() const;          // largest load / mean load; 1 if there is no load
};
Placement place(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options, int ranks);

class Ownership {
public:
    Ownership(const ParamTable& table, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options);
    const Placement& placement() const { return placement_; }
    // The parts of the flat buffers that hold the parameters of `rows` (ascending), with their owners, ascending.
    // Neighbours of one owner are one part, with the alignment gaps between them.
    std::vector<Part> parts(const std::vector<int>& rows) const;
    std::vector<Part> all() const;

private:
    struct Row {
        int owner = -1;     // of a row in a stack; -1: updated element by element
        int64_t begin = 0;  // among the elements of all runs
    };
    ParamTable table_;
    Placement placement_;
    std::vector<Row> rows_;
};

// As text: load and state by rank, the bytes sent per step, and the time of the exchange at `gb_per_s` GB/s per rank.
// New weights are sent as `weights`, gradients as float.
std::string placement_table(const ParamTable& table, const Placement& placement, DType weights, double gb_per_s);

}  // namespace teon
