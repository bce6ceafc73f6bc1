#include "gpusim/host/pages.h"

#include <execinfo.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/error.h"
#include "cpu/hardware.h"
#include "cpu/system_memory.h"

namespace teon::gpusim {

using cpu::fail;
using cpu::fail_device;
using cpu::kAlignment;
using cpu::kNaN;

namespace {

// An allocation. A guard page, which cannot be touched, follows its end (rounded up to the alignment), and another one
// precedes its first page.
struct Block {
    size_t bytes;
    char* mapping;  // its first page
    size_t mapped;
    Memory kind;
    int device;
    bool open = true;  // all threads can touch its pages
    bool has(uintptr_t at) const { return at - reinterpret_cast<uintptr_t>(mapping) < mapped; }
    bool contains(uintptr_t begin, uintptr_t at, size_t size) const {
        return at >= begin && at - begin <= bytes && size <= bytes - (at - begin);
    }
};

class Pages {
public:
    static Pages& get() {  // never destroyed: memory may be freed while the process ends
        static auto* m = new Pages;
        return *m;
    }

    void* allocate(size_t bytes, Memory kind, int device) {
        const size_t data = round_up(bytes, kAlignment);
        const size_t mapped = round_up(data, page_);
        char* all = static_cast<char*>(
            mmap(nullptr, mapped + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (all == MAP_FAILED) return nullptr;
        char* mapping = all + page_;
        char* p = mapping + mapped - data;
        const std::lock_guard lock(mutex_);
        Block& block = live_[reinterpret_cast<uintptr_t>(p)] = {bytes, mapping, mapped, kind, device};
        protect(block, true);
        if (!dry_run()) std::memset(mapping, kNaN, mapped);
        if (kind != Memory::pinned) protect(block, false);
        watch_faults();
        return p;
    }

    cudaError_t release(const char* what, void* p, bool pinned) {
        const std::lock_guard lock(mutex_);
        const auto it = live_.find(reinterpret_cast<uintptr_t>(p));
        if (it == live_.end() || (it->second.kind != Memory::device) != pinned) {
            const std::string words = fmt::format("{}: not allocated by the matching call, or already freed", what);
            std::fprintf(stderr, "%s\n", words.c_str());
            return fail(cudaErrorInvalidValue, words);
        }
        Block& block = it->second;
        if (!block.open) protect(block, true);
        std::string wrong;
        const auto* begin = static_cast<unsigned char*>(p);
        const auto* end = begin + block.bytes;
        const auto untouched = [](const unsigned char* from, const void* to) {
            return std::all_of(from, static_cast<const unsigned char*>(to),
                               [](unsigned char c) { return c == (dry_run() ? 0 : kNaN); });
        };
        if (!untouched(reinterpret_cast<unsigned char*>(block.mapping), begin)) wrong = "before the begin";
        if (!untouched(end, block.mapping + block.mapped)) wrong = "behind the end";
        // These addresses are never reused, so that later accesses to them are found.
        if (mmap(block.mapping, block.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                 0) == MAP_FAILED)
            fail_device(cudaErrorMemoryAllocation, fmt::format("{}: {}", what, std::strerror(errno)));
        if (!wrong.empty()) {
            const std::string words =
                fmt::format("{}: something was written {} of the {} bytes", what, wrong, block.bytes);
            std::fprintf(stderr, "%s\n", words.c_str());  // destructors cannot throw
            fail_device(cudaErrorIllegalAddress, words);
        }
        freed_.insert(live_.extract(it));
        return cpu::device_error();
    }

    Memory kind(const void* p, size_t bytes, std::string& why) {
        const std::lock_guard lock(mutex_);
        const uintptr_t at = reinterpret_cast<uintptr_t>(p);
        if (const auto* entry = find(live_, at, bytes)) {
            if (!entry->second.contains(entry->first, at, bytes))
                why = fmt::format("{} bytes at byte {} of an allocation of {}", bytes, at - entry->first,
                                  entry->second.bytes);
            return entry->second.kind;
        }
        if (const auto* entry = find(freed_, at, bytes)) {
            why =
                fmt::format("{} bytes at byte {} of {} that were freed", bytes, at - entry->first, entry->second.bytes);
            return entry->second.kind;
        }
        return Memory::pageable;
    }

    std::vector<std::pair<uintptr_t, size_t>> device_allocations(int device) {
        const std::lock_guard lock(mutex_);
        std::vector<std::pair<uintptr_t, size_t>> all;
        for (const auto& [begin, block] : live_)
            if (block.kind == Memory::mapped || (block.kind == Memory::device && block.device == device))
                all.emplace_back(begin, block.bytes);
        return all;
    }

    void open() {
        if (depth_++ > 0) return;
        if (has_keys_) return set_key(0);
        give_stack();
        const std::lock_guard lock(mutex_);
        if (++open_ == 1) watch_faults();  // test programs may have replaced the handler
    }

    void close() noexcept {
        if (--depth_ > 0) return;
        if (has_keys_) return set_key(kKeyClosed);
        const std::lock_guard lock(mutex_);
        if (--open_ > 0) return;
        for (auto& [begin, block] : live_)
            if (block.kind != Memory::pinned && block.open) protect(block, false);
    }

    void open_to_this_thread() {
        if (depth_++ > 0) return;
        has_keys_ ? set_key(0) : give_stack();
    }

private:
    static constexpr unsigned kKeyClosed = 1;  // PKEY_DISABLE_ACCESS
    static constexpr size_t kFaultStackBytes = 64 * 1024;

    Pages() : key_(static_cast<int>(syscall(SYS_pkey_alloc, 0, kKeyClosed))), has_keys_(key_ >= 0) {}

    void set_key(unsigned rights) {
#if defined(__x86_64__)
        unsigned all;
        unsigned high;
        asm volatile("rdpkru" : "=a"(all), "=d"(high) : "c"(0));
        all = (all & ~(3u << (2 * key_))) | rights << (2 * key_);
        asm volatile("wrpkru" : : "a"(all), "c"(0), "d"(0) : "memory");
#else
        (void)rights;
#endif
    }

    void protect(Block& block, bool open) {
        block.open = open;
        if (has_keys_) {
            syscall(SYS_pkey_mprotect, block.mapping, block.mapped, PROT_READ | PROT_WRITE, open ? 0 : key_);
        } else {
            mprotect(block.mapping, block.mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
    }

    using Blocks = std::map<uintptr_t, Block>;

    // Returns the allocation that [at, at + bytes) touches, itself or its guard pages; null if there is none.
    template <typename Some>  // Blocks, const or not
    auto find(Some& blocks, uintptr_t at, size_t bytes) const -> decltype(&*blocks.begin()) {
        auto it = blocks.upper_bound(at + bytes + page_);
        if (it == blocks.begin()) return nullptr;
        --it;
        const uintptr_t begin = reinterpret_cast<uintptr_t>(it->second.mapping);
        return at < begin + it->second.mapped + page_ && at + bytes + page_ > begin ? &*it : nullptr;
    }

    // ---- faults ----------------------------------------------------------------------------------------------------

    void watch_faults() {
        struct sigaction now;
        sigaction(SIGSEGV, nullptr, &now);
        if (now.sa_sigaction == on_fault) return;
        before_ = now;
        struct sigaction mine = {};
        mine.sa_sigaction = on_fault;
        mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &mine, nullptr);
    }

    // Gives the thread a separate stack for faults, because oneDNN's generated code uses the stack pointer otherwise.
    void give_stack() {
        stack_t now;
        if (sigaltstack(nullptr, &now) != 0 || !(now.ss_flags & SS_DISABLE)) return;
        static thread_local const auto memory = std::make_unique<char[]>(kFaultStackBytes);
        now = {.ss_sp = memory.get(), .ss_flags = 0, .ss_size = kFaultStackBytes};
        sigaltstack(&now, nullptr);
    }

    // Without keys, the first access of a thread that may touch a block opens it, and the end of the last DeviceAccess
    // closes it. Opening all blocks for every operation would cost more than the operations.
    static void on_fault(int signal, siginfo_t* info, void*) {
        Pages& m = get();
        const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
        std::unique_lock lock(m.mutex_, std::try_to_lock);
        if (!lock && depth_ > 0) lock.lock();  // such threads do not hold it while they touch device memory
        auto* live = m.find(m.live_, at, 1);
        auto* block = live ? live : m.find(m.freed_, at, 1);
        if (live && !m.has_keys_ && depth_ > 0 && m.open_ > 0 && live->second.has(at)) {
            if (!live->second.open) m.protect(live->second, true);
            return;
        }
        if (block) {
            const char* who = depth_ > 0 ? work_in_progress.load() : nullptr;
            char text[400];
            const long offset = static_cast<long>(at - block->first);
            const int length =
                std::snprintf(text, sizeof text, "device memory: %s touches byte %ld of %s of %zu bytes%s\n",
                              who ? who : "the host", offset, live ? "an allocation" : "a freed allocation",
                              block->second.bytes, who ? "" : "; only kernels, libraries and copies may touch it");
            if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) {}
            void* frames[32];
            backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
        }
        sigaction(signal, &m.before_, nullptr);  // the access is repeated and ends the program
    }

    const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const int key_;
    const bool has_keys_;
    std::mutex mutex_;
    Blocks live_, freed_;
    int open_ = 0;                              // without keys: number of threads that hold a DeviceAccess
    static inline thread_local int depth_ = 0;  // above 0: this thread may touch device memory
    struct sigaction before_ = {};
};

}  // namespace

bool dry_run() {
    static const bool on = [] {
        const char* text = std::getenv("CUDA_DRY");
        return text && std::string(text) != "0";
    }();
    return on;
}

std::vector<std::pair<uintptr_t, size_t>> device_allocations(int device) {
    return Pages::get().device_allocations(device);
}

void* allocate_pages(size_t bytes, Memory kind, int device) { return Pages::get().allocate(bytes, kind, device); }
cudaError_t release_pages(const char* what, void* p, bool pinned) { return Pages::get().release(what, p, pinned); }

Memory memory_kind(const void* p, size_t bytes, std::string& why) { return Pages::get().kind(p, bytes, why); }

}  // namespace teon::gpusim

namespace teon::cpu {

bool is_device_memory(const void* p, size_t bytes, std::string& why) {
    return gpusim::memory_kind(p, bytes, why) == gpusim::Memory::device;
}

DeviceAccess::DeviceAccess() { gpusim::Pages::get().open(); }
DeviceAccess::~DeviceAccess() { gpusim::Pages::get().close(); }
void begin_device_thread() { gpusim::Pages::get().open_to_this_thread(); }

}  // namespace teon::cpu
