#include "runtime/linalg/tiles.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "cpu/matmul.h"
#include "cpu/signals.h"
#include "cpu/stream.h"
#include "cpu/threads.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/profiler.h"

namespace teon {

TileProduct::TileProduct(DType dtype, int M, int N, int K, Operand A, Operand B, int64_t ldc, bool adds) {
    call_ = {.M = M, .N = N, .K = K, .trans_a = A.transposed, .trans_b = B.transposed, .in = dtype, .ldc = ldc};
    call_.A.ld = A.ld;
    call_.B.ld = B.ld;
    call_.addend.ld = ldc;
    call_.beta = adds ? 1.0f : 0.0f;
    product_ = {call_, M, N};
}

void TileProduct::operator()(float* C, const void* A, const void* B) const {
    cpu::Matmul m = call_;
    m.A.data = A;
    m.B.data = B;
    m.C = C;
    m.addend.data = C;
    product_.run(m, 0, 0, 0);
}

int task_slots() { return cpu::thread_count(); }

void run_tasks(const Stream& stream, const char* name, int64_t tasks, std::function<void(int64_t, int)> run) {
    const ProfileScope profile(stream, [&] { return std::string(name); });
    const auto work = [tasks, slots = std::min<int64_t>(tasks, task_slots()), run = std::move(run)] {
        std::atomic<int64_t> next = 0;
        const cpu::HeldSignals held;
        cpu::parallel_for(slots, 1, [&](int64_t slot) {
            for (int64_t task = next++; task < tasks; task = next++) run(task, static_cast<int>(slot));
        });
    };
    detail::check_cuda(cpu::submit(static_cast<cudaStream_t>(stream.handle()), name, work), name);
}

void multiply_symmetric_tiles(const Gemm& g, const Mat& addend, const Stream& stream) {
    const auto matrix = [](const Mat& x, int64_t outer) {
        const int64_t offset = outer * x.stride_outer * size_of(x.dtype);
        return cpu::Matrix{static_cast<const std::byte*>(x.data) + offset, x.ld, x.stride_inner};
    };
    for (int64_t outer = 0; outer < g.batch_outer; ++outer) {
        const cpu::Matmul m{.M = g.M,
                            .N = g.N,
                            .K = g.K,
                            .batch = g.batch_inner,
                            .trans_a = g.trans_a,
                            .trans_b = g.trans_b,
                            .in = g.A.dtype,
                            .out = g.C.dtype,
                            .A = matrix(g.A, outer),
                            .B = matrix(g.B, outer),
                            .addend = matrix(addend, outer),
                            .C = const_cast<void*>(matrix(g.C, outer).data),
                            .ldc = g.C.ld,
                            .stride_c = g.C.stride_inner,
                            .alpha = g.alpha,
                            .beta = g.beta};
        constexpr const char* name = "symmetric product";
        detail::check_cuda(cpu::submit(static_cast<cudaStream_t>(stream.handle()), name, [m] { matmul_symmetric(m); }),
                           name);
    }
}

}  // namespace teon
