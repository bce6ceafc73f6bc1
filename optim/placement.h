// Who updates what when several ranks train together. A stack is owned whole by one rank, which alone holds its
// state and updates it: cut across ranks, an orthogonalized matrix would come out differently on each. What is updated
// element by element is cut evenly, at any element. All follows from the table, the plan and the number of ranks, so every
// rank computes the same, and so does --plan-only without the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "optim/stacks.h"
#include "runtime/comm.h"

namespace teon {

// Owners of pieces of work by longest processing time: the most expensive piece that is left goes to the rank with the
// least to do so far; ties go to the earlier piece and the lower rank. The largest load is at most 4/3 of the smallest
// possible (Graham, 1969).
std::vector<int> longest_processing_time(const std::vector<double>& cost, int ranks);

struct Placement {
    int ranks = 1;
    std::vector<int> owner;            // of each stack of the plan
    std::vector<double> load;          // FLOPs of the stacks' update per step, by rank
    std::vector<Part> elements;        // of the elements of all runs in order, one part per rank
    std::vector<int64_t> state_bytes;  // by rank
    double imbalance() const;          // largest load / mean load; 1 if there is none
};
Placement place(const ParamTable& table, const OptimizerPlan& plan, const OptimizerOptions& options, int ranks);

// Where the parameters of `rows` (ascending) lie in the flat buffers and who owns them, ascending. Neighbours of one
// owner are one part, alignment gaps between them included.
class Ownership {
public:
    Ownership(const ParamTable& table, const OptimizerPlan& plan, const Placement& placement,
              const OptimizerOptions& options);
    const Placement& placement() const { return placement_; }
    std::vector<Part> parts(const std::vector<int>& rows) const;
    std::vector<Part> all() const;

private:
    struct Row {
        int owner = -1;     // of a stack's row; -1: updated element by element
        int64_t begin = 0;  // among the elements of all runs
    };
    ParamTable table_;
    Placement placement_;
    std::vector<Row> rows_;
};

// As text: load, state and messages by rank, and what a step's exchange takes at `gb_per_s` GB/s and rank. `weights` is
// the type that new weights travel in; gradients travel in float.
std::string placement_table(const ParamTable& table, const Placement& placement, DType weights, double gb_per_s);

}  // namespace teon
