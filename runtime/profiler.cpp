#include "runtime/profiler.h"

#include <algorithm>
#include <deque>
#include <map>

namespace teon {

namespace {

struct Span {
    std::string name;
    double flops;
    Event begin, end;
};

struct Recording {
    Event begin, end;
    std::deque<Span> spans;
    bool inside = false;  // of a scope
};
std::optional<Recording> recording;

}  // namespace

namespace detail {

bool profiling = false;

void ProfileScope::begin(const Stream& stream, const std::string& name, double flops) {
    if (recording->inside) return;
    recording->inside = true;
    recording->spans.push_back({name, flops, {}, {}});
    recording->spans.back().begin.record(stream);
    stream_ = &stream;
}

void ProfileScope::end() {
    if (!recording) return;  // stopped in between
    recording->spans.back().end.record(*stream_);
    recording->inside = false;
}

}  // namespace detail

void start_profile(const Stream& stream) {
    CHECK(!recording, "start_profile: a profile is being taken already");
    recording.emplace();
    detail::mark_profiled_range(true);
    recording->begin.record(stream);
    detail::profiling = true;
}

Profile stop_profile(const Stream& stream) {
    CHECK(recording, "stop_profile: no profile was started");
    recording->end.record(stream);
    stream.synchronize();
    detail::mark_profiled_range(false);
    detail::profiling = false;
    Profile profile{Event::milliseconds(recording->begin, recording->end), {}};
    std::map<std::string, Profile::Row> rows;
    for (const Span& span : recording->spans) {
        Profile::Row& row = rows[span.name];
        row.name = span.name;
        row.calls += 1;
        row.ms += Event::milliseconds(span.begin, span.end);
        row.flops += span.flops;
    }
    recording.reset();
    for (auto& [name, row] : rows) profile.rows.push_back(std::move(row));
    std::sort(profile.rows.begin(), profile.rows.end(), [](auto& a, auto& b) { return a.ms > b.ms; });
    return profile;
}

}  // namespace teon
