#include "files/line_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "base/check.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

constexpr double kLong = 60;  // seconds; no test waits for it

std::vector<std::vector<std::string>> shell(const std::string& script) { return {{"/bin/sh", "-c", script}}; }

int open_descriptors() {
    int count = 0;
    DIR* folder = ::opendir("/proc/self/fd");
    while (::readdir(folder)) ++count;
    ::closedir(folder);
    return count;
}

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

}  // namespace

TEST_CASE("files/line_server: each line is answered, long ones and several in one piece too") {
    LineServer echo({{"/nonexistent/program"}, {"cat"}}, kLong);
    REQUIRE(echo.ask("one") == "one");
    REQUIRE(echo.ask("") == "");
    const std::string long_line(3'000'000, 'x');
    LineServer first_waits(shell("read line; echo \"${#line}\"; printf 'a\\nb\\n'; read line; exec cat"), kLong);
    REQUIRE(first_waits.ask(long_line) == "3000000");
    REQUIRE(first_waits.ask("next") == "a");
    REQUIRE(first_waits.ask("more") == "b");
    REQUIRE(first_waits.ask("last") == "more");
}

TEST_CASE("files/line_server: a process that cannot start, ends or blocks is an error, and none remains") {
    const int before = open_descriptors();
    REQUIRE(contains(error_of([] {
                         LineServer s({{"/nonexistent/program", "word"}}, kLong);
                     }),
                     "/nonexistent/program word: cannot be started: No such file"));
    {
        LineServer ends(shell("exit 3"), kLong);
        REQUIRE(contains(error_of([&] { ends.ask("x"); }), "ended without an answer"));
        REQUIRE(contains(error_of([&] { ends.ask(std::string(1 << 20, 'x')); }), "ended without an answer"));
        LineServer ends_in_line(shell("read line; printf half"), kLong);
        REQUIRE(contains(error_of([&] { ends_in_line.ask("x"); }), "ended without an answer"));
        LineServer silent(shell("sleep 1000"), 0.2);
        REQUIRE(contains(error_of([&] { silent.ask("x"); }), "does not answer within 0.2 s"));
        LineServer reads_nothing(shell("sleep 1000"), 0.2);
        REQUIRE(contains(error_of([&] { reads_nothing.ask(std::string(10 << 20, 'x')); }), "does not answer"));
    }
    REQUIRE(open_descriptors() == before);
    REQUIRE_FALSE(has_children());
}

TEST_CASE("files/line_server: the process has the default signals of a program, which a run blocks or ignores") {
    sigset_t blocked;
    sigset_t previous;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, &previous);
    const auto ignored = std::signal(SIGPIPE, SIG_IGN);
    std::string masks;
    {
        // grep's own, which are the shell's: while a shell starts a pipeline's next program, libc blocks its signals.
        LineServer server(shell("read line; grep -E '^Sig(Blk|Ign)' /proc/self/status | tr '\\n' ' '; echo"), kLong);
        masks = server.ask("x");
    }
    std::signal(SIGPIPE, ignored);
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    INFO(masks);
    REQUIRE(contains(masks, "SigBlk:\t0000000000000000"));
    const auto ignored_signals = std::stoull(masks.substr(masks.find("SigIgn:\t") + 8), nullptr, 16);
    REQUIRE((ignored_signals >> (SIGPIPE - 1) & 1) == 0);
}
