#include "runtime/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/check.h"

namespace teon {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    ~Socket() { reset(); }
    Socket(Socket&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Socket& operator=(Socket&& o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    int fd() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }

private:
    int fd_ = -1;
};

// ---- messages -----------------------------------------------------------------------------------

// hello    a rank introduces itself: value = size of its run, text = run, nonce (or nothing) and name, one per line
// welcome  rank 0 knows it: text = nonce
// refused  rank 0 does not: text = why
// go       all are here: text = payload
// alive    value = operations queued so far
// bye      the connection will be closed, and that is in order
// failed   text = why all have to stop; value = 1: name the rank that is furthest behind
enum class Kind : int32_t { hello, welcome, refused, go, alive, bye, failed };

struct Header {
    char magic[8] = {'t', 'e', 'o', 'n', '-', '0', '0', '1'};
    Kind kind{};
    int32_t rank = 0;
    int64_t value = 0;
    int32_t length = 0;
    int32_t reserved = 0;
};

struct Message {
    Kind kind{};
    int rank = 0;
    int64_t value = 0;
    std::string text;
};

void set_patience(int fd, double seconds) {
    timeval t{.tv_sec = static_cast<time_t>(seconds),
              .tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6)};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool send_message(const Socket& to, const Message& m) {
    Header header;
    header.kind = m.kind;
    header.rank = m.rank;
    header.value = m.value;
    header.length = static_cast<int32_t>(m.text.size());
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += m.text;
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t n = ::send(to.fd(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += static_cast<size_t>(n);
    }
    return true;
}

bool receive_bytes(const Socket& from, void* data, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t n = ::recv(from.fd(), static_cast<char*>(data) + done, size - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += static_cast<size_t>(n);
    }
    return true;
}

// Nothing on a closed connection, one that is silent for longer than its patience, or one that speaks another language.
std::optional<Message> receive_message(const Socket& from) {
    Header header;
    if (!receive_bytes(from, &header, sizeof header)) return std::nullopt;
    constexpr int32_t kLongest = 1 << 16;
    if (std::memcmp(header.magic, Header{}.magic, sizeof header.magic) != 0 || header.length < 0 ||
        header.length > kLongest)
        return std::nullopt;
    Message m{header.kind, header.rank, header.value, std::string(static_cast<size_t>(header.length), '\0')};
    if (!receive_bytes(from, m.text.data(), m.text.size())) return std::nullopt;
    return m;
}

// ---- addresses ----------------------------------------------------------------------------------

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
}

std::string fresh_nonce() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}-{:x}", random(), random(),
                       std::chrono::system_clock::now().time_since_epoch().count());
}

struct Address {
    std::string host;
    int port = 0;
    std::string nonce;  // known from a file only
};

std::optional<Address> read_address(const std::string& file) {
    std::ifstream in(file);
    Address a;
    if (in >> a.host >> a.port >> a.nonce) return a;
    return std::nullopt;
}

// The whole file or none of it: the others may be reading.
void write_address(const std::string& file, const Address& a) {
    const std::string temporary = fmt::format("{}.{}.{}", file, host_name(), ::getpid());
    std::ofstream(temporary) << a.host << '\n' << a.port << '\n' << a.nonce << '\n' << std::flush;
    CHECK(::rename(temporary.c_str(), file.c_str()) == 0, "{}: cannot write the address of rank 0: {}", file,
          std::strerror(errno));
}

Socket listen_at(int port, bool this_machine_only) {
    Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(this_machine_only ? INADDR_LOOPBACK : INADDR_ANY);
    CHECK(::bind(s.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(s.fd(), 1024) == 0,
          "rank 0 cannot listen at port {}: {}; set MASTER_PORT to a free one", port, std::strerror(errno));
    return s;
}

int port_of(const Socket& listener) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
}

Socket connect_to(const Address& to, std::string& problem) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    const int status = ::getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found);
    if (status != 0) {
        problem = fmt::format("{}: {}", to.host, ::gai_strerror(status));
        return {};
    }
    Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    set_patience(s.fd(), 2);
    const bool connected = ::connect(s.fd(), found->ai_addr, found->ai_addrlen) == 0;
    ::freeaddrinfo(found);
    if (connected) return s;
    problem = fmt::format("{}:{}: {}", to.host, to.port, std::strerror(errno));
    return {};
}

struct Peer {
    int rank = 0;
    std::string name;  // "rank 3 (node7, pid 1234)"
    Socket socket;
    Clock::time_point heard;
    int64_t operations = 0;
    bool gone = false;  // said goodbye
};

}  // namespace

struct Rendezvous::Impl {
    const Launch launch;
    std::string name;
    std::vector<Peer> peers;  // rank 0: all others; the others: rank 0
    std::mutex sending;
    std::atomic<int64_t> operations{0};
    std::atomic<bool> stop{false};
    bool closed = false;
    std::string own_file;  // that rank 0 wrote
    std::thread watcher;

