// Where the time of a stretch of work goes: every kernel and every matrix product between start and stop, by the clock
// of the device. Nothing waits in between, so the work runs as it always does. Of work inside of work (kernels that a
// product launches) only the outer counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace teon {

struct Profile {
    struct Row {
        std::string name;  // "gelu_forward_kernel<float>", "gemm 2048 x 512 x 128 NT"
        int64_t calls = 0;
        double ms = 0, flops = 0;  // flops: of products only
    };
    double ms = 0;          // from start to stop
    std::vector<Row> rows;  // the most expensive first
};

// An outside profiler that waits for cudaProfilerStart (nsys profile --capture-range=cudaProfilerApi) sees the same
// range. One profile at a time, of one thread.
void start_profile(const Stream& stream);
Profile stop_profile(const Stream& stream);  // waits for the stream

namespace detail {

extern bool profiling;

// Charges the work that is queued on the stream during its life to name(), which is called only while profiling.
class ProfileScope {
public:
    template <typename Name>
    ProfileScope(const Stream& stream, const Name& name, double flops = 0) {
        if (profiling) begin(stream, name(), flops);
    }
    ~ProfileScope() {
        if (stream_) end();
    }
    ProfileScope(ProfileScope&&) = delete;

private:
    void begin(const Stream& stream, const std::string& name, double flops);
    void end();
    const Stream* stream_ = nullptr;  // null while not profiling and inside of another scope
};

}  // namespace detail

}  // namespace teon
