#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/outside_the_stack.h"
#include "test/support/skip.h"
#include "train/stop.h"

namespace teon {
namespace {

// Runs the body in a child process. Returns its exit status, or minus the number of the signal that ended it.
int end_of(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
        for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) std::signal(number, SIG_DFL);
        _exit(body());
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void wait_for_reason(const StopRequest& stop) {
    while (stop.reason().empty()) sched_yield();
}

bool is_blocked(int number) {
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, nullptr, &set);
    return sigismember(&set, number) != 0;
}

TEST_CASE("train/stop: of 1,000 signals that find the stack pointer outside of the stack none writes there") {
    if (!HAS_OUTSIDE_CALLS) SKIP_TEST("needs an x86-64 CPU");
    std::vector<unsigned char> buffer(kOutsideBytes);
    const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    const char* names[] = {"SIGTERM", "SIGINT", "SIGHUP"};
    for (int i = 0; i < 1000; ++i) {
        const int end = end_of([&] {
            StopRequest stop;
            stop.begin(0, false);
            if (!call_outside(buffer.data(), SYS_kill, getpid(), numbers[i % 3], 0)) return 1;
            wait_for_reason(stop);
            return stop.reason() == names[i % 3] && stop.signal() == numbers[i % 3] ? 0 : 2;
        });
        REQUIRE(end == 0);
    }
}

TEST_CASE(
    "train/stop: a signal before the run and a second one end the process at once, one after the run does nothing") {
    REQUIRE(end_of([] {
                StopRequest stop;
                kill(getpid(), SIGTERM);
                for (;;) pause();
                return 0;
            }) == -SIGTERM);
    REQUIRE(end_of([] {
                StopRequest stop;
                stop.begin(0, false);
                kill(getpid(), SIGTERM);
                wait_for_reason(stop);
                kill(getpid(), SIGINT);
                for (;;) pause();
                return 0;
            }) == -SIGINT);
    REQUIRE(end_of([] {
                StopRequest stop;
                stop.begin(0, false);
                stop.end();
                kill(getpid(), SIGTERM);
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                return stop.signal() + 3;
            }) == 3);
}

TEST_CASE("train/stop: an ignored signal stays ignored") {
    REQUIRE(end_of([] {
                std::signal(SIGHUP, SIG_IGN);
                StopRequest stop;
                kill(getpid(), SIGHUP);
                return is_blocked(SIGHUP) ? 1 : 0;
            }) == 0);
}

TEST_CASE("train/stop: a thread that is older passes signals on") {
    REQUIRE(end_of([] {
                std::thread([] {
                    for (;;) pause();
                }).detach();
                StopRequest stop;
                stop.begin(0, false);
                kill(getpid(), SIGTERM);
                wait_for_reason(stop);
                return stop.reason() == "SIGTERM" ? 0 : 1;
            }) == 0);
}

TEST_CASE("train/stop: threads begin with the signals blocked, child processes do not") {
    REQUIRE(end_of([] {
                StopRequest stop;
                bool in_thread = false;
                std::thread([&] { in_thread = is_blocked(SIGTERM); }).join();
                if (!in_thread) return 1;
                return end_of([] { return is_blocked(SIGTERM) || is_blocked(SIGINT) || is_blocked(SIGHUP) ? 1 : 0; });
            }) == 0);
}

TEST_CASE("train/stop: the time limit is a reason, and no signal") {
    REQUIRE(end_of([] {
                StopRequest stop;
                if (!stop.reason().empty()) return 1;
                stop.begin(1e-9, false);
                return stop.reason() == "time limit 0s" && stop.signal() == 0 ? 0 : 2;
            }) == 0);
}

}  // namespace
}  // namespace teon
