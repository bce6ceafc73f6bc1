#include "gpusim/host/schedule.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/engine.h"
#include "cpu/system_memory.h"
#include "gpusim/host/environment.h"
#include "gpusim/host/pages.h"

namespace teon::gpusim {

using cpu::Clock;
using cpu::DeviceAccess;
using cpu::engine;
using cpu::OperationPtr;

namespace {

const cudaStream_t kLegacyStream = reinterpret_cast<cudaStream_t>(uintptr_t{1});  // cudaStreamLegacy

bool has_default_stream() {
    static const bool has = from_environment([] {
        const char* const text = std::getenv("CUDA_DEFAULT_STREAM");
        const std::string setting = text && *text ? text : "refuse";
        CHECK(setting == "refuse" || setting == "legacy", "CUDA_DEFAULT_STREAM is \"{}\"; it must be refuse or legacy",
              setting);
        return setting == "legacy";
    });
    return has;
}

// The engine's mutex guards it.
struct Schedule {
    std::vector<OperationPtr> ready;  // operations without predecessors
    bool running = false;             // an operation is running
    bool random = false;
    std::thread::id queued_by;  // the thread that queued last
    uint64_t seed = 0;
    uint64_t state = 0;
    Clock::time_point last_call = Clock::now();
    bool watched = false;
    std::map<int, cudaStream_t> default_streams;  // by device

    Schedule() {
        const char* const order = std::getenv("CUDA_ORDER");
        if (order) from_environment([&] { parse(order); });
    }

    void parse(const std::string& order) {
        uint64_t number = 0;
        const bool is_random = order.starts_with("random:") && order.size() > 7;
        const char* begin = order.data() + (is_random ? 7 : 0);
        const char* end = order.data() + order.size();
        const auto [rest, status] = std::from_chars(begin, end, number);
        CHECK(order == "late" || (is_random && status == std::errc() && rest == end),
              "CUDA_ORDER is \"{}\"; it must be late or random:SEED, with SEED a non-negative integer", order);
        random = is_random;
        seed = number;
        state = number;
    }

    void add_ready(const OperationPtr& operation) {
        operation->place = ready.size();
        ready.push_back(operation);
    }

    OperationPtr random_ready() { return ready[splitmix64(state) % ready.size()]; }

    // Runs the operation. Releases the mutex meanwhile.
    void run(std::unique_lock<std::mutex>& lock, OperationPtr operation) {
        std::swap(ready[operation->place], ready.back());
        ready[operation->place]->place = operation->place;
        ready.pop_back();
        running = true;
        lock.unlock();
        work_in_progress = operation->work ? operation->what : nullptr;
        execute(*operation);
        work_in_progress = nullptr;
        lock.lock();
        running = false;
        last_call = Clock::now();
        engine().finish(operation);
    }

    // Runs the operations that `next` returns until `done`. Opens device memory once for all of them, because opening
    // it takes system calls.
    template <typename Done, typename Next>
    void run_until(std::unique_lock<std::mutex>& lock, Done done, Next next) {
        std::optional<DeviceAccess> access;
        while (!done()) {
            if (running) {
                access.reset();
                engine().changed.wait(lock);
            } else {
                if (!access) access.emplace();
                run(lock, next());
            }
        }
    }

    // Runs in a thread of its own.
    void watch() {
        for (std::unique_lock lock(engine().mutex);;) {
            engine().changed.wait_for(lock, std::chrono::milliseconds(50));
            if (!running && Clock::now() - last_call > std::chrono::milliseconds(300)) cpu::run_all(lock);
        }
    }
};

Schedule& schedule() {  // never destroyed: threads may outlive main()
    static auto* s = new Schedule;
    return *s;
}

// Returns an operation without predecessors that must run first for `target`, which may be target itself. Follows the
// predecessor added last, so that work of target's own stream comes last.
OperationPtr first_needed(OperationPtr target) {
    while (!target->predecessors.empty()) target = OperationPtr(target->predecessors.back());
    return target;
}

}  // namespace

std::string set_order(const std::string& order) {
    const std::lock_guard lock(engine().mutex);
    Schedule& s = schedule();
    const std::string before = s.random ? fmt::format("random:{}", s.seed) : "late";
    s.parse(order);
    return before;
}

}  // namespace teon::gpusim