    explicit Impl(const Launch& l)
        : launch(l), name(fmt::format("rank {} ({}, pid {})", l.rank, host_name(), ::getpid())) {}

    // ---- meeting --------------------------------------------------------------------------------

    void gather(const std::string& payload) {
        const bool here = launch.local_size == launch.size;
        Socket listener = listen_at(launch.port, here && launch.host.empty());
        const std::string nonce = fresh_nonce();
        if (!launch.file.empty()) {
            write_address(launch.file, {here ? "127.0.0.1" : host_name(), port_of(listener), nonce});
            own_file = launch.file;
        }
        const auto deadline = Clock::now() + Seconds(launch.timeout_s);
        while (static_cast<int>(peers.size()) + 1 < launch.size) {
            pollfd p{listener.fd(), POLLIN, 0};
            ::poll(&p, 1, 100);
            if (Clock::now() > deadline) {
                const std::string why = fmt::format("{} did not arrive within {} s", missing(), launch.timeout_s);
                for (Peer& peer : peers) send_message(peer.socket, {Kind::failed, 0, 0, why});
                throw Error(why);
            }
            if (p.revents & POLLIN) greet(Socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC)), nonce);
        }
        for (Peer& peer : peers) send_message(peer.socket, {Kind::go, 0, 0, payload});
    }

    // Whoever does not introduce itself as a rank of this run is sent away.
    void greet(Socket socket, const std::string& nonce) {
        if (!socket) return;
        set_patience(socket.fd(), 2);
        const std::optional<Message> hello = receive_message(socket);
        if (!hello || hello->kind != Kind::hello) return;
        const size_t first = hello->text.find('\n'), second = hello->text.find('\n', first + 1);
        if (second == std::string::npos) return;
        const std::string run = hello->text.substr(0, first),
                          expected = hello->text.substr(first + 1, second - first - 1);
        const bool taken = hello->rank <= 0 || hello->rank >= launch.size ||
                           std::any_of(peers.begin(), peers.end(), [&](auto& p) { return p.rank == hello->rank; });
        std::string why;
        if (run != launch.run || hello->value != launch.size || (!expected.empty() && expected != nonce)) {
            why = "belongs to another run";
        } else if (taken) {
            why = fmt::format("already has a rank {}", hello->rank);
        }
        if (!why.empty()) {
            send_message(socket, {Kind::refused, 0, 0, why});
            return;
        }
        if (!send_message(socket, {Kind::welcome, 0, 0, nonce})) return;
        peers.push_back({hello->rank, hello->text.substr(second + 1), std::move(socket), Clock::now()});
    }

    std::string missing() const {
        std::string list;
        for (int r = 1; r < launch.size; ++r) {
            if (std::any_of(peers.begin(), peers.end(), [&](auto& p) { return p.rank == r; })) continue;
            list += fmt::format("{}rank {}", list.empty() ? "" : ", ", r);
        }
        return list;
    }

    std::string join() {
        const auto deadline = Clock::now() + Seconds(launch.timeout_s);
        std::string problem, refusal;  // what was last in the way; what rank 0 itself said, which tells more
        while (Clock::now() < deadline) {
            Address address{launch.host, launch.port, ""};
            if (!launch.file.empty()) {
                const std::optional<Address> written = read_address(launch.file);
                address = written.value_or(Address{});
                if (!written) problem = fmt::format("{} does not exist", launch.file);
            }
            if (Socket socket = address.port ? connect_to(address, problem) : Socket(); socket) {
                send_message(socket,
                             {Kind::hello, launch.rank, launch.size, launch.run + "\n" + address.nonce + "\n" + name});
                const std::optional<Message> answer = receive_message(socket);
                if (answer && answer->kind == Kind::welcome && (address.nonce.empty() || answer->text == address.nonce))
                    return wait_for_go(std::move(socket));
                const bool refused = answer && answer->kind == Kind::refused;
                problem = fmt::format("{}:{} {}", address.host, address.port,
                                      refused ? answer->text : "is not rank 0 of this run");
                if (!launch.file.empty()) problem += fmt::format(" ({} is of an earlier run)", launch.file);
                if (refused) refusal = problem;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        throw Error(
            fmt::format("did not find rank 0 within {} s: {}", launch.timeout_s, refusal.empty() ? problem : refusal));
    }

    // Rank 0's own patience ends first, so that it can say who is missing.
    std::string wait_for_go(Socket socket) {
        set_patience(socket.fd(), launch.timeout_s + 5);
        const std::optional<Message> message = receive_message(socket);
        if (message && message->kind == Kind::failed) std::_Exit(1);  // rank 0 says why
        CHECK(message && message->kind == Kind::go, "rank 0 ended before all ranks had arrived");
        peers.push_back({0, "rank 0", std::move(socket), Clock::now()});
        return message->text;
    }

    // ---- watching -------------------------------------------------------------------------------

    void watch() {
        const auto period = std::chrono::milliseconds(std::clamp(static_cast<int>(launch.timeout_s * 200), 20, 1000));
        auto last = Clock::now();
        for (Peer& peer : peers) {
            peer.heard = last;
            set_patience(peer.socket.fd(), launch.timeout_s);
        }
        while (!stop) {
            std::vector<pollfd> polled;
            for (Peer& peer : peers) polled.push_back({peer.gone ? -1 : peer.socket.fd(), POLLIN, 0});
            const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(period.count()));
            const auto now = Clock::now();
            // Whoever was stopped itself must not take that for the others' silence.
            const auto slept = now - last;
            if (slept > 3 * period)
                for (Peer& peer : peers) peer.heard += slept;
            last = now;
            for (size_t i = 0; ready > 0 && i < peers.size(); ++i)
                if (polled[i].revents) listen_to(peers[i]);
            for (Peer& peer : peers) {
                if (peer.gone) continue;
                if (now - peer.heard > Seconds(launch.timeout_s))
                    end(fmt::format("{} has not answered for {} s", peer.name, launch.timeout_s));
            }
            if (now - said_ >= period) say_alive(now);
        }
    }

    void say_alive(Clock::time_point now) {
        said_ = now;
        std::lock_guard lock(sending);
        for (Peer& peer : peers)
            if (!peer.gone) send_message(peer.socket, {Kind::alive, launch.rank, operations, ""});
    }

    void listen_to(Peer& peer) {
        const std::optional<Message> message = receive_message(peer.socket);
        if (!message) end(fmt::format("{} ended unexpectedly", peer.name));
        peer.heard = Clock::now();
        if (message->kind == Kind::alive) peer.operations = message->value;
        if (message->kind == Kind::bye) peer.gone = true;
        if (message->kind != Kind::failed) return;
        if (launch.rank != 0) std::_Exit(1);  // rank 0 says why
        end(message->text + (message->value ? slowest() : ""));
    }

    std::string slowest() {
        int rank = 0;
        int64_t fewest = operations, most = operations;
        for (const Peer& peer : peers) {
            if (peer.operations < fewest) rank = peer.rank;
            fewest = std::min(fewest, peer.operations);
            most = std::max(most, peer.operations);
        }
        return fewest == most ? "" : fmt::format("; furthest behind is rank {}", rank);
    }

    // Prints, tells the others and ends this process.
    [[noreturn]] void end(const std::string& why) {
        fmt::print(stderr, "{}: error: {}{}\n", program_invocation_short_name,
                   launch.rank == 0 ? "" : fmt::format("rank {}: ", launch.rank), why);
        if (launch.rank == 0) {
            std::lock_guard lock(sending);
            for (Peer& peer : peers)
                if (!peer.gone) send_message(peer.socket, {Kind::failed, 0, 0, ""});
        }
        if (!own_file.empty()) ::unlink(own_file.c_str());
        std::_Exit(1);
    }

private:
    Clock::time_point said_{};
};

