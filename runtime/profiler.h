// Where the time of a stretch of work goes: every kernel and every matrix product that is queued on a stream, by the
// clock of the device. Nothing waits in between, so the work runs as it always does. Of work inside of work (kernels
// that a product launches) only the outer counts.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace teon {

struct Profile {
    struct Row {
        std::string name;  // "swiglu_forward_kernel<float>", "gemm 2048 x 512 x 128 NT"
        int64_t calls = 0;
        double ms = 0, flops = 0;  // flops: of products only
    };
    double ms = 0;          // from start to stop
    std::vector<Row> rows;  // the most expensive first
};

// Notes what one thread queues on the stream during its life. A profiler outside of the program that waits for
// cudaProfilerStart (nsys profile --capture-range=cudaProfilerApi) sees the same range.
class Profiler {
public:
    explicit Profiler(Stream& stream);  // Throws Error if the stream has a profiler already
    ~Profiler();
    Profiler(const Profiler&) = delete;
    // What has been queued so far; waits for the stream.
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
    std::deque<Span> spans_;
    bool inside_ = false;  // of a scope
};

// Charges what is queued on the stream during its life to name(), which is called only if the stream has a profiler.
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
    Profiler* profiler_ = nullptr;  // null without one, and inside of another scope
};

}  // namespace teon
