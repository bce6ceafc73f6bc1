#include "train/stop.h"

#include <fmt/core.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <thread>

#include "base/text.h"

namespace teon {

namespace {

struct HandledSignal {
    int signal;
    const char* name;
};
constexpr HandledSignal kHandled[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},   {SIGHUP, "SIGHUP"},
                                      {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}};

// A run ends this long before its Slurm job, and two saves earlier: a step and an evaluation end within seconds, and a
// save may take longer while all runs of a cluster save.
constexpr double kBeforeJobEnd_s = 60;

std::string name_of_signal(int signal) {
    for (const HandledSignal& k : kHandled)
        if (k.signal == signal) return k.name;
    return "";
}

// The handled signals that the process does not ignore. The others must not be blocked: a blocked signal stays pending
// even if it is ignored.
sigset_t wanted_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const HandledSignal& k : kHandled) {
        struct sigaction now;
        sigaction(k.signal, nullptr, &now);
        if (now.sa_handler != SIG_IGN) sigaddset(&set, k.signal);
    }
    return set;
}

// Gives the handled signals their default actions: before the process ends by one of them, and in child processes.
void restore_defaults() {
    const sigset_t set = wanted_signals();
    for (const HandledSignal& k : kHandled)
        if (sigismember(&set, k.signal)) std::signal(k.signal, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::atomic<pid_t> waiting_thread = 0;  // global, because a signal handler has no arguments for it

constexpr double kLongest_s = 1e9;

StopRequest::Clock::duration duration_of(double seconds) {
    return std::chrono::duration_cast<StopRequest::Clock::duration>(std::chrono::duration<double>(seconds));
}

// The kernel sends what a terminal's keys ask for. A thread may pass a signal on with negative codes only.
bool from_terminal(const siginfo_t& info) { return info.si_code == SI_KERNEL || info.si_code == -SI_KERNEL; }

// Runs only in threads that are older than StopRequest, because the others block the signals.
void forward_signal(int signal, siginfo_t* info, void*) {
    const int error = errno;
    siginfo_t copy = *info;
    copy.si_code = from_terminal(*info) ? -SI_KERNEL : SI_QUEUE;
    syscall(SYS_rt_tgsigqueueinfo, ::getpid(), waiting_thread.load(), signal, &copy);
    errno = error;
}

// Returns when the Slurm job ends in which this process runs. nullopt: there is none, or the variable is of an earlier
// job.
std::optional<StopRequest::Clock::time_point> slurm_job_end() {
    const char* const text = std::getenv("SLURM_JOB_END_TIME");
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    const double seconds = text ? std::strtod(text, nullptr) - now.count() : 0;
    if (!(seconds > 0 && seconds < kLongest_s)) return std::nullopt;
    return StopRequest::Clock::now() + duration_of(seconds);
}

}  // namespace

struct StopRequest::State {
    enum Phase { before, running, after };
    std::atomic<Phase> phase = before;
    std::atomic<bool> prints = false;
    std::atomic<Clock::time_point> signalled_at = Clock::time_point();
    std::atomic<int> signal = 0;  // set after signalled_at

    [[noreturn]] void wait(const sigset_t& set) {
        waiting_thread = static_cast<pid_t>(syscall(SYS_gettid));
        waiting_thread.notify_one();
        for (int interrupts = 0;;) {
            siginfo_t info;
            const int number = sigwaitinfo(&set, &info);
            if (number < 0) continue;  // EINTR
            if (number == SIGINT && from_terminal(info)) ++interrupts;
            if (phase == before || interrupts == 2) end_by_signal(number);
            if (phase == after || signal != 0) continue;
            signalled_at = Clock::now();
            signal = number;
            if (!prints) continue;
            const std::string text = name_of_signal(number) + ": saving, then ending" +
                                     (interrupts > 0 ? "; Ctrl-C again ends the run at once\n" : "\n");
            [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
        }
    }
};

StopRequest::StopRequest() : state_(std::make_shared<State>()) {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, nullptr);
    const sigset_t set = wanted_signals();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    pthread_atfork(nullptr, nullptr, restore_defaults);
    std::thread([state = state_, set] { state->wait(set); }).detach();
    waiting_thread.wait(0);
    struct sigaction action = {};
    action.sa_sigaction = forward_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    for (const HandledSignal& k : kHandled)
        if (sigismember(&set, k.signal)) sigaction(k.signal, &action, nullptr);
}

void StopRequest::begin(double time_limit_s, bool prints) {
    time_limit_s_ = time_limit_s;
    job_end_ = slurm_job_end();
    state_->prints = prints;
    state_->phase = State::running;
}

void StopRequest::end() { state_->phase = State::after; }

int StopRequest::signal() const { return state_->signal; }

std::optional<StopRequest::Clock::time_point> StopRequest::deadline() const {
    if (time_limit_s_ > 0) return start_ + duration_of(std::min(time_limit_s_, kLongest_s));
    if (job_end_) return *job_end_ - duration_of(kBeforeJobEnd_s + 2 * save_s_);
    return std::nullopt;
}

std::string StopRequest::reason() const {
    if (const int number = signal()) return name_of_signal(number);
    if (const auto end = deadline(); !end || Clock::now() < *end) return "";
    return time_limit_s_ > 0 ? "time limit " + duration_text(time_limit_s_) : "the end of the Slurm job";
}

std::string StopRequest::delay() const {
    const Clock::time_point since = signal() ? state_->signalled_at.load() : deadline().value_or(Clock::now());
    const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
    const std::optional<double> remaining = job_s();
    return fmt::format("{:.1f} s after {}{}", seconds, reason(),
                       remaining ? "; " + duration_text(*remaining) + " of the job were left" : "");
}

std::optional<double> StopRequest::job_s() const {
    if (!job_end_) return std::nullopt;
    const double seconds = std::chrono::duration<double>(*job_end_ - Clock::now()).count();
    return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

void end_by_signal(int number) {
    restore_defaults();
    std::raise(number);
    _exit(128 + number);  // default actions do not end the first process of a container
}

}  // namespace teon
