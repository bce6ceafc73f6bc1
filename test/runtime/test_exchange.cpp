// Ranks, as threads of this process, that meet at MASTER_ADDR.
#include "runtime/exchange.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

const std::string kSecret = "0123456789abcdeffedcba9876543210";

sockaddr_in address(const char* host, int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, host, &a.sin_addr);
    return a;
}

Descriptor connected(const char* host, int port) {
    Descriptor s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in a = address(host, port);
    if (::connect(s, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0) return s;
    return Descriptor(-1);
}

// A socket that listens on a port chosen by the system.
struct Listener {
    Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int port = 0;
    Listener() {
        sockaddr_in a = address("127.0.0.1", 0);
        socklen_t size = sizeof a;
        REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&a), size) == 0);
        REQUIRE(::listen(socket, 16) == 0);
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&a), &size);
        port = ntohs(a.sin_port);
    }
};

int free_port() { return Listener().port; }

Launch launch(int rank, int size, int port, const std::string& run = "") {
    Launch l;
    l.by = "torchrun";
    l.rank = rank, l.size = size, l.host = "127.0.0.1", l.port = port, l.run = run;
    return l;
}

// Starts a rank. Its result is the payload that the rank received, or the error.
std::future<std::string> start(const Launch& l, double timeout_s, const std::string& secret = kSecret) {
    return std::async(std::launch::async, [=] {
        try {
            return exchange_at_master(l, l.rank == 0 ? "the payload" : "           ", timeout_s, secret);
        } catch (const Error& error) { return std::string("error: ") + error.what(); }
    });
}

}  // namespace

TEST_CASE("runtime/exchange: every rank gets rank 0's payload, in any order of arrival") {
    for (bool zero_first : {true, false}) {
        const int port = free_port();
        std::vector<std::future<std::string>> ranks;
        for (int i = 0; i < 4; ++i) {
            ranks.push_back(start(launch(zero_first ? i : 3 - i, 4, port, "run"), 20));
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
        }
        for (auto& rank : ranks) REQUIRE(rank.get() == "the payload");
    }
}

TEST_CASE("runtime/exchange: a process with another secret or of another run gets nothing and is not counted") {
    struct Other {
        int size;
        const char* run;
        std::string secret;
    };
    for (const Other& other : {Other{2, "a", std::string(32, '1')}, Other{2, "b", kSecret}, Other{3, "a", kSecret}}) {
        const int port = free_port();
        auto zero = start(launch(0, 2, port, "a"), 0.5);
        auto one = start(launch(1, other.size, port, other.run), 0.4, other.secret);
        REQUIRE(zero.get() == "error: rank 1 did not arrive within 0.5 s");
        const std::string said = one.get();
        INFO(said);
        REQUIRE(contains(said, "error: did not meet rank 0 within 0.4 s"));
        REQUIRE(contains(said, "did not accept this rank"));
        REQUIRE(contains(said, "TEON_SECRET"));
    }
}

TEST_CASE("runtime/exchange: two processes that claim one rank are an error at once") {
    const int port = free_port();
    auto zero = start(launch(0, 3, port), 20);
    auto one = start(launch(1, 3, port), 1), again = start(launch(1, 3, port), 1);
    REQUIRE(zero.get() == "error: two processes claim to be rank 1");
    REQUIRE(contains(one.get() + again.get(), "error: "));  // either may arrive first
}

TEST_CASE("runtime/exchange: silent and talkative strangers delay no rank") {
    const int port = free_port();
    auto zero = start(launch(0, 2, port), 20);
    std::vector<Descriptor> strangers;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (strangers.size() < 150 && std::chrono::steady_clock::now() < deadline)
        if (Descriptor s = connected("127.0.0.1", port); s >= 0) strangers.push_back(std::move(s));
    REQUIRE(strangers.size() == 150);
    const std::string noise(4096, 'x');
    for (size_t i = 0; i < strangers.size(); i += 2)
        (void)::send(strangers[i], noise.data(), noise.size(), MSG_NOSIGNAL);
    auto one = start(launch(1, 2, port), 20);  // 20 s: less than serving the strangers one by one would take
    REQUIRE(one.get() == "the payload");
    REQUIRE(zero.get() == "the payload");
}

TEST_CASE("runtime/exchange: an answer without proof of the secret is discarded") {
    Listener impostor;
    auto one = start(launch(1, 2, impostor.port), 1);
    const Descriptor guest(::accept(impostor.socket, nullptr, nullptr));
    const std::string answer(500, 'x');
    REQUIRE(::send(guest, answer.data(), answer.size(), MSG_NOSIGNAL) == 500);
    REQUIRE(contains(one.get(), "error: did not meet rank 0 within 1 s"));
}

