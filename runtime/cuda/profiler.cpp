#include "runtime/cuda/profiler.h"

#include <algorithm>
#include <map>

namespace teon {

Profiler::Profiler(Stream& stream) : stream_(stream) {
    CHECK(!stream.profiler(), "the stream has a profiler already");
    begin_.record(stream);
    detail::mark_profiled_range(true);
    stream.set_profiler(this);
}

Profiler::~Profiler() {
    stream_.set_profiler(nullptr);
    detail::mark_profiled_range(false);
}

Profile Profiler::result() {
    Event end;
    end.record(stream_);
    stream_.synchronize();
    Profile profile{Event::milliseconds(begin_, end), {}};
    std::map<std::string, Profile::Row> rows;
    for (const Span& span : spans_) {
        Profile::Row& row = rows[span.name];
        row.name = span.name;
        row.calls += 1;
        row.ms += Event::milliseconds(span.begin, span.end);
        row.flops += span.flops;
    }
    for (auto& [name, row] : rows) profile.rows.push_back(std::move(row));
    std::sort(profile.rows.begin(), profile.rows.end(), [](auto& a, auto& b) { return a.ms > b.ms; });
    return profile;
}

void ProfileScope::begin(Profiler& profiler, const std::string& name, double flops) {
    profiler.spans_.push_back({name, flops, {}, {}});
    profiler.spans_.back().begin.record(profiler.stream_);
    profiler.inside_ = true;
    profiler_ = &profiler;
}

// Recording fails only if the device has failed. The call that found this has thrown, or the next call will.
void ProfileScope::end() noexcept {
    profiler_->inside_ = false;
    try {
        profiler_->spans_.back().end.record(profiler_->stream_);
    } catch (const Error&) {}
}

}  // namespace teon
