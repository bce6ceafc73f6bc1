// Requests that end a run early: signals, --time-limit, and the end of a Slurm job.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace teon {

// Handles SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU for the whole program: what schedulers send before they
// kill, often twice or one after the other. Every thread blocks them, and one waits for them, because a signal handler
// may call almost nothing and needs a stack, while oneDNN's generated code uses the stack pointer for other data
// (cpu/signals.h). Threads that a library started before main() (OpenBLAS) forward them.
//
// All of them ask for one thing: to save and to end. The first between begin() and end() is recorded and, if the run
// prints, acknowledged on standard error at once; further ones change nothing. Two exceptions end the process by the
// signal's default action: any signal before begin(), when there is nothing to save, and the second Ctrl-C in a
// terminal. A signal after end() is ignored, so that a run that has saved everything does not fail while it shuts down.
// A signal that was ignored when the process began (nohup, a shell's background job) stays ignored. SIGPIPE is ignored,
// because a write to a closed pipe returns an error. Create one object per process.
class StopRequest {
public:
    using Clock = std::chrono::steady_clock;
    // Construct it before any other thread exists: threads inherit blocked signals. Child processes do not.
    StopRequest();
    // time_limit_s: seconds since the constructor; 0: until shortly before the Slurm job ends (SLURM_JOB_END_TIME), if
    // there is one. prints: whether to acknowledge a signal.
    void begin(double time_limit_s, bool prints);
    void end();
    // How long a save takes: the run ends earlier before the end of its job.
    void expect_save(double seconds) { save_s_ = seconds; }
    // Returns "SIGTERM" or "time limit 23h50m", or an empty string while the run is to continue. Cheap enough to call
    // between two kernels.
    std::string reason() const;
    int signal() const;  // the recorded signal, else 0
    // Returns how long ago the reason arose, and the remaining time of the job if it is known: "0.4 s after SIGTERM;
    // 57s of the job were left". Call it if there is a reason.
    std::string delay() const;
    // Returns the time until the end of the Slurm job, in seconds; nullopt: there is none, or it is over.
    std::optional<double> job_s() const;

private:
    std::optional<Clock::time_point> deadline() const;

    struct State;
    const std::shared_ptr<State> state_;  // shared with the thread, which lives as long as the process
    const Clock::time_point start_ = Clock::now();
    double time_limit_s_ = 0;
    std::optional<Clock::time_point> job_end_;
    std::atomic<double> save_s_ = 0;
};

// Ends the process by the signal's default action, so that a shell ends its loop too. With an exit status of 130 it
// would not.
[[noreturn]] void end_by_signal(int signal);

}  // namespace teon
