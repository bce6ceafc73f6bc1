#include "files/line_server.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/check.h"
#include "base/text.h"

extern char** environ;

namespace teon {

namespace {

// How the child process differs from this one: standard streams, and signals, which a training run blocks or ignores.
class SpawnSettings {
public:
    explicit SpawnSettings(int socket) {
        sigset_t none;
        sigset_t pipe;
        sigemptyset(&none);
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setsigdefault(&attributes, &pipe);
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_adddup2(&files, socket, STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&files, socket, STDOUT_FILENO);
        posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    }
    ~SpawnSettings() {
        posix_spawn_file_actions_destroy(&files);
        posix_spawnattr_destroy(&attributes);
    }
    SpawnSettings(SpawnSettings&&) = delete;

    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
};

}  // namespace

LineServer::LineServer(const std::vector<std::vector<std::string>>& commands, double patience_s)
    : patience_s_(patience_s) {
    int error = 0;
    for (const std::vector<std::string>& command : commands) {
        name_ = joined(command, " ");
        error = start(command);
        if (error == 0) return;
    }
    throw Error(fmt::format("{}: cannot be started: {}", name_, std::strerror(error)));
}

// posix_spawn(), because fork() would copy the tables of a large process and run the handlers of its libraries.
int LineServer::start(const std::vector<std::string>& command) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return errno;
    Descriptor ours(ends[0]);
    const Descriptor theirs(ends[1]);
    ::fcntl(ours, F_SETFL, O_NONBLOCK);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const SpawnSettings settings(theirs);
    const int error = ::posix_spawnp(&process_, words[0], &settings.files, &settings.attributes, words.data(), environ);
    if (error == 0) socket_ = std::move(ours);
    return error;
}

// The process has nothing to save.
LineServer::~LineServer() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {}
}

void LineServer::fail(const std::string& what) { throw Error(fmt::format("{}: {}", name_, what)); }

void LineServer::wait_for(short event) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s_);
    while (true) {
        const std::chrono::duration<double, std::milli> remaining_time = deadline - Clock::now();
        if (remaining_time.count() <= 0) fail(fmt::format("does not answer within {} s", patience_s_));
        pollfd waiting = {socket_, event, 0};
        const int ready = ::poll(&waiting, 1, static_cast<int>(remaining_time.count()) + 1);
        if (ready > 0) return;
        if (ready < 0 && errno != EINTR) fail(std::strerror(errno));
    }
}

std::string LineServer::ask(const std::string& line) {
    const std::string request = line + "\n";
    for (size_t sent = 0; sent < request.size();) {
        wait_for(POLLOUT);
        // Without MSG_NOSIGNAL, a dead process would end this one by SIGPIPE.
        const ssize_t n = ::send(socket_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
        if (n >= 0) {
            sent += static_cast<size_t>(n);
        } else if (errno == EPIPE || errno == ECONNRESET) {
            break;  // the answer, or its absence, says why
        } else if (errno != EAGAIN && errno != EINTR) {
            fail(std::strerror(errno));
        }
    }
    for (size_t end = received_.find('\n'), searched = 0;; end = received_.find('\n', searched)) {
        if (end != std::string::npos) {
            const std::string answer = received_.substr(0, end);
            received_.erase(0, end + 1);
            return answer;
        }
        searched = received_.size();
        wait_for(POLLIN);
        char block[1 << 16];
        const ssize_t n = ::recv(socket_, block, sizeof block, 0);
        if (n > 0) received_.append(block, static_cast<size_t>(n));
        if (n == 0 || (n < 0 && errno == ECONNRESET)) fail("ended without an answer; run it by hand to see why");
        if (n < 0 && errno != EAGAIN && errno != EINTR) fail(std::strerror(errno));
    }
}

}  // namespace teon
