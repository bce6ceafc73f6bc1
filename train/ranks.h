// Agreement between ranks on texts and weights. Call each function on every rank. Each waits for the device.
#pragma once

#include <functional>
#include <string>

#include "model/param_store.h"
#include "runtime/context.h"

namespace teon {

// Returns rank 0's text on every rank.
std::string broadcast_from_rank_0(const std::string& text, Context& context);

// Runs `work` on rank 0; if there are other ranks, in its own thread, while the ranks communicate every second, so that
// no wait reaches --comm-timeout. Rank 0 rethrows what `work` throws.
void on_rank_0(Context& context, const std::function<void()>& work);

// Throws Error naming the first rank whose working weights differ from rank 0's in any bit, and the parameter. Checks
// nothing if weights are divided between ranks.
void check_same_on_all_ranks(const ParamStore& params, Context& context);
// Throws Error naming the first rank whose text differs from rank 0's. what: the text's name in the message.
void check_equal_on_all_ranks(const std::string& text, const char* what, Context& context);

}  // namespace teon
