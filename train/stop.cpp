#include "train/stop.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <thread>

#include "base/text.h"

namespace teon {

namespace {

struct HandledSignal {
    int signal;
    const char* name;
};
constexpr HandledSignal kHandled[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}};

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

// Runs only in threads that are older than StopRequest, because the others block the signals.
void forward_signal(int signal) {
    const int error = errno;
    syscall(SYS_tgkill, ::getpid(), waiting_thread.load(), signal);
    errno = error;
}

}  // namespace

struct StopRequest::State {
    enum Phase { before, running, after };
    std::atomic<Phase> phase = before;
    std::atomic<bool> prints = false;
    std::atomic<int> signal = 0;

    [[noreturn]] void wait(const sigset_t& set) {
        waiting_thread = static_cast<pid_t>(syscall(SYS_gettid));
        waiting_thread.notify_one();
        for (bool first = true;; first = false) {
            int number = 0;
            sigwait(&set, &number);
            if (!first || phase == before) end_by_signal(number);
            if (phase == after) continue;
            signal = number;
            if (!prints) continue;
            const std::string text =
                name_of_signal(number) + ": saving, then ending; a second signal ends the run at once\n";
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
    action.sa_handler = forward_signal;
    action.sa_flags = SA_RESTART;
    for (const HandledSignal& k : kHandled)
        if (sigismember(&set, k.signal)) sigaction(k.signal, &action, nullptr);
}

void StopRequest::begin(double time_limit_s, bool prints) {
    time_limit_s_ = time_limit_s;
    state_->prints = prints;
    state_->phase = State::running;
}

void StopRequest::end() { state_->phase = State::after; }

int StopRequest::signal() const { return state_->signal; }

std::string StopRequest::reason() const {
    if (const int number = signal()) return name_of_signal(number);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    if (time_limit_s_ > 0 && elapsed >= time_limit_s_) return "time limit " + duration_text(time_limit_s_);
    return "";
}

void end_by_signal(int number) {
    restore_defaults();
    std::raise(number);
    _exit(128 + number);  // default actions do not end the first process of a container
}

}  // namespace teon
