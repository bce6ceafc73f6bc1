// The functions that host code by nvcc calls. They register a program's device code before main(), and launch kernels
// by the addresses of their host functions. Device code is decoded at its first use.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/integer.h"
#include "cpu/counts.h"
#include "cpu/error.h"
#include "cpu/stream.h"
#include "gpusim/abi/devices.h"
#include "gpusim/abi/kernels.h"
#include "gpusim/abi/layouts.h"
#include "gpusim/decode.h"
#include "gpusim/fat_binary.h"
#include "gpusim/host/environment.h"
#include "gpusim/host/pages.h"
#include "gpusim/limits.h"
#include "gpusim/opcodes.h"
#include "gpusim/report.h"
#include "gpusim/run.h"

namespace teon::gpusim {

namespace {

// The device code of one source file.
struct LoadedModule {
    const void* fat_binary;
    std::once_flag once;
    Module module;
    Symbols symbols;
    struct alignas(256) Piece {
        unsigned char bytes[256];
    };
    std::vector<std::vector<Piece>> variables;  // memory of .global and .const variables
    std::vector<Range> ranges;

    explicit LoadedModule(const void* fat_binary) : fat_binary(fat_binary) {}
    void load() {
        parse_module(module, ptx_of_fat_binary(fat_binary, device().capability));
        for (const Variable& v : module.variables) {
            if (v.space == Space::shared) continue;
            auto& memory = variables.emplace_back(v.bytes / sizeof(Piece) + 1);
            std::memcpy(memory.data(), v.init.data(), std::min(v.init.size(), v.bytes));
            const auto begin = reinterpret_cast<uintptr_t>(memory.data());
            symbols.global[v.name] = begin;
            ranges.push_back({begin, begin + v.bytes});
        }
    }
};

struct Kernel {
    LoadedModule* module;
    std::string name;  // mangled
    std::once_flag once;
    std::unique_ptr<Program> decoded = nullptr;
    std::optional<size_t> asked = {};  // bytes of dynamic shared memory, set by cudaFuncSetAttribute

    KernelCounts counts = {};

    size_t granted() { return asked.value_or(unasked_dynamic_shared(program())); }

    const Program& program() {
        std::call_once(module->once, [this] { module->load(); });
        std::call_once(once, [this] { decoded = decode(module->module, module->symbols, name); });
        return *decoded;
    }
};

// A variable of device code, by the address of its host shadow.
struct Symbol {
    LoadedModule* module;
    std::string name;
    size_t bytes;
};

struct Registry {
    std::mutex mutex;
    std::map<const void*, Symbol> symbols;
    std::vector<std::unique_ptr<LoadedModule>> modules;
    std::map<const void*, std::unique_ptr<Kernel>> kernels;  // by host function

