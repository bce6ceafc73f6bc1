// Moves, selections and special registers.
#pragma once

#include "gpusim/warp.h"

namespace teon::gpusim {

void to_window(Warp&, const Instruction&, Lanes);  // cvta: adds `offset` to a register of `width` bytes
void split(Warp&, const Instruction&, Lanes);
void join(Warp&, const Instruction&, Lanes);
int special_register(std::string_view name);          // its number, or kNone
void move_special(Warp&, const Instruction&, Lanes);  // variant: the number
void wait_for_grid(Warp&, const Instruction&, Lanes);
void nothing(Warp&, const Instruction&, Lanes);

void add_move_rows(Table& table);

}  // namespace teon::gpusim
