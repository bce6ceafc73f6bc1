// Parameter tables with the roles and shapes of the presets, written by hand because optim/ must not depend on the
// families in model/.
#pragma once

#include <string>
#include <vector>

#include "model/param_table.h"

namespace teon::test {

struct TableShape {
    int L, C, F, V;
    bool llama = false;  // gate, no biases, untied head, norms without bias
    int KV = 0;          // rows of k and v; 0: C
    int F_stored = 0;    // with padding; 0: F
    int heads = 1;       // of q, k and v
    int kv_heads = 0;    // of k and v; 0: heads
    int Q = 0;           // rows of q and columns of o; 0: C
};

inline std::vector<TableShape> preset_shapes() {
    return {{12, 768, 3072, 50257},
            {24, 1024, 4096, 50257},
            {36, 1280, 5120, 50257},
            {8, 512, 1376, 32000, true},
            {12, 768, 2048, 32000, true},
            {24, 1024, 2736, 32000, true},
            {24, 2048, 5461, 32000, true, 0, 5464}};
}

// A matrix without padding or weight decay.
inline ParamRow matrix_row(std::string name, Role role, int layer, int rows, int cols) {
    ParamRow row;
    row.name = std::move(name);
    row.role = role;
    row.layer = layer;
    row.rows = row.logical_rows = rows;
    row.cols = row.logical_cols = cols;
    return row;
}

inline ParamTable make_table(const TableShape& s) {
    ParamTable table;
    auto add = [&](std::string name, Role role, int layer, int rows, int cols, bool joined = false) {
        ParamRow row = matrix_row(std::move(name), role, layer, rows, cols);
        row.decay = role != Role::bias && role != Role::norm;
        row.joined = joined;
        if (role == Role::q) row.heads = s.heads;
        if (role == Role::k || role == Role::v) row.heads = s.kv_heads ? s.kv_heads : s.heads;
        const int padded = s.F_stored ? s.F_stored : s.F;
        if (role == Role::mlp_up || role == Role::mlp_gate) row.rows = padded;
        if (role == Role::mlp_down) row.cols = padded;
        table.add(row);
    };
    const int KV = s.KV ? s.KV : s.C;
    const int Q = s.Q ? s.Q : s.C;
    add("wte", Role::token_embedding, -1, s.V, s.C);
    if (!s.llama) add("wpe", Role::position_embedding, -1, 64, s.C);
    for (int l = 0; l < s.L; ++l) {
        const std::string h = "h." + std::to_string(l) + ".";
        add(h + "norm1", Role::norm, l, 1, s.C);
        add(h + "q", Role::q, l, Q, s.C);
        add(h + "k", Role::k, l, KV, s.C, true);
        add(h + "v", Role::v, l, KV, s.C, true);
        if (!s.llama) add(h + "qkv.bias", Role::bias, l, 1, Q + 2 * KV);
        add(h + "o", Role::o, l, s.C, Q);
        add(h + "norm2", Role::norm, l, 1, s.C);
        if (s.llama) add(h + "gate", Role::mlp_gate, l, s.F, s.C);
        add(h + "up", Role::mlp_up, l, s.F, s.C, s.llama);
        add(h + "down", Role::mlp_down, l, s.C, s.F);
    }
    add("norm", Role::norm, -1, 1, s.C);
    if (s.llama) add("head", Role::head, -1, s.V, s.C);
    return table;
}

}  // namespace teon::test
