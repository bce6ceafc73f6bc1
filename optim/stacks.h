// Stacks, the matrices that are orthogonalized as one; the groups of stacks that are orthogonalized in one batch; and
// the constants of their updates. optimizer_plan.h divides a model's matrices into stacks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/param_table.h"
#include "optim/optimizer_options.h"
#include "optim/orthogonalize.h"
#include "optim/unfold.h"

namespace teon {

// K matrices of one role in consecutive layers that are unfolded and orthogonalized as one matrix.
struct Stack {
    Role role;
    std::vector<int> params;           // indices into ParamTable, in layer order
    int m = 0, n = 0;                  // shape of a slice as stored; with heads > 1, of one head's rows
    int logical_m = 0, logical_n = 0;  // without padding
    int heads = 1;  // row blocks of each matrix; the h-th blocks of all matrices are orthogonalized together
    int mode = 1;
    NsForm form = NsForm::standard;  // resolved
    double flops = 0;                // of one update, without the elementwise work
    int K() const { return static_cast<int>(params.size()); }
};

// A tensor of optimizer state that belongs to a matrix of a stack.
struct StateShape {
    std::string_view name;
    int rows, cols;
    int64_t stride() const;  // elements from this tensor to the next, which is aligned
};
// Whether NorMuon's neurons are columns in a matrix of this unpadded shape, which is orthogonalized alone.
bool has_column_neurons(const OptimizerOptions& options, int m, int n);
// The momentum and, for NorMuon's normalization, the second moment of each neuron: of rows, or of each head's columns.
std::vector<StateShape> matrix_state(const OptimizerOptions& options, const ParamRow& row);

// Bound of the Newton-Schulz workspace, unless a single stack needs more. Larger groups are processed in chunks.
inline constexpr int64_t kScratchBound = int64_t{256} << 20;

// Stacks of equal shape, K, mode, number of heads and form, of any role.
struct StackGroup {
    std::vector<int> stacks;  // indices into the plan's stacks, in order
    Unfolding unfolding;
    Unfolding logical;  // without padding
    OrthoMethod method;
    int heads;
    int chunk;                                                           // stacks per batch
    int slices(int count) const { return count * heads * unfolding.K; }  // of `count` stacks
    MatrixBatch batch(int count) const {
        return {count * heads, unfolding.rows(), unfolding.cols(), unfolding.ld, logical.by_rows()};
    }
    int64_t scratch_bytes() const;  // of one chunk: the unfoldings and orthogonalize()'s scratch
};
// owner: the rank of each stack. Several ranks update a group in a few rounds, to overlap the exchange of weights with
// computation.
std::vector<StackGroup> group_stacks(const std::vector<Stack>& stacks, const OptimizerOptions& options, int ranks = 1,
                                     const std::vector<int>& owner = {});
int64_t largest_scratch_bytes(const std::vector<StackGroup>& groups);

float lr_scale_of(Role role, const OptimizerOptions& options);
UpdateScale scale_of(const OptimizerOptions& options);
bool has_neuron_norm(const OptimizerOptions& options);

// Returns the factors of --lr-scale and, for the whole matrix, --update-scale.
double rate_scale(const Stack& stack, const OptimizerOptions& options);
// Returns what O_k is multiplied by, beside the learning rate: rate_scale() times
//   sqrt(a / b), where b is the mean ||O_k||_F^2 in this stack, of all heads together, and a what it would be without
//   the division into heads or, with teon_rms_match, in Muon: min(m, n).
// Padding is not counted. See docs/optimizers.md, "Comparing Muon with Teon".
double update_scale(const Stack& stack, const OptimizerOptions& options);

OrthoMethod method_of(const OptimizerOptions& options, NsForm form);
Unfolding unfolding_of(const Stack& stack, const OrthoMethod& method);

}  // namespace teon
