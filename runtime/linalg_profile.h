// Time and FLOPs of gemms, for both backends.
#pragma once

#include <optional>

#include "runtime/linalg.h"

namespace teon::detail {

class GemmProfiler {
public:
    void set(bool on) {
        total_ = {};
        if (on)
            events_.emplace();
        else
            events_.reset();
    }
    const Linalg::Profile& total() const { return total_; }

    template <typename F>
    void measure(const Gemm& g, const Stream& stream, F run) {
        if (!events_) return run();
        events_->begin.record(stream);
        run();
        events_->end.record(stream);
        events_->end.synchronize();
        total_.calls += 1;
        total_.flops += 2.0 * g.M * g.N * g.K * g.batch_inner * g.batch_outer;
        total_.ms += Event::milliseconds(events_->begin, events_->end);
    }

private:
    struct Events {
        Event begin, end;
    };
    std::optional<Events> events_;
    Linalg::Profile total_;
};

}  // namespace teon::detail
