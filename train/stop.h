// What may end a run early: SIGTERM, SIGINT or SIGHUP, and --time-limit.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

namespace teon {

// Takes these signals for the whole program. They are blocked in every thread, and one waits for them. So no handler does
// the work: a handler may call almost nothing, and needs a stack, but oneDNN's generated code keeps other things in the
// stack pointer (cpu/signals.h). Threads that a library has started before main() (OpenBLAS) pass them on.
//
// The first signal between begin() and end() is noted, and acknowledged on standard error at once if the run speaks; the
// second ends the process at once, and so does any before begin(), by its default action. After end() the first one does
// nothing: a run that has saved everything is not made a failed one while it takes itself down. A signal that was ignored
// when the process began (nohup, a shell's background job) stays ignored. Writing to a closed pipe is an error of that
// write (SIGPIPE is ignored). One per process.
class StopRequest {
public:
    using Clock = std::chrono::steady_clock;
    // Called before any other thread exists, because threads inherit what is blocked; child processes do not.
    StopRequest();
    // The time limit in seconds counts from the constructor; 0: none.
    void begin(double time_limit_s, bool speaks);
    void end();
    // "SIGTERM", "time limit 23h50m"; empty while the run is to go on. Cheap enough to ask between two kernels.
    std::string reason() const;
    int signal() const;  // the one that was noted, else 0

private:
    struct Noted;
    const std::shared_ptr<Noted> noted_;  // the thread's too, which lasts as long as the process
    const Clock::time_point start_ = Clock::now();
    double time_limit_s_ = 0;
};

// Ends the process as this signal does where nothing takes it: a shell then stops its loop too, which it does not for an
// exit status of 130.
[[noreturn]] void end_by_signal(int signal);

}  // namespace teon