    static Registry& get() {  // never destroyed: work may run while the process ends
        static auto* r = new Registry;
        return *r;
    }
    // Finds a kernel by its host function, or by the handle from __cudaGetKernel.
    Kernel* find(const void* function) {
        const std::lock_guard lock(mutex);
        if (const auto it = kernels.find(function); it != kernels.end()) return it->second.get();
        for (const auto& [host, kernel] : kernels)
            if (kernel.get() == function) return kernel.get();
        return nullptr;
    }
};

const Order& order() {
    static const Order chosen = [] {
        const char* text = std::getenv("SIMT_ORDER");
        return from_environment([&] { return parse_order(text && *text ? text : "forward"); });
    }();
    return chosen;
}

// The file that CUDA_COUNTS names; if empty, nothing is counted.
const std::string& counts_path() {
    static const std::string path = std::getenv("CUDA_COUNTS") ? std::getenv("CUDA_COUNTS") : "";
    return path;
}

// {"capability": 90, "kernel": [{"name", "launches", "code": [row of each instruction]}]}, where a row is
// [opcode, place, warps, lanes, transactions, at_least, the row to which a branch goes or -1].
void write_counts() {
    nlohmann::json kernels = nlohmann::json::array();
    for (const auto& [host, kernel] : Registry::get().kernels) {
        const KernelCounts& counts = kernel->counts;
        if (counts.code.empty()) continue;
        const Program& p = kernel->program();
        nlohmann::json code = nlohmann::json::array();
        for (size_t k = 0; k < p.code.size(); ++k) {
            const Instruction& i = p.code[k];
            const Count& c = counts.code[k];
            code.push_back({opcode_name(i.opcode), p.place(i), c.warps, c.lanes, c.transactions, c.at_least, i.target});
        }
        kernels.push_back({{"name", p.name}, {"launches", counts.launches}, {"code", code}});
    }
    std::ofstream file(counts_path());
    file << nlohmann::json{{"capability", device().capability}, {"kernel", kernels}} << '\n';
    if (!file.flush()) fmt::print(stderr, "CUDA_COUNTS={}: cannot be written\n", counts_path());
}

Extent3 extent(dim3 d) { return {d.x, d.y, d.z}; }

// Calls use(), which decodes device code. No exception must leave a C function: returns it as an error. Code that
// cannot be decoded is an error of the device, which every later call returns: a program that takes the status of one
// call for "no such kernel" and uses another kernel would lose it.
template <typename Use>
cudaError_t with_code(Use&& use) {
    try {
        return use();
    } catch (const NoCode& error) {
        return cpu::fail(cudaErrorNoKernelImageForDevice, error.what());
    } catch (const std::exception& error) {
        cpu::fail_device(cudaErrorInvalidPtx, error.what());
        return cpu::fail(cudaErrorInvalidPtx, error.what());
    }
}

// Calls f(kernel) for a kernel of the program.
template <typename F>
cudaError_t with_kernel(const char* what, const void* function, F&& f) {
    Kernel* const kernel = Registry::get().find(function);
    if (!kernel) return cpu::fail(cudaErrorInvalidDeviceFunction, "{}: no kernel of the program", what);
    return with_code([&] { return f(*kernel); });
}

// The state of the barrier of all blocks of a cooperative launch, which cooperative_groups keeps.
struct GridBarrier {
    alignas(16) uint32_t words[16] = {};
};

constexpr auto kCooperativeLaunchTooLarge = static_cast<cudaError_t>(720);  // cudaErrorCooperativeLaunchTooLarge

// The blocks of a cooperative launch must be on the device at the same time.
cudaError_t check_residence(const void* function, const Launch& l) {
    int blocks = 0;
    const auto threads = static_cast<int>(l.block.count());
    if (const cudaError_t status = count_blocks(&blocks, function, threads, l.dynamic_shared)) return status;
    const uint64_t most_blocks = static_cast<uint64_t>(blocks) * static_cast<uint64_t>(device().multiprocessors);
    if (l.grid.count() <= most_blocks) return cudaSuccess;
    return cpu::fail(kCooperativeLaunchTooLarge, "a cooperative launch of {} blocks; the device holds {}",
                     l.grid.count(), most_blocks);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t stream,
                   const void* const* arguments, bool early = false, Extent3 cluster = {}, bool cooperative = false) {
    bool is_decoded = false;
    const cudaError_t status = with_kernel("a launch", function, [&](Kernel& kernel) {
        const Program& p = kernel.program();
        const bool fixed = p.cluster.count() > 0;  // __cluster_dims__
        const Launch l = {extent(grid), extent(block), fixed ? p.cluster : cluster, dynamic_shared, early, order()};
        is_decoded = true;
        ++cpu::counters.launches;
        if (const cudaError_t status = cpu::check_device(stream, p.name.c_str())) return status;
        if (const cudaError_t status = check_launch(p, device(), kernel.granted(), l)) return status;
        if (cooperative)
            if (const cudaError_t status = check_residence(function, l)) return status;
        return cpu::submit(
            stream, p.name.c_str(),
            [&kernel, &p, l, index = cpu::current_device(), parameters = pack(p, arguments), cooperative] {
                std::vector<Range> memory = kernel.module->ranges;
                for (const auto& [begin, bytes] : device_allocations(index)) memory.push_back({begin, begin + bytes});
                Launch launch = l;
                GridBarrier barrier;
                if (cooperative) {
                    launch.cooperative = reinterpret_cast<uintptr_t>(&barrier);
                    memory.push_back({launch.cooperative, launch.cooperative + sizeof barrier});
                }
                std::sort(memory.begin(), memory.end(),
                          [](const Range& a, const Range& b) { return a.begin < b.begin; });
                KernelCounts* const counts = counts_path().empty() ? nullptr : &kernel.counts;
                report_launch(p.name, l.grid.count());
                try {
                    run(p, launch, parameters, memory, counts);
                } catch (const std::exception& error) {
                    report_alarm(error.what());
                    throw;
                }
                if (counts) ++counts->launches;
            });
    });
    // Programs check launches late: a kernel that cannot be decoded is an error of the device.
    if (status != cudaSuccess && !is_decoded) cpu::fail_device(status, cudaGetErrorString(status));
    return status;
}

struct Configuration {
    dim3 grid, block;
    size_t dynamic_shared;
    cudaStream_t stream;
};
thread_local std::vector<Configuration> pushed;  // by <<<>>>, until the launch pops it

template <typename T>
void put(void* structure, size_t offset, const T& value) {
    std::memcpy(static_cast<char*>(structure) + offset, &value, sizeof value);
}

}  // namespace

cudaError_t limits_of_kernel(const void* function, KernelLimits& limits) {
    return with_kernel("occupancy", function, [&](Kernel& kernel) {
        const Program& p = kernel.program();
        limits.static_shared = p.static_shared;
        limits.threads = p.max_threads ? p.max_threads : 1024;
        limits.registers = p.registers;
        return cudaSuccess;
    });
}

cudaError_t address_of_symbol(const void* symbol, void** address, size_t* bytes) {
    Registry& r = Registry::get();
    const std::lock_guard lock(r.mutex);
    const auto it = r.symbols.find(symbol);
    if (it == r.symbols.end()) return cpu::fail(cudaErrorInvalidValue, "no variable of the program's device code");
    LoadedModule& module = *it->second.module;
    const cudaError_t status = with_code([&] {
        std::call_once(module.once, [&] { module.load(); });
        return cudaSuccess;
    });
    if (status != cudaSuccess) return status;
    const auto place = module.symbols.global.find(it->second.name);
    if (place == module.symbols.global.end())
        return cpu::fail(cudaErrorInvalidValue, "the device code has no variable {}", it->second.name);
    if (address) *address = reinterpret_cast<void*>(place->second);
    if (bytes) *bytes = it->second.bytes;
    return cudaSuccess;
}

}  // namespace teon::gpusim