Rendezvous::Rendezvous(const Launch& launch, std::string& payload) : impl_(std::make_unique<Impl>(launch)) {
    if (launch.size == 1) return;
    CHECK_USAGE(
        !launch.file.empty() || !launch.host.empty(),
        "{} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT, or TEON_RENDEZVOUS to a file that all "
        "machines see (mpirun -x NAME=VALUE passes them on)",
        launch.by);
    if (launch.rank == 0) {
        impl_->gather(payload);
    } else {
        payload = impl_->join();
    }
    impl_->watcher = std::thread([this] { impl_->watch(); });
}

Rendezvous::~Rendezvous() {
    impl_->stop = true;
    if (impl_->watcher.joinable()) impl_->watcher.join();
    if (impl_->closed) {
        for (Peer& peer : impl_->peers) {
            send_message(peer.socket, {Kind::bye, impl_->launch.rank, 0, ""});
            ::shutdown(peer.socket.fd(), SHUT_WR);
        }
        // A connection that is closed with something unread is reset, and the goodbye may be lost with it.
        for (Peer& peer : impl_->peers) {
            set_patience(peer.socket.fd(), 2);
            while (receive_message(peer.socket)) {}
        }
    }
    if (!impl_->own_file.empty()) ::unlink(impl_->own_file.c_str());
}

void Rendezvous::close() { impl_->closed = true; }

void Rendezvous::progress(int64_t operations) noexcept { impl_->operations = operations; }

void Rendezvous::fail(const std::string& why, bool name_slowest) noexcept {
    Impl& self = *impl_;
    const std::string text = fmt::format("{}: {}", self.name, why);
    if (self.launch.rank == 0) self.end(text + (name_slowest ? self.slowest() : ""));
    {
        std::lock_guard lock(self.sending);
        for (Peer& peer : self.peers) send_message(peer.socket, {Kind::failed, self.launch.rank, name_slowest, text});
    }
    std::this_thread::sleep_for(std::chrono::seconds(5));  // rank 0's answer ends this process before
    fmt::print(stderr, "{}: error: {}\n", program_invocation_short_name, text);
    std::_Exit(1);
}

}  // namespace teon
