// What the forward pass keeps for the backward pass, and what both need for a moment: one row per tensor. Totals come
// from here before anything is allocated (--plan-only), and the model takes its memory by the same rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace teon {

// none: keep everything. cheap: recompute norm outputs and activations (elementwise) in the backward pass. block: keep
// only each block's input and run its forward again. automatic: the first of these that fits the memory given.
enum class Recompute { none, cheap, block, automatic };
std::string_view name_of(Recompute r);

struct ActivationRow {
    std::string name;
    int64_t bytes = 0;          // of one copy
    int copies = 1;             // L where every layer keeps its own
    std::string_view lifetime;  // "saved" (forward to backward) or "scratch"
    int64_t total() const { return bytes * copies; }
};

class ActivationPlan {
public:
    int add(std::string name, int64_t bytes, int copies, std::string_view lifetime);
    const std::vector<ActivationRow>& rows() const { return rows_; }
    int64_t saved_bytes() const;
    int64_t scratch_bytes() const;
    int64_t total_bytes() const;  // what one Arena holds, alignment included
private:
    std::vector<ActivationRow> rows_;
};

}  // namespace teon
