// What ranks agree on, by text and by weights. All of it is called on every rank and waits for the device.
#pragma once

#include <functional>
#include <string>

#include "model/param_store.h"
#include "runtime/context.h"

namespace teon {

// Rank 0's text.
std::string broadcast_from_rank_0(const std::string& text, Context& context);

// Runs `work` on rank 0, in a thread of its own, while the ranks meet every second, so that no wait for it reaches
// --comm-timeout. What it throws is thrown on rank 0.
void on_rank_0(Context& context, const std::function<void()>& work);

// Throw Error naming the first rank that differs from rank 0: in a bit of the working weights, if each rank has all of
// them; in a text (`what` names it).
void check_same_on_all_ranks(const ParamStore& params, Context& context);
void check_equal_on_all_ranks(const std::string& text, const char* what, Context& context);

}  // namespace teon
