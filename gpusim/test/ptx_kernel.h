// Kernels that tests write in PTX.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpusim/decode.h"
#include "gpusim/run.h"

namespace teon::test {

using namespace teon::gpusim;

// A kernel with this body. At its start, %r0 is the thread's index, and %d0 and %d1 are the addresses of the thread's
// own 32-bit element of `out` and `in`. Registers: %p0-8, %h0-8 (16 bits), %r0-39, %f0-39, %d0-19, %g0-9 (doubles).
// `declarations` precede the kernel. The kernel's parameter `map` is a tensor map of `in`.
class PtxKernel {
public:
    explicit PtxKernel(const std::string& body, const std::string& declarations = "", const TensorMap& map = {})
        : map_(map) {
        parse_module(module_, R"(
            .version 8.0
            .target sm_90a
            .address_size 64
            .file 1 "/somewhere/test.cu"
            )" + declarations + R"(
            .visible .entry kernel(.param .u64 out, .param .u64 in, .param .align 64 .b8 map[128])
            .maxntid 1024, 1, 1
            {
            .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %d<20>; .reg .f64 %g<10>;
            .loc 1 7 0
            ld.param.u64 %d18, [out];
            ld.param.u64 %d19, [in];
            mov.u32 %r0, %tid.x;
            mul.wide.u32 %d17, %r0, 4;
            add.s64 %d0, %d18, %d17;
            add.s64 %d1, %d19, %d17;
            .loc 1 8 0
            )" + body + "\nret;\n}");
        program_ = decode(module_, {}, "kernel");
    }

    // Runs the kernel with `out` initialized to the values of `in`, and returns `out`.
    std::vector<uint32_t> run(std::vector<uint32_t> in, Launch launch, KernelCounts* counts = nullptr) const {
        return run(std::move(in), launch, counts, false);
    }
    // Likewise, with a tensor map of `out`.
    std::vector<uint32_t> run_on_output(std::vector<uint32_t> in, Launch launch) const {
        return run(std::move(in), launch, nullptr, true);
    }

    // Likewise; the kernel may also access `more`.
    std::vector<uint32_t> run_with(std::vector<uint32_t> in, Launch launch, Range more) const {
        return run(std::move(in), launch, nullptr, false, {more});
    }

    std::vector<uint32_t> run(std::vector<uint32_t> in, Launch launch, KernelCounts* counts, bool maps_out,
                              std::vector<Range> memory = {}) const {
        const Aligned out(in);
        const Aligned source(in);
        const void* out_address = out.lines.data();
        const void* in_address = source.lines.data();
        TensorMap map = map_;
        map.address = reinterpret_cast<uintptr_t>(maps_out ? out_address : in_address);
        const void* arguments[] = {&out_address, &in_address, &map};
        const auto range = [&](const void* address) {
            const auto begin = reinterpret_cast<uintptr_t>(address);
            return Range{begin, begin + 4 * in.size()};
        };
        memory.push_back(range(out_address));
        memory.push_back(range(in_address));
        std::ranges::sort(memory, {}, &Range::begin);
        gpusim::run(*program_, launch, pack(*program_, arguments), memory, counts);
        std::memcpy(in.data(), out_address, 4 * in.size());
        return in;
    }
    std::vector<uint32_t> run(const std::vector<uint32_t>& in) const {
        Launch launch;
        launch.block.x = static_cast<uint32_t>(in.size());
        return run(in, launch);
    }

    // Returns the error of a launch with `threads` threads, "" if there is none.
    std::string error(uint32_t threads, Launch launch = {}) const {
        launch.block.x = threads;
        try {
            run(std::vector<uint32_t>(threads, 1), launch);
        } catch (const std::exception& e) { return e.what(); }
        return "";
    }

    const Program& program() const { return *program_; }

private:
    // Words at an address like those of device memory.
    struct Aligned {
        struct alignas(256) Line {
            uint32_t words[64];
        };
        std::vector<Line> lines;
        explicit Aligned(const std::vector<uint32_t>& words) : lines(words.size() / 64 + 1) {
            std::memcpy(lines.data(), words.data(), 4 * words.size());
        }
    };
    TensorMap map_;
    Module module_;
    std::unique_ptr<Program> program_;
};

}  // namespace teon::test