namespace teon::cpu {

using gpusim::schedule;
using gpusim::Schedule;

bool has_blocking_streams() { return gpusim::has_default_stream(); }

// One for each device, made when it is first used.
cudaStream_t actual_stream(cudaStream_t stream) {
    if (stream != nullptr && stream != gpusim::kLegacyStream) return stream;
    if (!gpusim::has_default_stream()) return nullptr;
    const std::lock_guard lock(engine().mutex);
    cudaStream_t& of_device = schedule().default_streams[current_device()];
    if (!of_device) engine().alive.insert(of_device = new CUstream_st);
    return of_device;
}

// "Implicit Synchronization": work of the default stream runs after all earlier work of blocking streams, and their
// later work after it.
void before_append(cudaStream_t stream) {
    const auto add_from = [&](cudaStream_t other) {
        for (const OperationPtr& operation : other->predecessors)
            if (!operation->done) stream->predecessors.push_back(operation);
    };
    Engine& e = engine();
    const auto it = schedule().default_streams.find(stream->device);
    if (it == schedule().default_streams.end() || !it->second) return;
    if (stream != it->second) {
        if (std::ranges::find(e.blocking, stream) != e.blocking.end()) add_from(it->second);
        return;
    }
    for (const cudaStream_t other : e.blocking)
        if (other->device == stream->device && !other->capture) add_from(other);
}

bool at_once(cudaStream_t) { return false; }

bool runs_in_call(cudaStream_t, std::function<void()>& work, bool) {
    if (gpusim::dry_run()) work = [] {};
    return false;
}

void operation_added(const OperationPtr& operation) {
    Schedule& s = schedule();
    s.last_call = Clock::now();
    s.queued_by = std::this_thread::get_id();
    if (operation->predecessors.empty()) s.add_ready(operation);
    if (s.watched) return;
    s.watched = true;
    std::thread([&s] { s.watch(); }).detach();
}
void operation_ready(const OperationPtr& operation) { schedule().add_ready(operation); }
void operation_appended(cudaStream_t, const OperationPtr&) {}

void wait_on_stream(Call&, cudaStream_t stream, const OperationPtr& operation) {
    stream->predecessors.push_back(operation);
}

cudaError_t launch_nodes(Call& call, const std::vector<GraphNode>& nodes, cudaStream_t stream) {
    const std::vector<OperationPtr> of_stream = stream->predecessors;
    std::vector<OperationPtr> added;
    for (const GraphNode& node : nodes) {
        std::vector<OperationPtr> predecessors;
        for (const size_t i : node.predecessors) predecessors.push_back(added[i]);
        added.push_back(call.e.add(node.predecessors.empty() ? of_stream : predecessors, node.what, node.work));
    }
    stream->predecessors.insert(stream->predecessors.end(), added.begin(), added.end());
    call.e.append(stream, call.what, nullptr);
    return cudaSuccess;
}

void run_until_done(std::unique_lock<std::mutex>& lock, const OperationPtr& target) {
    Schedule& s = schedule();
    s.run_until(
        lock, [&] { return target->done; }, [&] { return s.random ? s.random_ready() : gpusim::first_needed(target); });
}

// Runs nothing in a thread that only polls (a watchdog): the time of its calls varies, and so would the order.
void run_some(std::unique_lock<std::mutex>& lock) {
    Schedule& s = schedule();
    if (!s.random || s.queued_by != std::this_thread::get_id() || splitmix64(s.state) % 8 != 0) return;
    const uint64_t count = splitmix64(s.state) % 16;
    if (count == 0 || s.running || s.ready.empty()) return;
    uint64_t done = 0;
    s.run_until(
        lock, [&] { return done == count || s.running || s.ready.empty(); },
        [&] {
            ++done;
            return s.random_ready();
        });
}

void run_all(std::unique_lock<std::mutex>& lock) {
    Schedule& s = schedule();
    s.run_until(
        lock, [] { return engine().unfinished == 0; }, [&] { return s.random ? s.random_ready() : s.ready[0]; });
}

std::string_view default_refusals() { return "heuristic"; }

// The first bytes of each page are enough to find data that others keep there.
void disturb_workspace(void* workspace, size_t bytes) {
    constexpr size_t kPage = 4096;
    constexpr size_t kPart = 64;
    auto* const memory = static_cast<char*>(workspace);
    for (size_t at = 0; at < bytes; at += kPage) std::memset(memory + at, kNaN, std::min(kPart, bytes - at));
    if (bytes > kPart) std::memset(memory + bytes - kPart, kNaN, kPart);
}

}  // namespace teon::cpu