using namespace teon::gpusim;
using teon::cpu::device_error;
using teon::cpu::fail;

extern "C" {

// ---- registration ---------------------------------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
    Registry& r = Registry::get();
    const std::lock_guard lock(r.mutex);
    if (r.modules.empty() && !counts_path().empty()) std::atexit(write_counts);
    r.modules.push_back(std::make_unique<LoadedModule>(wrapper));
    return reinterpret_cast<void**>(r.modules.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
    Registry& r = Registry::get();
    const std::lock_guard lock(r.mutex);
    r.kernels[host].reset(new Kernel{reinterpret_cast<LoadedModule*>(module), name, {}});
}

void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t bytes, int, int) {
    Registry& r = Registry::get();
    const std::lock_guard lock(r.mutex);
    r.symbols[host] = {reinterpret_cast<LoadedModule*>(module), name, bytes};
}

cudaError_t __cudaGetKernel(const void** handle, const void* host) {
    *handle = Registry::get().find(host);
    return *handle ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

// ---- launches -------------------------------------------------------------------------------------------------------

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t stream) {
    pushed.push_back({grid, block, dynamic_shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_shared, void* stream) {
    if (pushed.empty()) return fail(cudaErrorInvalidConfiguration, "a launch without its configuration");
    *grid = pushed.back().grid;
    *block = pushed.back().block;
    *dynamic_shared = pushed.back().dynamic_shared;
    *static_cast<cudaStream_t*>(stream) = pushed.back().stream;
    pushed.pop_back();
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                             cudaStream_t stream) {
    return launch(function, grid, block, dynamic_shared, stream, arguments);
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                               cudaStream_t stream) {
    return launch(kernel, grid, block, dynamic_shared, stream, arguments);
}

cudaError_t cudaLaunchKernelExC(const LaunchConfiguration* c, const void* function, void** arguments) {
    bool early = false;
    bool cooperative = false;
    Extent3 cluster;
    for (unsigned k = 0; k < c->count; ++k) {
        const LaunchAttribute& attribute = c->attributes[k];
        if (attribute.id == kClusterDimension) {
            std::memcpy(&cluster, attribute.value, sizeof cluster);
        } else if (attribute.id == kProgrammaticStreamSerialization) {
            int allowed = 0;
            std::memcpy(&allowed, attribute.value, sizeof allowed);
            early = allowed && device().capability >= 90;
        } else if (attribute.id == kCooperative) {
            int allowed = 0;
            std::memcpy(&allowed, attribute.value, sizeof allowed);
            cooperative = allowed;
        } else if (attribute.id != kPriority) {
            return fail(cudaErrorInvalidValue, "launch attribute {}", attribute.id);
        }
    }
    if (early) ++teon::cpu::counters.early_launches;
    return launch(function, c->grid, c->block, c->dynamic_shared, c->stream, arguments, early, cluster, cooperative);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        size_t dynamic_shared, cudaStream_t stream) {
    return launch(function, grid, block, dynamic_shared, stream, arguments, false, {}, true);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    return with_kernel("cudaFuncSetAttribute", function, [&](Kernel& kernel) {
        // Hints, and leave for clusters of more than 8 blocks, which the model always gives.
        if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout ||
            attribute == cudaFuncAttributeNonPortableClusterSizeAllowed)
            return device_error();
        if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
            return fail(cudaErrorInvalidValue, "cudaFuncSetAttribute: attribute {}", static_cast<int>(attribute));
        const size_t limit = most_dynamic_shared(kernel.program(), device());
        if (value < 0 || static_cast<size_t>(value) > limit)
            return fail(cudaErrorInvalidValue, "{}: {} bytes of dynamic shared memory; a block has {} for it",
                        kernel.program().name, value, limit);
        kernel.asked = static_cast<size_t>(value);
        return device_error();
    });
}

cudaError_t cudaFuncGetAttributes(void* attributes, const void* function) {
    return with_kernel("cudaFuncGetAttributes", function, [&](Kernel& kernel) {
        const Program& p = kernel.program();
        struct {
            size_t sharedSizeBytes, localSizeBytes;
            int maxThreadsPerBlock, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
        } a = {p.static_shared,  p.local_bytes,       p.max_threads ? p.max_threads : 1024,
               p.module->target, device().capability, static_cast<int>(kernel.granted())};
        std::memset(attributes, 0, kFunctionAttributesBytes);
#define TEON_PUT(member, type, offset) put<type>(attributes, offset, a.member);
        TEON_FUNCTION_ATTRIBUTES(TEON_PUT)
#undef TEON_PUT
        return cudaSuccess;
    });
}

}  // extern "C"
