// Measures, with the clock of the device, the time of every kernel and every matrix product that is queued on a stream.
// The host never waits in between. But the events around a kernel keep it from starting before the one in front of it
// has ended, as it otherwise may (runtime/simt.h), so a profiled step takes a little longer. If work is nested (a
// product launches kernels), only the outer work counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/device.h"

namespace teon {

struct Profile {
    struct Row {
        std::string name;  // "activation_forward_kernel<float, ...>", "gemm 2048 x 512 x 128 NT"
        int64_t calls = 0;
        double ms = 0, flops = 0;  // flops: products only
    };
    double ms = 0;          // from start to stop
    std::vector<Row> rows;  // the most expensive first
};

// Records the work that one thread queues on the stream during the profiler's lifetime. An external profiler that waits
// for cudaProfilerStart (nsys profile --capture-range=cudaProfilerApi) sees the same range.
class Profiler {
public:
    explicit Profiler(Stream& stream);  // throws Error if the stream already has a profiler
    ~Profiler();
    Profiler(const Profiler&) = delete;
    // Returns the profile of the work queued so far; waits for the stream.
    Profile result();

private:
    friend class ProfileScope;
    struct Span {
        std::string name;
        double flops;
        Event begin, end;
    };
    Stream& stream_;
    Event begin_;
    std::vector<Span> spans_;
    bool inside_ = false;  // a scope
};

// Charges the work that is queued on the stream during the scope's lifetime to name(), which is called only if the
// stream has a profiler.
class ProfileScope {
public:
    template <typename Name>
    ProfileScope(const Stream& stream, const Name& name, double flops = 0) {
        if (stream.profiler() && !stream.profiler()->inside_) begin(*stream.profiler(), name(), flops);
    }
    ~ProfileScope() {
        if (profiler_) end();
    }
    ProfileScope(const ProfileScope&) = delete;

private:
    void begin(Profiler& profiler, const std::string& name, double flops);
    void end() noexcept;
    Profiler* profiler_ = nullptr;  // null without a profiler and inside another scope
};

}  // namespace teon
