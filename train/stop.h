// What may end a run early: SIGTERM or SIGINT, and --time-limit.
#pragma once

#include <chrono>
#include <string>

namespace teon {

// While one lives, the first SIGTERM or SIGINT is noted and the second ends the process at once. One at a time.
class StopRequest {
public:
    explicit StopRequest(double time_limit_s);  // counted from now; 0: none
    ~StopRequest();
    StopRequest(const StopRequest&) = delete;
    // "SIGTERM", "time limit 23h50m"; empty while the run is to go on.
    std::string reason() const;

private:
    double time_limit_s_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace teon
