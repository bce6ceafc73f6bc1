// What may end a run early: SIGTERM, SIGINT or SIGHUP, and --time-limit.
#pragma once

#include <chrono>
#include <string>

namespace teon {

// While one lives, the first of these signals is noted, and acknowledged on standard error at once if `speaks`; the
// second ends the process at once. A signal that was ignored when the process began (nohup, a shell's background job)
// stays ignored. Writing to a closed pipe is an error of that write (SIGPIPE is ignored). One at a time. After the last
// one's end all that stays so until the process ends: a run that has saved everything is not made a failed one by a
// signal that comes while it takes itself down.
class StopRequest {
public:
    using Clock = std::chrono::steady_clock;
    // The time limit in seconds counts from `start`; 0: none.
    StopRequest(double time_limit_s, Clock::time_point start, bool speaks);
    ~StopRequest();
    StopRequest(const StopRequest&) = delete;
    // "SIGTERM", "time limit 23h50m"; empty while the run is to go on. Cheap enough to ask between two kernels.
    std::string reason() const;

private:
    double time_limit_s_;
    Clock::time_point start_;
};

}  // namespace teon