TEST_CASE("runtime/exchange: rank 0 listens at MASTER_ADDR and nowhere else") {
    const int port = free_port();
    Launch l = launch(0, 2, port);
    l.host = "127.0.0.2";
    auto zero = start(l, 1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    bool there = false;
    while (!there && std::chrono::steady_clock::now() < deadline) there = connected("127.0.0.2", port) >= 0;
    REQUIRE(there);
    REQUIRE(connected("127.0.0.1", port) < 0);
    REQUIRE(contains(zero.get(), "rank 1 did not arrive"));
}

TEST_CASE("runtime/exchange: faults of MASTER_ADDR and MASTER_PORT are reported") {
    const Listener taken;
    REQUIRE(contains(start(launch(0, 2, taken.port), 1).get(), "Address already in use; set MASTER_ADDR"));
    Launch l = launch(0, 2, 1234);
    l.host = "192.0.2.1";  // reserved for documentation: no host has it
    REQUIRE(contains(start(l, 1).get(), "rank 0 cannot listen at 192.0.2.1:1234: Cannot assign"));
    l.host = std::string(300, 'x');  // too long for a name, which is found without a network
    REQUIRE(contains(start(l, 1).get(), "error: MASTER_ADDR xxx"));
    l.rank = 1;
    REQUIRE(contains(start(l, 0.2).get(), "did not meet rank 0 within 0.2 s: MASTER_ADDR xxx"));
    l.host = "";
    REQUIRE(contains(start(l, 1).get(), "torchrun does not say where rank 0 is: set MASTER_ADDR"));
    REQUIRE(contains(start(launch(1, 2, free_port()), 0.2).get(), "Connection refused"));
    Listener full;  // with a full queue of connections, so that it accepts no more
    ::listen(full.socket, 0);
    std::vector<Descriptor> waiting;
    for (int i = 0; i < 8; ++i) {
        waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const sockaddr_in a = address("127.0.0.1", full.port);
        (void)::connect(waiting.back(), reinterpret_cast<const sockaddr*>(&a), sizeof a);
    }
    REQUIRE(contains(start(launch(1, 2, full.port), 0.2).get(), "Connection timed out"));
}

TEST_CASE("runtime/exchange: the secret is made once, and read only from a file that nobody else can read") {
    struct Restore {  // restores the environment
        std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
        ~Restore() {
            ::setenv("HOME", home.c_str(), 1);
            ::unsetenv("TEON_SECRET");
        }
    } restore;
    const TempDir folder;
    const std::string file = folder / ".teon_secret";
    ::setenv("HOME", folder.path().c_str(), 1);
    ::unsetenv("TEON_SECRET");
    std::vector<std::future<std::string>> ranks;
    for (int i = 0; i < 8; ++i) ranks.push_back(std::async(std::launch::async, find_secret));
    const std::string made = find_secret();
    for (auto& rank : ranks) REQUIRE(rank.get() == made);
    struct stat is = {};
    REQUIRE(::stat(file.c_str(), &is) == 0);
    REQUIRE((is.st_mode & 0777) == 0600);
    REQUIRE(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);

    ::chmod(file.c_str(), 0640);
    REQUIRE_THROWS_AS(find_secret(), UsageError);
    ::chmod(file.c_str(), 0600);
    std::filesystem::rename(file, folder / "elsewhere");
    std::filesystem::create_symlink(folder / "elsewhere", file);
    REQUIRE_THROWS_AS(find_secret(), UsageError);
    std::filesystem::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);  // must not hang
    REQUIRE_THROWS_AS(find_secret(), UsageError);
    std::filesystem::remove(file);
    for (const char* text : {"short", "0123456789abcdef0123456789abcdef0"}) {
        std::ofstream(file) << text;
        ::chmod(file.c_str(), 0600);
        REQUIRE_THROWS_AS(find_secret(), UsageError);
    }
    std::ofstream(file) << "0123456789abcdef0123456789abcdef\n";  // as `openssl rand -hex 16` writes it
    REQUIRE(find_secret() == "0123456789abcdef0123456789abcdef");

    ::setenv("TEON_SECRET", "0123456789ABCDEFfedcba9876543210", 1);
    REQUIRE(find_secret() == "0123456789ABCDEFfedcba9876543210");
    ::setenv("TEON_SECRET", "0123456789ABCDEFfedcba987654321", 1);
    REQUIRE_THROWS_AS(find_secret(), UsageError);
}
