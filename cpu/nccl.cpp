// NCCL over MPI. A collective runs on its stream's thread, or on the modelled GPU in the thread that waits for it.
// Before they transfer data, the ranks exchange descriptions of their calls. Calls that differ, for which NCCL promises
// nothing, are an error that names both. Each rank sends its data straight to the root, which adds in the order of the
// ranks. MPI does not add, so that sums depend neither on timing nor on the MPI library.
#include <nccl.h>

#include <random>
#include <string>

namespace {

thread_local std::string last_error;  // the message of this thread's last failed call

ncclResult_t fail(ncclResult_t result, std::string words) {
    last_error = std::move(words);
    return result;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::random_device random;
    for (char& c : id->internal) c = static_cast<char>(random());
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
#define TEON_MESSAGE(name, value, message) \
    case name:                             \
        return message;
        NCCL_RESULTS(TEON_MESSAGE)
#undef TEON_MESSAGE
    }
    return "unknown result";
}

#if __has_include(<mpi.h>)

#define OMPI_SKIP_MPICXX  // the old C++ bindings would need another library
#define MPICH_SKIP_MPICXX
#include <fmt/core.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/integer.h"
#include "cpu/hardware.h"
#include "cpu/stream.h"

namespace {

constexpr int64_t kLongest = int64_t{1} << 28;  // MPI counts in int; longer messages are sent in pieces

// Touches memory before MPI's system calls or another process do: protected device memory opens for this thread only.
void fault_in(const void* p) { (void)*static_cast<const volatile char*>(p); }

enum class Kind : int64_t { init, reduce, broadcast };

// The description of a call that the other ranks receive.
struct Description {
    Kind kind{};
    int64_t type = 0, root = 0, count = 0;
    bool operator==(const Description&) const = default;
};

struct Call {
    Description is;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
};

// Exchanged first for a group of calls: enough to see whether all ranks made the same calls.
struct Digest {
    int64_t calls = 0;
    uint64_t hash = 0;
    bool operator==(const Digest&) const = default;
};

int64_t size_of(int64_t type) {
    if (type == ncclFloat32) return 4;
    return type == ncclUint8 ? 1 : 2;
}

std::string text_of(const Description& d) {
    std::string type;
#define TEON_NAME(name, value) \
    if (d.type == name) type = #name;
    NCCL_TYPES(TEON_NAME)
#undef TEON_NAME
    if (d.kind == Kind::init) return fmt::format("ncclCommInitRank({} ranks, id {:016x})", d.count, d.type);
    return fmt::format("{}(count {}, {}, root {})", d.kind == Kind::reduce ? "ncclReduce" : "ncclBroadcast", d.count,
                       type, d.root);
}

// Guards calls of MPI.
std::mutex mpi_mutex;

// A group of calls in flight.
struct Operation {
    enum class Stage { opening, agreeing, explaining, moving };
    std::vector<Call> calls;
    Stage stage{};
    std::vector<Description> descriptions;
    std::vector<Digest> digests;                   // by rank
    std::vector<std::vector<Description>> theirs;  // by rank: the first calls of ranks whose digests differ
    std::vector<MPI_Request> requests;
    std::vector<int> peers;  // ranks of the requests
};

// A difference between two ranks' calls, or a failure of MPI.
struct Failure {
    ncclResult_t result;
    std::string words;
};

void check(int status, const char* what) {
    if (status == MPI_SUCCESS) return;
    char words[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(status, words, &length);
    throw Failure{ncclRemoteError, fmt::format("{}: {}", what, words)};
}

class Communicator {
public:
    const int rank, size;

    Communicator(int rank, int size) : rank(rank), size(size) {}
    ~Communicator() {
        std::lock_guard lock(mpi_mutex);
        if (mpi_ != MPI_COMM_NULL && !aborted_ && error_ == ncclSuccess) MPI_Comm_free(&mpi_);
    }

    // Returns when the calls are done or the communicator is aborted. After an error only an abort ends the wait, as
    // with NCCL, whose kernel then waits forever. An initialization also returns after an error.
    void run(std::vector<Call> calls);

    void abort() {
        std::lock_guard lock(mutex_);
        aborted_ = true;
    }

    ncclResult_t error(std::string& words) const {
        std::lock_guard lock(mutex_);
        words = words_;
        return error_;
    }

private:
    bool advance(Operation& o);
    bool arrived(Operation& o);
    void send(Operation& o, const void* data, int64_t bytes, int to);
    void receive(Operation& o, void* data, int64_t bytes, int from);
    void agree(Operation& o);
    void compare(Operation& o);
    [[noreturn]] void explain(const Operation& o) const;
    void move(Operation& o);
    void add_up(Operation& o);
    template <typename T>
    void add_in_order(const Call& call, const std::byte* terms) const;
    int64_t staged_bytes(const Call& call) const;
    void note_missing(const Operation& o);

    MPI_Comm mpi_ = MPI_COMM_NULL;
    std::vector<std::byte> staging_;  // the other ranks' terms of the sums that this rank computes
    int64_t number_ = 0;              // of the current operation

    mutable std::mutex mutex_;  // guards the following members
    bool aborted_ = false;
    ncclResult_t error_ = ncclSuccess;
    std::string words_;  // the error's message, or the missing ranks
};

// For tests: with NCCL_DIE_AT=N the process kills itself when it begins its N-th collective.
void die_if_asked() {
    static const char* const at = std::getenv("NCCL_DIE_AT");
    static std::atomic<int> begun = 0;
    if (at && ++begun == std::atoi(at)) std::raise(SIGKILL);
}

void Communicator::run(std::vector<Call> calls) {
    die_if_asked();
    Operation o;
    o.calls = std::move(calls);
    const bool opening = o.calls[0].is.kind == Kind::init;
    // Held between steps too, because other ranks may access the memory given to MPI at any time.
    const teon::cpu::DeviceAccess access;
    // Polls with pauses, because the ranks share the processors with kernels.
    for (int pause = 10;; pause = std::min(2 * pause, 200)) {
        {
            std::lock_guard lock(mutex_);
            if (aborted_) return;
            if (error_ != ncclSuccess && opening) return;
        }
        if (error_ == ncclSuccess) {
            const auto stage = o.stage;
            try {
                std::lock_guard lock(mpi_mutex);
                if (advance(o)) break;
            } catch (const Failure& f) {
                std::lock_guard lock(mutex_);
                error_ = f.result;
                words_ = f.words;
                continue;
            }
            if (o.stage != stage) pause = 10;
            note_missing(o);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(pause));
    }
    ++number_;
    std::lock_guard lock(mutex_);
    words_.clear();
}

// Advances the operation as far as possible without waiting. Returns true when it is done.
bool Communicator::advance(Operation& o) {
    using Stage = Operation::Stage;
    if (o.descriptions.empty()) {
        for (const Call& call : o.calls) o.descriptions.push_back(call.is);
        if (o.descriptions[0].kind != Kind::init) {
            agree(o);
        } else {
            o.peers.push_back(-1);
            check(MPI_Comm_idup(MPI_COMM_WORLD, &mpi_, &o.requests.emplace_back()), "making a communicator");
        }
        return false;
    }
    if (!arrived(o)) return false;
    switch (o.stage) {
        case Stage::opening:
            check(MPI_Comm_set_errhandler(mpi_, MPI_ERRORS_RETURN), "making a communicator");
            agree(o);
            return false;
        case Stage::agreeing:
            compare(o);
            return false;
        case Stage::explaining:
            explain(o);
        case Stage::moving:
            add_up(o);
            return true;
    }
    return true;
}

// Records which ranks this one waits for, for messages.
void Communicator::note_missing(const Operation& o) {
    std::string ranks;
    for (int r = 0; r < size; ++r) {
        bool waits = false;
        for (size_t i = 0; i < o.requests.size(); ++i) waits |= o.requests[i] != MPI_REQUEST_NULL && o.peers[i] == r;
        if (waits) ranks += fmt::format("{}rank {}", ranks.empty() ? "" : ", ", r);
    }
    std::lock_guard lock(mutex_);
    words_ = ranks.empty() ? "" : ranks + " not heard of";
}

void Communicator::send(Operation& o, const void* data, int64_t bytes, int to) {
    if (bytes > 0) fault_in(data);
    for (int64_t begin = 0; begin < bytes; begin += kLongest) {
        o.peers.push_back(to);
        check(
            MPI_Isend(static_cast<const std::byte*>(data) + begin, static_cast<int>(std::min(kLongest, bytes - begin)),
                      MPI_BYTE, to, 0, mpi_, &o.requests.emplace_back()),
            "sending");
    }
}

void Communicator::receive(Operation& o, void* data, int64_t bytes, int from) {
    if (bytes > 0) fault_in(data);
    for (int64_t begin = 0; begin < bytes; begin += kLongest) {
        o.peers.push_back(from);
        check(MPI_Irecv(static_cast<std::byte*>(data) + begin, static_cast<int>(std::min(kLongest, bytes - begin)),
                        MPI_BYTE, from, 0, mpi_, &o.requests.emplace_back()),
              "receiving");
    }
}

bool Communicator::arrived(Operation& o) {
    std::vector<int> indices(o.requests.size());
    int count = 0;
    check(MPI_Testsome(static_cast<int>(o.requests.size()), o.requests.data(), &count, indices.data(),
                       MPI_STATUSES_IGNORE),
          "exchanging data with the other ranks");
    if (!std::all_of(o.requests.begin(), o.requests.end(), [](MPI_Request r) { return r == MPI_REQUEST_NULL; }))
        return false;
    o.requests.clear();
    o.peers.clear();
    return true;
}

void Communicator::agree(Operation& o) {
    o.digests.resize(static_cast<size_t>(size));
    const auto bytes = o.descriptions.size() * sizeof(Description);
    o.digests[rank] = {static_cast<int64_t>(o.descriptions.size()),
                       teon::hash_of({reinterpret_cast<const char*>(o.descriptions.data()), bytes})};
    for (int r = 0; r < size; ++r) {
        if (r == rank) continue;
        send(o, &o.digests[rank], sizeof(Digest), r);
        receive(o, &o.digests[r], sizeof(Digest), r);
    }
    o.stage = Operation::Stage::agreeing;
}

// Starts the transfer if all digests are equal. Otherwise ranks whose digests differ exchange their calls, as many as
// both have. Every rank comes to the same result, because each has all digests.
void Communicator::compare(Operation& o) {
    if (std::all_of(o.digests.begin(), o.digests.end(), [&](const Digest& d) { return d == o.digests[rank]; }))
        return move(o);
    o.theirs.resize(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) {
        if (o.digests[r] == o.digests[rank]) continue;
        o.theirs[r].resize(static_cast<size_t>(std::min(o.digests[r].calls, o.digests[rank].calls)));
        const auto bytes = static_cast<int64_t>(o.theirs[r].size() * sizeof(Description));
        send(o, o.descriptions.data(), bytes, r);
        receive(o, o.theirs[r].data(), bytes, r);
    }
    o.stage = Operation::Stage::explaining;
}

void Communicator::explain(const Operation& o) const {
    for (int r = 0; r < size; ++r) {
        const std::vector<Description>& theirs = o.theirs[r];
        for (size_t i = 0; i < theirs.size(); ++i) {
            if (theirs[i] == o.descriptions[i]) continue;
            const std::string in_group = o.descriptions.size() > 1 ? fmt::format(", call {} of its group", i + 1) : "";
            throw Failure{ncclInvalidUsage,
                          fmt::format("rank {} called {} and rank {} {} as operation {}{}", rank,
                                      text_of(o.descriptions[i]), r, text_of(theirs[i]), number_, in_group)};
        }
        if (!theirs.empty())
            throw Failure{
                ncclInvalidUsage,
                fmt::format("rank {} called a group of {} from {} on and rank {} one of {} as operation {}", rank,
                            o.descriptions.size(), text_of(o.descriptions[0]), r, o.digests[r].calls, number_)};
    }
    throw Failure{ncclInvalidUsage, fmt::format("other ranks do not agree about operation {}", number_)};
}

void Communicator::move(Operation& o) {
    int64_t staged = 0;
    for (const Call& call : o.calls) staged += staged_bytes(call);
    staging_.resize(std::max(staging_.size(), static_cast<size_t>(staged)));
    std::byte* staging = staging_.data();
    for (const Call& call : o.calls) {
        if (call.is.kind == Kind::init) continue;
        const int64_t bytes = call.is.count * size_of(call.is.type);
        const int root = static_cast<int>(call.is.root);
        std::byte* next = staging;
        for (int r = 0; r < size; ++r) {
            if (r == rank) continue;
            if (call.is.kind == Kind::broadcast) {
                if (rank == root) send(o, call.from, bytes, r);
                if (r == root) receive(o, call.to, bytes, r);
            } else {
                if (r == root) send(o, call.from, bytes, r);
                if (rank == root) {
                    receive(o, next, bytes, r);
                    next += bytes;
                }
            }
        }
        staging += staged_bytes(call);
        if (call.is.kind == Kind::broadcast && rank == root && call.to != call.from)
            std::memcpy(call.to, call.from, static_cast<size_t>(bytes));
    }
    o.stage = Operation::Stage::moving;
}

void Communicator::add_up(Operation& o) {
    const std::byte* terms = staging_.data();
    for (const Call& call : o.calls) {
        if (call.is.kind != Kind::reduce || call.is.root != rank) continue;
        call.is.type == ncclFloat32 ? add_in_order<float>(call, terms) : add_in_order<teon::bf16>(call, terms);
        terms += staged_bytes(call);
    }
}

// Returns the bytes for the other ranks' terms of a sum that this rank computes, aligned for any type that follows.
int64_t Communicator::staged_bytes(const Call& call) const {
    if (call.is.kind != Kind::reduce || call.is.root != rank) return 0;
    return teon::round_up(call.is.count * (size - 1) * size_of(call.is.type), int64_t{sizeof(float)});
}

// Computes ((x_0 + x_1) + x_2) + .., rounded to T after each addition, like NCCL, where each rank passes a sum on.
// `terms` holds the x of the other ranks, one after the other.
template <typename T>
void Communicator::add_in_order(const Call& call, const std::byte* terms) const {
    const int64_t n = call.is.count;
    const T* mine = reinterpret_cast<const T*>(call.from);
    const T* others = reinterpret_cast<const T*>(terms);
    T* to = reinterpret_cast<T*>(call.to);
    constexpr int64_t kBlock = 4096;
    T sum[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
        const int64_t count = std::min(kBlock, n - begin);
        for (int r = 0; r < size; ++r) {
            const int slot = r < rank ? r : r - 1;  // in `terms`, which lack this rank's
            const T* from = (r == rank ? mine : others + slot * n) + begin;
            if (r == 0) {
                std::copy(from, from + count, sum);
            } else {
                for (int64_t i = 0; i < count; ++i)
                    sum[i] = T(static_cast<float>(sum[i]) + static_cast<float>(from[i]));
            }
        }
        std::copy(sum, sum + count, to + begin);
    }
}

}  // namespace

// Queued calls keep the communicator alive.
struct ncclComm {
    std::shared_ptr<Communicator> shared;
    cudaStream_t stream = nullptr;  // the last one used
};

namespace {

// The calling thread's group.
struct Group {
    int depth = 0;
    ncclComm* comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Call> calls;
};
thread_local Group group;

ncclResult_t launch() {
    if (group.calls.empty()) return ncclSuccess;
    group.comm->stream = group.stream;
    const cudaError_t status = teon::cpu::enqueue_async(
        group.stream, "a collective of NCCL",
        [comm = group.comm->shared, calls = std::exchange(group.calls, {})] { comm->run(calls); });
    return status == cudaSuccess ? ncclSuccess : fail(ncclUnhandledCudaError, cudaGetErrorString(status));
}

ncclResult_t check_memory(const char* name, const void* p, int64_t bytes) {
    std::string why;
    if (bytes == 0 || teon::cpu::is_device_memory(p, bytes, why)) return ncclSuccess;
    return fail(ncclInvalidArgument, fmt::format("{}: {} bytes at {} are not device memory{}{}", name, bytes, p,
                                                 why.empty() ? "" : ": ", why));
}

ncclResult_t call(const char* name, Call c, ncclComm_t comm, cudaStream_t stream) {
    if (!comm || !stream) return fail(ncclInvalidArgument, fmt::format("{}: no communicator or no stream", name));
    if (c.is.root < 0 || c.is.root >= comm->shared->size)
        return fail(ncclInvalidArgument, fmt::format("{}: root {} of {} ranks", name, c.is.root, comm->shared->size));
    const bool is_root = c.is.root == comm->shared->rank;
    const int64_t bytes = c.is.count * size_of(c.is.type);
    const bool reads = is_root || c.is.kind == Kind::reduce;
    const bool writes = is_root || c.is.kind == Kind::broadcast;
    if (reads && check_memory(name, c.from, bytes) != ncclSuccess) return ncclInvalidArgument;
    if (writes && check_memory(name, c.to, bytes) != ncclSuccess) return ncclInvalidArgument;
    if (is_root && c.from != c.to && c.from < c.to + bytes && c.to < c.from + bytes)
        return fail(ncclInvalidArgument, fmt::format("{}: sendbuff and recvbuff overlap, but are not the same", name));
    if (!group.calls.empty() && (group.comm != comm || group.stream != stream))
        return fail(ncclInvalidUsage,
                    fmt::format("{}: all calls of a group must use the same communicator and stream", name));
    group.comm = comm;
    group.stream = stream;
    group.calls.push_back(c);
    return group.depth > 0 ? ncclSuccess : launch();
}

Call described(Kind kind, const void* from, void* to, size_t count, ncclDataType_t type, int root) {
    return {{kind, type, root, static_cast<int64_t>(count)},
            static_cast<const std::byte*>(from),
            static_cast<std::byte*>(to)};
}

}  // namespace

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
    int initialized = 0;
    int size = 0;
    int mpi_rank = 0;
    MPI_Initialized(&initialized);
    if (!initialized) return fail(ncclInvalidUsage, "ncclCommInitRank: MPI is not initialized");
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    if (size != nranks || mpi_rank != rank)
        return fail(ncclInvalidArgument, fmt::format("ncclCommInitRank: rank {} of {}, but MPI says {} of {}", rank,
                                                     nranks, mpi_rank, size));
    auto made = std::make_unique<ncclComm>();
    made->shared = std::make_shared<Communicator>(rank, nranks);
    const auto hash = static_cast<int64_t>(teon::hash_of({id.internal, sizeof id.internal}));
    made->shared->run({{{Kind::init, hash, 0, nranks}}});
    if (const ncclResult_t error = made->shared->error(last_error); error != ncclSuccess) return error;
    *comm = made.release();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm->stream) cudaStreamSynchronize(comm->stream);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->shared->abort();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    std::string words;
    *error = comm->shared->error(words);
    return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t comm) {
    if (comm) comm->shared->error(last_error);
    return last_error.c_str();
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
    if ((datatype != ncclFloat32 && datatype != ncclBfloat16) || op != ncclSum)
        return fail(ncclInvalidArgument, "ncclReduce: only float32 and bfloat16 are summed here");
    return call("ncclReduce", described(Kind::reduce, sendbuff, recvbuff, count, datatype, root), comm, stream);
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return call("ncclBroadcast", described(Kind::broadcast, sendbuff, recvbuff, count, datatype, root), comm, stream);
}

ncclResult_t ncclGroupStart() {
    ++group.depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: no group was started");
    return --group.depth > 0 ? ncclSuccess : launch();
}

#else

ncclResult_t ncclCommInitRank(ncclComm_t*, int, ncclUniqueId, int) {
    return fail(ncclSystemError, "this program was built without MPI: install libopenmpi-dev and build again");
}
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclInvalidArgument; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclInvalidArgument; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*) { return ncclInvalidArgument; }
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t) {
    return ncclInvalidArgument;
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclInvalidArgument;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }

#endif
