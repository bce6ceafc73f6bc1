// Sharding::all: brings the working weights of a layer from their owners to its window, a layer ahead of their use.
#pragma once

#include <array>
#include <vector>

#include "model/param_store.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class Gatherer {
public:
    // If params has weight windows, its on_use is this object's from here on. All outlive this.
    Gatherer(ParamStore& params, const Ownership& ownership, Context& context);
    // The weights have been updated: none in a window is valid.
    void invalidate();

private:
    void use(int layer, int next);
    void fetch(int layer);

    // Of even layers, of odd layers, of everything else.
    struct Window {
        int layer = kNone;  // that it holds or is being filled with
        Event filled;
    };
    static constexpr int kNone = -2;
    Window& window(int layer) { return windows_[static_cast<size_t>(layer < 0 ? 2 : layer % 2)]; }

    ParamStore& params_;
    Context& context_;
    std::vector<std::vector<Part>> layers_;  // parts of layer l at l + 1
    std::array<Window, 3> windows_;
};

}  // namespace teon
