// Kernels that tests write in PTX.
#pragma once

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

    std::vector<uint32_t> run(std::vector<uint32_t> in, Launch launch, KernelCounts* counts, bool maps_out) const {
        std::vector<uint32_t> out = in;
        const void* out_address = out.data();
        const void* in_address = in.data();
        TensorMap map = map_;
        map.address = reinterpret_cast<uintptr_t>(maps_out ? out.data() : in.data());
        const void* arguments[] = {&out_address, &in_address, &map};
        const auto range = [](const std::vector<uint32_t>& v) {
            const auto begin = reinterpret_cast<uintptr_t>(v.data());
            return Range{begin, begin + 4 * v.size()};
        };
        std::vector<Range> memory = {range(out), range(in)};
        if (memory[1].begin < memory[0].begin) std::swap(memory[0], memory[1]);
        gpusim::run(*program_, launch, pack(*program_, arguments), memory, counts);
        return out;
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
    TensorMap map_;
    Module module_;
    std::unique_ptr<Program> program_;
};

}  // namespace teon::test
