#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "test/support/catch.h"
#include "test/support/outside_the_stack.h"
#include "test/support/skip.h"
#include "train/stop.h"

namespace teon {
namespace {

constexpr int kStopping[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
constexpr const char* kNames[] = {"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"};

// Runs the body in a child process. Returns its exit status, or minus the number of the signal that ended it.
int end_of(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
        for (const int number : kStopping) std::signal(number, SIG_DFL);
        std::signal(SIGPIPE, SIG_DFL);
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
    for (int i = 0; i < 1000; ++i) {
        const int end = end_of([&] {
            StopRequest stop;
            stop.begin(0, false);
            if (!call_outside(buffer.data(), SYS_kill, getpid(), kStopping[i % 6], 0)) return 1;
            wait_for_reason(stop);
            return stop.reason() == kNames[i % 6] && stop.signal() == kStopping[i % 6] ? 0 : 2;
        });
        REQUIRE(end == 0);
    }
}

TEST_CASE("train/stop: a signal before the run ends the process at once, one after the run does nothing") {
    REQUIRE(end_of([] {
                StopRequest stop;
                kill(getpid(), SIGTERM);
                for (;;) pause();
                return 0;
            }) == -SIGTERM);
    REQUIRE(end_of([] {
                StopRequest stop;
                stop.begin(0, false);
                stop.end();
                kill(getpid(), SIGTERM);
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                return stop.signal() + 3;
            }) == 3);
}

TEST_CASE("train/stop: a second signal of a scheduler changes nothing, whichever it is") {
    for (size_t first = 0; first < std::size(kStopping); ++first)
        for (const int second : kStopping)
            REQUIRE(end_of([&] {
                        StopRequest stop;
                        stop.begin(0, false);
                        kill(getpid(), kStopping[first]);
                        wait_for_reason(stop);
                        for (int i = 0; i < 3; ++i) {
                            kill(getpid(), second);
                            std::this_thread::sleep_for(std::chrono::milliseconds(1));
                        }
                        return stop.reason() == kNames[first] ? 0 : 1;
                    }) == 0);
}

// Runs the body in a child process whose terminal sends Ctrl-C when the body calls its argument.
int end_in_terminal(const std::function<int(const std::function<void()>&)>& body) {
    return end_of([&] {
        const Descriptor keys(posix_openpt(O_RDWR | O_NOCTTY));
        grantpt(keys);
        unlockpt(keys);
        setsid();
        const Descriptor screen(::open(ptsname(keys), O_RDWR));
        if (ioctl(screen, TIOCSCTTY, 0) != 0) return 99;
        return body([&] { [[maybe_unused]] const ssize_t n = ::write(keys, "\3", 1); });
    });
}

TEST_CASE("train/stop: the second Ctrl-C in a terminal ends the process at once, also if an older thread receives it") {
    for (const bool older : {false, true})
        REQUIRE(end_in_terminal([&](const auto& press) {
                    if (older)
                        std::thread([] {
                            for (;;) pause();
                        }).detach();
                    StopRequest stop;
                    stop.begin(0, false);
                    press();
                    wait_for_reason(stop);
                    kill(getpid(), SIGINT);  // of a launcher, which the same Ctrl-C has reached
                    std::this_thread::sleep_for(std::chrono::milliseconds(50));
                    if (stop.signal() != SIGINT) return 1;
                    press();
                    std::this_thread::sleep_for(std::chrono::minutes(5));
                    return 2;
                }) == -SIGINT);
}

TEST_CASE("train/stop: a run ends a minute and two saves before its Slurm job, unless it has a time limit") {
    const auto end_in = [](int seconds) {
        setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + seconds).c_str(), 1);
    };
    REQUIRE(end_of([&] {
                StopRequest stop;
                end_in(1000);
                stop.begin(0, false);
                if (!stop.reason().empty()) return 1;
                stop.expect_save(400);
                if (!stop.reason().empty()) return 2;
                stop.expect_save(480);
                return stop.reason() == "the end of the Slurm job" && stop.signal() == 0 ? 0 : 3;
            }) == 0);
    REQUIRE(end_of([&] {
                StopRequest stop;
                end_in(3000);
                stop.begin(36000, false);
                return stop.reason().empty() && *stop.job_s() > 2000 && *stop.job_s() <= 3000 ? 0 : 1;
            }) == 0);
    REQUIRE(end_of([&] {
                StopRequest stop;
                end_in(-5);  // the variable of a job that is over
                stop.begin(0, false);
                return stop.reason().empty() && !stop.job_s() ? 0 : 1;
            }) == 0);
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
                return end_of([] { return std::any_of(std::begin(kStopping), std::end(kStopping), is_blocked); });
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
