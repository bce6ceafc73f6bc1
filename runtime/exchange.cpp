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
// Rank 0: its number. The other rank: its number, what it is, the proof. Rank 0, when all are here: the payload, the
// proof.

constexpr size_t kNumber = 16, kProof = 8;
constexpr double kPatience = 2;  // seconds that one message may take

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

void set_patience(const Descriptor& s, double seconds) {
    const timeval t{.tv_sec = static_cast<time_t>(seconds), .tv_usec = 0};
    ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    ::setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

bool send_all(const Descriptor& s, const std::string& bytes) {
    return ::send(s, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);  // fits into any buffer
}

bool receive_all(const Descriptor& s, std::string& bytes) {
    return ::recv(s, bytes.data(), bytes.size(), MSG_WAITALL) == std::ssize(bytes);
}

struct Guest {
    Descriptor socket;
    std::string number, answer;
    Clock::time_point since;
    int rank = -1;  // once it has proved who it is
};

// The rank that the guest has proved to be; -1: not yet; -2: it is to be sent away.
int rank_of(Guest& g, const Launch& l, const Secret& secret, uint64_t run) {
    char bytes[kAnswer];
    const ssize_t n = ::recv(g.socket, bytes, kAnswer - g.answer.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    if (n <= 0) return -2;
    g.answer.append(bytes, static_cast<size_t>(n));
    if (g.answer.size() < kAnswer) return -1;
    const std::string said = g.answer.substr(0, kAnswer - kProof);
    Claim claim;
    std::memcpy(&claim, said.data() + kNumber, sizeof claim);
    const Claim expected{.rank = claim.rank, .size = l.size, .run = run};
    const bool known = g.answer.substr(said.size()) == proof(secret, "rank" + g.number + said) &&
                       std::memcmp(&claim, &expected, sizeof claim) == 0 && claim.rank > 0 && claim.rank < l.size;
    return known ? static_cast<int>(claim.rank) : -2;
}

std::string ranks_missing(const std::vector<bool>& here) {
    std::string list;
    for (size_t r = 0; r < here.size(); ++r)
        if (!here[r]) list += fmt::format("{}rank {}", list.empty() ? "" : ", ", r);
    return list;
}

std::string wait_for_ranks(const Launch& l, const std::string& payload, double timeout_s, const Secret& secret,
                           uint64_t run) {
    std::string problem;
    const Addresses address = addresses(l, problem);
    CHECK(address, "{}", problem);
    const Descriptor listener = socket_for(*address, SOCK_NONBLOCK);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(::bind(listener, address->ai_addr, address->ai_addrlen) == 0 && ::listen(listener, 1024) == 0,
          "rank 0 cannot listen at {}:{}: {}; set MASTER_ADDR to an address of its machine and MASTER_PORT to a free "
          "port",
          l.host, l.port, std::strerror(errno));
    std::vector<bool> here(static_cast<size_t>(l.size), false);
    here[0] = true;
    std::vector<Guest> guests;
    const auto end = Clock::now() + Seconds(timeout_s);
    for (std::string missing = ranks_missing(here); !missing.empty(); missing = ranks_missing(here)) {
        CHECK(Clock::now() < end, "{} did not arrive within {} s", missing, timeout_s);
        std::vector<pollfd> polled = {{listener, POLLIN, 0}};
        for (const Guest& g : guests) polled.push_back({g.rank < 0 ? g.socket : -1, POLLIN, 0});
        ::poll(polled.data(), polled.size(), 100);
        for (size_t i = 0; i < guests.size(); ++i) {
            Guest& g = guests[i];
            if (polled[i + 1].revents) g.rank = rank_of(g, l, secret, run);
            if (polled[i + 1].revents == 0 || g.rank < 0) continue;
            CHECK(!here[g.rank], "two processes claim to be rank {}", g.rank);
            here[g.rank] = true;
        }
        // Strangers have little time, and room for no more than the ranks and a few beside them.
        std::erase_if(guests, [&](const Guest& g) {
            return g.rank == -2 || (g.rank == -1 && Clock::now() - g.since > Seconds(kPatience));
        });
        if (!(polled[0].revents & POLLIN)) continue;
        Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        Guest guest{std::move(socket), random_bytes(kNumber), "", Clock::now()};
        if (guest.socket < 0 || !send_all(guest.socket, guest.number)) continue;
        const auto strange = [](const Guest& g) { return g.rank < 0; };
        if (std::ssize(guests) >= l.size + 64) guests.erase(std::find_if(guests.begin(), guests.end(), strange));
        guests.push_back(std::move(guest));
    }
    for (Guest& g : guests) {
        if (g.rank < 0) continue;
        set_patience(g.socket, kPatience);
        send_all(g.socket, payload + proof(secret, "zero" + g.answer.substr(0, kNumber) + payload));
    }
    return payload;
}

// One attempt: the payload, or empty and what was in the way.
std::string ask_rank_0(const Launch& l, size_t bytes, double patience_s, const Secret& secret, uint64_t run,
                       std::string& problem) {
    const Addresses found = addresses(l, problem);
    for (const addrinfo* a = found.get(); a; a = a->ai_next) {
        const Descriptor s = socket_for(*a);
        set_patience(s, kPatience);
        problem = fmt::format("{}:{}: ", l.host, l.port);
        if (::connect(s, a->ai_addr, a->ai_addrlen) != 0) {
            problem += std::strerror(errno);
            continue;
        }
        std::string number(kNumber, '\0');
        problem += "something else listens there";
        if (!receive_all(s, number)) continue;
        const std::string own = random_bytes(kNumber);
        const std::string said = own + bytes_of(Claim{.rank = l.rank, .size = l.size, .run = run});
        if (!send_all(s, said + proof(secret, "rank" + number + said))) continue;
        set_patience(s, patience_s);
        std::string answer(bytes + kProof, '\0');
        problem = fmt::format(
            "{}:{} did not accept this rank: another run listens there, or its secret (TEON_SECRET, ~/.teon_secret) is "
            "another",
            l.host, l.port);
        if (!receive_all(s, answer)) continue;
        const std::string payload = answer.substr(0, bytes);
        if (answer.substr(bytes) == proof(secret, "zero" + own + payload)) return payload;
    }
    return "";
}

}  // namespace

std::string exchange_at_master(const Launch& l, std::string payload, double timeout_s, const Secret& secret) {
    CHECK_USAGE(!l.host.empty(), "{} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT", l.by);
    const uint64_t run = siphash({}, l.run);
    if (l.rank == 0) return wait_for_ranks(l, payload, timeout_s, secret, run);
    const auto end = Clock::now() + Seconds(timeout_s);
    for (std::string problem;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
        const double left = Seconds(end - Clock::now()).count();
        CHECK(left > 0, "did not meet rank 0 within {} s: {}", timeout_s, problem);
        const std::string got = ask_rank_0(l, payload.size(), left + 1, secret, run, problem);
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
