#include "runtime/exchange.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if __has_include(<mpi.h>)
#define OMPI_SKIP_MPICXX  // the C++ bindings of old would need a library of their own
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#endif

#include "runtime/check.h"
#include "runtime/device.h"

namespace teon {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// ---- at MASTER_ADDR ------------------------------------------------------------------------------------------------
// Rank 0: its number. The other rank: its number, what it is, the proof. Rank 0: the payload, the proof.

constexpr size_t kNumber = 16, kProof = 8;
constexpr double kPatience = 2;  // seconds that a conversation may take

struct Claim {
    char format[8] = {'t', 'e', 'o', 'n', '-', '0', '0', '2'};
    int64_t rank = 0, size = 0;
    uint64_t run = 0;
};
constexpr size_t kAnswer = kNumber + sizeof(Claim) + kProof;

std::string bytes_of(const auto& value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }
std::string proof(const Secret& secret, const std::string& text) { return bytes_of(siphash(secret, text)); }

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// None if the name is not known (yet).
Addresses addresses(const Launch& l, std::string& problem) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = ::getaddrinfo(l.host.c_str(), std::to_string(l.port).c_str(), &hints, &found);
    problem = fmt::format("MASTER_ADDR {}: {}", l.host, status == 0 ? "" : ::gai_strerror(status));
    return {status == 0 ? found : nullptr, ::freeaddrinfo};
}

Descriptor socket_for(const addrinfo& a, int flags = 0) {
    Descriptor s(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC | flags, a.ai_protocol));
    CHECK(s >= 0, "no socket: {}", std::strerror(errno));
    return s;
}

bool send_all(const Descriptor& s, const std::string& bytes) {
    return ::send(s, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);  // fits into any buffer
}

bool receive_all(const Descriptor& s, std::string& bytes) {
    return ::recv(s, bytes.data(), bytes.size(), MSG_WAITALL) == std::ssize(bytes);
}

// A process that has connected, until it has proved which rank it is.
struct Guest {
    Descriptor socket;
    std::string number, answer = "";
    Clock::time_point since = Clock::now();
};

struct Host {
    const Launch& l;
    const std::string payload;
    const Secret& secret;
    const uint64_t run;
    std::vector<std::string> known = std::vector<std::string>(static_cast<size_t>(l.size));  // ranks' numbers

    // Takes what the guest has sent. True: it has its answer, or gets none.
    bool done_with(Guest& g) {
        char bytes[kAnswer];
        const ssize_t n = ::recv(g.socket, bytes, kAnswer - g.answer.size(), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return true;
        g.answer.append(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0)));
        if (g.answer.size() < kAnswer) return Clock::now() - g.since > Seconds(kPatience);
        const std::string said = g.answer.substr(0, kAnswer - kProof), number = said.substr(0, kNumber);
        Claim claim;
        std::memcpy(&claim, said.data() + kNumber, sizeof claim);
        const Claim expected{.rank = claim.rank, .size = l.size, .run = run};
        if (g.answer.substr(said.size()) != proof(secret, "rank" + g.number + said) ||
            std::memcmp(&claim, &expected, sizeof claim) != 0 || claim.rank <= 0 || claim.rank >= l.size)
            return true;
        std::string& before = known[static_cast<size_t>(claim.rank)];  // its own, if its answer was lost
        CHECK(before.empty() || before == number, "two processes claim to be rank {}", claim.rank);
        before = number;
        send_all(g.socket, payload + proof(secret, "zero" + number + payload));
        return true;
    }

    std::string missing() const {
        std::string list;
        for (int r = 1; r < l.size; ++r)
            if (known[static_cast<size_t>(r)].empty()) list += fmt::format("{}rank {}", list.empty() ? "" : ", ", r);
        return list;
    }
};

void wait_for_ranks(Host host, double timeout_s) {
    std::string problem;
    const Addresses address = addresses(host.l, problem);
    CHECK(address, "{}", problem);
    const Descriptor listener = socket_for(*address, SOCK_NONBLOCK);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(::bind(listener, address->ai_addr, address->ai_addrlen) == 0 && ::listen(listener, 1024) == 0,
          "rank 0 cannot listen at {}:{}: {}; set MASTER_ADDR to an address of its machine and MASTER_PORT to a free "
          "port",
          host.l.host, host.l.port, std::strerror(errno));
    std::vector<Guest> guests;
    for (const auto end = Clock::now() + Seconds(timeout_s); !host.missing().empty();) {
        CHECK(Clock::now() < end, "{} did not arrive within {} s", host.missing(), timeout_s);
        pollfd door = {listener, POLLIN, 0};
        ::poll(&door, 1, 10);
        if (Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)); socket >= 0) {
            guests.push_back({std::move(socket), random_bytes(kNumber)});
            send_all(guests.back().socket, guests.back().number);
        }
        std::erase_if(guests, [&](Guest& g) { return host.done_with(g); });
        // Room for the ranks and a few beside them: the one that has been silent for longest goes.
        if (std::ssize(guests) > host.l.size + 64) guests.erase(guests.begin());
    }
}

