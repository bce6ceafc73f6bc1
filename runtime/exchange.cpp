#include "runtime/exchange.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#if __has_include(<mpi.h>)
#define OMPI_SKIP_MPICXX  // the old C++ bindings would need a library of their own
#define MPICH_SKIP_MPICXX
#include <mpi.h>
#endif

#include "base/check.h"
#include "base/descriptor.h"
#include "base/sha256.h"
#include "runtime/device.h"

namespace teon {

namespace {

// ---- the secret ----------------------------------------------------------------------------------------------------

std::string random_digits() {  // 32 hexadecimal digits
    uint64_t n[2];
    CHECK(::getrandom(n, sizeof n, 0) == sizeof n, "the system has no random numbers: {}", std::strerror(errno));
    return fmt::format("{:016x}{:016x}", n[0], n[1]);
}

// Writes the file as a whole or not at all. If several ranks do so at the same time, the first wins.
void make_secret(const std::string& path) {
    const std::string digits = random_digits();
    std::string temporary = path + ".XXXXXX";
    const Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));  // 0600
    const bool written = file >= 0 && ::write(file, digits.data(), digits.size()) == std::ssize(digits) &&
                         (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
    const int error = errno;
    ::unlink(temporary.c_str());
    CHECK(written, "{}: cannot be written: {}; set TEON_SECRET on all ranks instead", path, std::strerror(error));
}

std::string read_secret(const std::string& path) {
    struct stat is = {};
    if (::lstat(path.c_str(), &is) != 0) make_secret(path);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    CHECK_USAGE(file >= 0 && ::fstat(file, &is) == 0 && S_ISREG(is.st_mode) && is.st_uid == ::geteuid() &&
                    (is.st_mode & 077) == 0,
                "{}: must be a file of yours that nobody else may read (chmod 600), not a link", path);
    char text[34] = {};
    const std::string digits(text, static_cast<size_t>(std::max<ssize_t>(::read(file, text, sizeof text), 0)));
    return digits.substr(0, digits.find('\n'));
}

// ---- at MASTER_ADDR ------------------------------------------------------------------------------------------------
// Rank 0 sends its random number; the other rank, its claim and a proof; rank 0, the payload and a proof.

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr size_t kNumber = 32, kClaim = 2 * kNumber + 20, kProof = 64;  // characters

// The claim of a rank: rank 0's random number, its own, the rank and the number of ranks.
std::string claim(const std::string& zero, const std::string& own, long rank, const Launch& l) {
    return zero + own + fmt::format("{:010}{:010}", rank, l.size);
}

std::string with_proof(const std::string& text, const std::string& secret, const std::string& by) {
    return text + hmac_sha256(secret, by + text);
}

void send(int socket, const std::string& bytes) {  // fits into any buffer; a rank that does not get it asks again
    (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Receives n bytes, or fewer if no more have arrived.
std::string receive(int socket, size_t n, int flags = MSG_WAITALL) {
    std::string bytes(n, '\0');
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(::recv(socket, bytes.data(), n, flags), 0)));
    return bytes;
}

// Returns a socket for the first of MASTER_ADDR's addresses for which talk(socket, address) returns true; none if there
// is no such address.
Descriptor at_master(const Launch& l, timeval patience, std::string& problem, auto&& talk) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int status = ::getaddrinfo(l.host.c_str(), std::to_string(l.port).c_str(), &hints, &found);
    if (status != 0) problem = fmt::format("MASTER_ADDR {}: {}", l.host, ::gai_strerror(status));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(status == 0 ? found : nullptr, ::freeaddrinfo);
    for (const addrinfo* a = owner.get(); a; a = a->ai_next) {
        Descriptor s(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
        if (s < 0) {  // the kernel does not support this address family
            problem = fmt::format("no socket: {}", std::strerror(errno));
            continue;
        }
        for (int way : {SO_RCVTIMEO, SO_SNDTIMEO}) ::setsockopt(s, SOL_SOCKET, way, &patience, sizeof patience);
        if (talk(s, *a)) return s;
    }
    return {};
}

void wait_for_ranks(const Launch& l, const std::string& payload, double timeout_s, const std::string& secret) {
    std::string problem, missing;
    const Descriptor door = at_master(l, {.tv_sec = 0, .tv_usec = 10000}, problem, [&](int s, const addrinfo& a) {
        const int on = 1;
        ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (::bind(s, a.ai_addr, a.ai_addrlen) == 0 && ::listen(s, 1024) == 0) return true;
        problem = fmt::format(
            "rank 0 cannot listen at {}:{}: {}; set MASTER_ADDR to an address of its machine and MASTER_PORT to a "
            "free port",
            l.host, l.port, std::strerror(errno));
        return false;
    });
    CHECK(door >= 0, "{}", problem);
    const std::string zero = random_digits();
    std::map<long, std::string> known;                     // random number by rank
    const auto done_with = [&](const Descriptor& guest) {  // true if the guest has its answer or gets none
        const std::string said = receive(guest, kClaim + kProof, MSG_PEEK | MSG_DONTWAIT);
        if (said.size() < kClaim + kProof) return false;
        receive(guest, said.size());  // closing a socket with unread bytes would cut off its answer
        const long rank = std::atol(said.substr(2 * kNumber, 10).c_str());
        const std::string own = said.substr(kNumber, kNumber);
        const bool proved = said == with_proof(claim(zero, own, rank, l), secret, "rank" + l.run);
        if (!proved || rank < 1 || rank >= l.size) return true;
        // A rank that is known with the same number did not get its answer and asks again.
        CHECK(known.try_emplace(rank, own).first->second == own, "two processes claim to be rank {}", rank);
        send(guest, with_proof(payload, secret, "zero" + own));
        return true;
    };
    std::vector<Descriptor> guests;
    for (const auto end = Clock::now() + Seconds(timeout_s); std::ssize(known) < l.size - 1 && Clock::now() < end;) {
        if (Descriptor guest(::accept4(door, nullptr, nullptr, SOCK_CLOEXEC)); guest >= 0)
            send(guest, zero), guests.push_back(std::move(guest));
        std::erase_if(guests, done_with);
        // Keeps at most as many connections as there are ranks, and a few more; beyond that it closes the oldest.
        if (std::ssize(guests) > l.size + 64) guests.erase(guests.begin());
    }
    for (int r = 1; r < l.size; r++)
        if (!known.contains(r)) missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", r);
    CHECK(missing.empty(), "{} did not arrive within {} s", missing, timeout_s);
}

// ---- through MPI ---------------------------------------------------------------------------------------------------

bool on_cpus() { return std::string_view(backend_name()) != "cuda"; }

#if __has_include(<mpi.h>)

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

std::string exchange_over_mpi(const Launch& l, const std::string&) {
    throw UsageError(fmt::format(
        "{} started {} ranks, but this program was built without MPI: install libopenmpi-dev and build again{}", l.by,
        l.size, on_cpus() ? "" : ", or set MASTER_ADDR and MASTER_PORT"));
}

#endif

}  // namespace

