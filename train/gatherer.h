// Sharding::all: copies the working weights of a layer from their owners to its window, one layer ahead of their use.
#pragma once

#include <array>
#include <vector>

#include "model/param_store.h"
#include "optim/placement.h"
#include "runtime/context.h"

namespace teon {

class Gatherer {
public:
    // If params has weight windows, sets its on_use. The arguments must outlive this object.
    Gatherer(ParamStore& params, const Placement& placement, Context& context);
    // Call it when the weights are updated: the windows' content is then out of date.
    void invalidate();

private:
    void use(int layer, int next);
    void fetch(int layer);

    // There are three: for even layers, for odd layers and for all other parameters.
    struct Window {
        int layer = kNone;  // that it holds or receives
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
