#include "train/stop.h"

#include <unistd.h>
#include <csignal>

#include "train/log.h"

namespace teon {

namespace {

volatile std::sig_atomic_t received = 0;  // a signal handler can reach nothing else
struct sigaction previous_term, previous_int;

void on_signal(int signal) {
    if (received != 0) _exit(128 + signal);
    received = signal;
}

}  // namespace

StopRequest::StopRequest(double time_limit_s) : time_limit_s_(time_limit_s) {
    received = 0;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, &previous_term);
    sigaction(SIGINT, &action, &previous_int);
}

StopRequest::~StopRequest() {
    sigaction(SIGTERM, &previous_term, nullptr);
    sigaction(SIGINT, &previous_int, nullptr);
}

std::string StopRequest::reason() const {
    if (received != 0) return received == SIGTERM ? "SIGTERM" : "SIGINT";
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (time_limit_s_ > 0 && elapsed >= time_limit_s_) return "time limit " + duration_text(time_limit_s_);
    return "";
}

}  // namespace teon