std::string find_secret() {
    const char *text = std::getenv("TEON_SECRET"), *home = std::getenv("HOME");
    CHECK_USAGE(text || (home && *home),
                "neither TEON_SECRET nor HOME is set: ranks must prove that they belong together");
    const std::string where = text ? "TEON_SECRET" : std::string(home) + "/.teon_secret";
    const std::string digits = text ? text : read_secret(where);
    CHECK_USAGE(digits.size() == 32 && digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos,
                "{}: 32 hexadecimal digits are needed, the same on all ranks (openssl rand -hex 16)", where);
    return digits;
}

std::string exchange_at_master(const Launch& l, std::string payload, double timeout_s, const std::string& secret) {
    CHECK_USAGE(!l.host.empty(), "{} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT", l.by);
    if (l.rank == 0) return wait_for_ranks(l, payload, timeout_s, secret), payload;
    const std::string own = random_digits();
    std::string problem;
    const auto asked = [&](int s, const addrinfo& a) {
        problem = fmt::format("{}:{}: ", l.host, l.port);
        if (::connect(s, a.ai_addr, a.ai_addrlen) != 0)  // EINPROGRESS: SO_SNDTIMEO expired
            return problem += std::strerror(errno == EINPROGRESS ? ETIMEDOUT : errno), false;
        const std::string zero = receive(s, kNumber);
        if (zero.size() < kNumber) return problem += "something else listens there", false;
        send(s, with_proof(claim(zero, own, l.rank, l), secret, "rank" + l.run));
        const std::string answer = receive(s, payload.size() + kProof), said = answer.substr(0, payload.size());
        if (answer == with_proof(said, secret, "zero" + own)) return payload = said, true;
        problem +=
            "did not accept this rank: another run listens there, or its secret (TEON_SECRET, ~/.teon_secret) "
            "differs";
        return false;
    };
    const auto end = Clock::now() + Seconds(timeout_s);
    while (at_master(l, {.tv_sec = 2, .tv_usec = 0}, problem, asked) < 0) {
        CHECK(Clock::now() < end, "did not meet rank 0 within {} s: {}", timeout_s, problem);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return payload;
}

bool meets_through_mpi(const Launch& l) {
#if __has_include(<mpi.h>)
    return l.mpi || on_cpus();
#else
    return on_cpus() || (l.mpi && l.host.empty());
#endif
}

std::string exchange(const Launch& l, std::string payload, double timeout_s) {
    if (meets_through_mpi(l)) return exchange_over_mpi(l, std::move(payload));
    return exchange_at_master(l, std::move(payload), timeout_s, find_secret());
}

void leave([[maybe_unused]] const Launch& l) noexcept {
#if __has_include(<mpi.h>)
    if (meets_through_mpi(l)) MPI_Finalize();
#endif
}

}  // namespace teon
