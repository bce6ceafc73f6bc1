// Instructions that the lanes of a warp execute together.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

enum class Shuffle : uint8_t { bfly, idx, up, down };
enum class Vote : uint8_t { all, any, uni, ballot };

void sync_warp(Warp&, const Instruction&, Lanes);
void shuffle(Warp&, const Instruction&, Lanes);
void elect(Warp&, const Instruction&, Lanes);        // d, p, mask
void match(Warp&, const Instruction&, Lanes);        // d[, p], a, mask
void redux(Warp&, const Instruction&, Lanes);        // d, a, mask
void active_mask(Warp&, const Instruction&, Lanes);  // d
void vote(Warp&, const Instruction&, Lanes);
void mma_bf16(Warp&, const Instruction&, Lanes);
void mma_f16(Warp&, const Instruction&, Lanes);

}  // namespace teon::gpusim
