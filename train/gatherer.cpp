#include "train/gatherer.h"

namespace teon {

Gatherer::Gatherer(ParamStore& params, const Placement& placement, Context& context)
    : params_(params), context_(context) {
    if (!params.has_weight_windows()) return;
    for (const std::vector<int>& rows : rows_by_window(params.table())) layers_.push_back(placement.parts_of(rows));
    params.on_use = [this](int layer, int next) { use(layer, next); };
}

void Gatherer::invalidate() {
    for (Window& w : windows_) w.layer = kNone;
}

// Queues the next layer's exchange after the work on the stream, which ends with reads of that layer's window, and
// before this layer's computation.
void Gatherer::use(int layer, int next) {
    fetch(layer);
    window(layer).filled.make_wait(context_.stream);
    if (next >= 0) fetch(next);
}

void Gatherer::fetch(int layer) {
    Window& w = window(layer);
    if (w.layer == layer) return;
    w.layer = layer;
    const std::vector<Part>& parts = layers_.at(static_cast<size_t>(int64_t{layer} + 1));
    const ParamBuffer& from = params_.weights();
    const ParamBuffer& to = params_.read_weights();
    const size_t bytes = size_of(params_.dtype());
    for (const Part& part : parts) {
        if (part.root != context_.comm->rank()) continue;
        for (const ParamLayout::Piece& p : to.layout().pieces(part))
            copy_bytes(to.data<std::byte>() + p.at * bytes,
                       from.data<std::byte>() + from.layout().at(p.element) * bytes, p.size * bytes, context_.stream);
    }
    context_.comm->broadcast(to.data<void>(), params_.dtype(), to.layout().in_buffer(parts), context_.stream);
    context_.comm->record(w.filled);
}

}  // namespace teon
