// Moves, selections and special registers.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

enum class Special : uint8_t {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    warpid,
    lanemask_lt,
    lanemask_le,
    lanemask_gt,
    lanemask_ge,
    lanemask_eq,
    dynamic_smem_size,
    cluster_ctaid_x,
    cluster_ctaid_y,
    cluster_ctaid_z,
    cluster_nctaid_x,
    cluster_nctaid_y,
    cluster_nctaid_z,
    cluster_ctarank,
    cluster_nctarank,
    clusterid_x,
    clusterid_y,
    clusterid_z,
    nclusterid_x,
    nclusterid_y,
    nclusterid_z,
    smid,
    nsmid,
    clock,
    clock_high,
    grid_barrier_high,
    grid_barrier_low,
    none
};

void to_window(Warp&, const Instruction&, Lanes);  // cvta: adds `offset` to a register of `width` bytes
void split(Warp&, const Instruction&, Lanes);
void join(Warp&, const Instruction&, Lanes);
void move_special(Warp&, const Instruction&, Lanes);
void wait_for_grid(Warp&, const Instruction&, Lanes);
void nothing(Warp&, const Instruction&, Lanes);

void add_move_rows(Table& table);

}  // namespace teon::gpusim
