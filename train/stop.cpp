#include "train/stop.h"

#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "train/log.h"

namespace teon {

namespace {

struct Known {
    int signal;
    const char *name, *acknowledgement;
};
constexpr Known known[] = {{SIGTERM, "SIGTERM", "SIGTERM: saving, then ending; a second signal ends the run at once\n"},
                           {SIGINT, "SIGINT", "SIGINT: saving, then ending; a second signal ends the run at once\n"},
                           {SIGHUP, "SIGHUP", "SIGHUP: saving, then ending; a second signal ends the run at once\n"}};
volatile std::sig_atomic_t received = 0, acknowledges = 0;  // a signal handler can reach nothing else

const Known* find(int signal) {
    for (const Known& k : known)
        if (k.signal == signal) return &k;
    return nullptr;
}

void on_signal(int signal) {
    if (received != 0) _exit(128 + signal);
    received = signal;
    if (const Known* k = find(signal); k && acknowledges) {
        const int error = errno;
        [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, k->acknowledgement, std::strlen(k->acknowledgement));
        errno = error;
    }
}

}  // namespace

StopRequest::StopRequest(double time_limit_s, Clock::time_point start, bool speaks)
    : time_limit_s_(time_limit_s), start_(start) {
    received = 0;
    acknowledges = speaks;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (const Known& k : known) {
        struct sigaction before;
        sigaction(k.signal, nullptr, &before);
        if (before.sa_handler != SIG_IGN) sigaction(k.signal, &action, nullptr);
    }
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
}

StopRequest::~StopRequest() { acknowledges = 0; }

std::string StopRequest::reason() const {
    if (const Known* k = find(received)) return k->name;
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    if (time_limit_s_ > 0 && elapsed >= time_limit_s_) return "time limit " + duration_text(time_limit_s_);
    return "";
}

}  // namespace teon
