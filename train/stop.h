// Requests that end a run early: SIGTERM, SIGINT, SIGHUP and --time-limit.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

namespace teon {

// Handles these signals for the whole program. Every thread blocks them, and one waits for them, because a signal
// handler may call almost nothing and needs a stack, while oneDNN's generated code uses the stack pointer for other
// data (cpu/signals.h). Threads that a library started before main() (OpenBLAS) forward them.
//
// The first signal between begin() and end() is recorded and, if the run prints, acknowledged on standard error at
// once. A second signal ends the process by its default action, as does any signal before begin(). If the first signal
// comes after end(), it is ignored, so that a run that has saved everything does not fail while it shuts down. A signal
// that was ignored when the process began (nohup, a shell's background job) stays ignored. SIGPIPE is ignored, because
// a write to a closed pipe returns an error. Create one object per process.
class StopRequest {
public:
    using Clock = std::chrono::steady_clock;
    // Construct it before any other thread exists: threads inherit blocked signals. Child processes do not.
    StopRequest();
    // time_limit_s: seconds since the constructor; 0: no limit. prints: whether to acknowledge a signal.
    void begin(double time_limit_s, bool prints);
    void end();
    // Returns "SIGTERM" or "time limit 23h50m", or an empty string while the run is to continue. Cheap enough to call
    // between two kernels.
    std::string reason() const;
    int signal() const;  // the recorded signal, else 0

private:
    struct State;
    const std::shared_ptr<State> state_;  // shared with the thread, which lives as long as the process
    const Clock::time_point start_ = Clock::now();
    double time_limit_s_ = 0;
};

// Ends the process by the signal's default action, so that a shell ends its loop too. With an exit status of 130 it
// would not.
[[noreturn]] void end_by_signal(int signal);

}  // namespace teon