// One attempt: the payload, or empty and what was in the way.
std::string ask_rank_0(const Launch& l, const std::string& own_number, size_t bytes, const Secret& secret, uint64_t run,
                       std::string& problem) {
    const Addresses found = addresses(l, problem);
    for (const addrinfo* a = found.get(); a; a = a->ai_next) {
        const Descriptor s = socket_for(*a);
        const timeval patience{.tv_sec = static_cast<time_t>(kPatience), .tv_usec = 0};
        ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        ::setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        problem = fmt::format("{}:{}: ", l.host, l.port);
        if (::connect(s, a->ai_addr, a->ai_addrlen) != 0) {
            problem += std::strerror(errno);
            continue;
        }
        std::string number(kNumber, '\0'), answer(bytes + kProof, '\0');
        problem += "something else listens there";
        if (!receive_all(s, number)) continue;
        const std::string said = own_number + bytes_of(Claim{.rank = l.rank, .size = l.size, .run = run});
        problem = fmt::format(
            "{}:{} did not accept this rank: another run listens there, or its secret (TEON_SECRET, ~/.teon_secret) is "
            "another",
            l.host, l.port);
        if (!send_all(s, said + proof(secret, "rank" + number + said)) || !receive_all(s, answer)) continue;
        const std::string payload = answer.substr(0, bytes);
        if (answer.substr(bytes) == proof(secret, "zero" + own_number + payload)) return payload;
    }
    return "";
}

}  // namespace

std::string exchange_at_master(const Launch& l, std::string payload, double timeout_s, const Secret& secret) {
    CHECK_USAGE(!l.host.empty(), "{} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT", l.by);
    const uint64_t run = siphash({}, l.run);
    if (l.rank == 0) {
        wait_for_ranks({l, payload, secret, run}, timeout_s);
        return payload;
    }
    const std::string own_number = random_bytes(kNumber);
    const auto end = Clock::now() + Seconds(timeout_s);
    for (std::string problem;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
        CHECK(Clock::now() < end, "did not meet rank 0 within {} s: {}", timeout_s, problem);
        const std::string got = ask_rank_0(l, own_number, payload.size(), secret, run, problem);
        if (!got.empty()) return got;
    }
}

// ---- through MPI ---------------------------------------------------------------------------------------------------

namespace {

bool on_cpus() { return std::string_view(backend_name()) != "cuda"; }

#if __has_include(<mpi.h>)

bool through_mpi(const Launch& l) { return l.mpi || on_cpus(); }

std::string exchange_over_mpi(const Launch& l, std::string payload) {
    CHECK_USAGE(l.mpi, "{} started {} ranks, but ranks on CPUs are MPI's: start them with mpirun, or srun --mpi=pmix",
                l.by, l.size);
    int initialized = 0, provided = MPI_THREAD_SERIALIZED, size = 1, rank = 0;
    MPI_Initialized(&initialized);
    if (!initialized) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI does not allow threads (MPI_THREAD_SERIALIZED)");
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CHECK(size == l.size && rank == l.rank,
          "{} says rank {} of {}, but MPI says {} of {}; start them with the mpirun of this program's MPI", l.by,
          l.rank, l.size, rank, size);
    MPI_Bcast(payload.data(), static_cast<int>(payload.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    return payload;
}

#else

bool through_mpi(const Launch& l) { return on_cpus() || (l.mpi && l.host.empty()); }

std::string exchange_over_mpi(const Launch& l, std::string) {
    throw UsageError(fmt::format(
        "{} started {} ranks, but this program was built without MPI: install libopenmpi-dev and build again{}", l.by,
        l.size, on_cpus() ? "" : ", or set MASTER_ADDR and MASTER_PORT"));
}

#endif

}  // namespace

std::string exchange(const Launch& l, std::string payload, double timeout_s) {
    if (through_mpi(l)) return exchange_over_mpi(l, std::move(payload));
    return exchange_at_master(l, std::move(payload), timeout_s, find_secret());
}

void leave([[maybe_unused]] const Launch& l) noexcept {
#if __has_include(<mpi.h>)
    if (through_mpi(l)) MPI_Finalize();
#endif
}

}  // namespace teon
