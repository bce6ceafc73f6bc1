#include "runtime/tiles.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "cpu/signals.h"
#include "cpu/stream.h"
#include "cpu/threads.h"
#include "runtime/cuda_check.h"
#include "runtime/profiler.h"

namespace teon {

namespace {

cpu::Matmul call_of(DType dtype, int M, int N, int K, TileProduct::Operand A, TileProduct::Operand B, int64_t ldc,
                    bool adds) {
    cpu::Matmul m;
    m.M = M;
    m.N = N;
    m.K = K;
    m.trans_a = A.transposed;
    m.trans_b = B.transposed;
    m.in = dtype;
    m.A.ld = A.ld;
    m.B.ld = B.ld;
    m.ldc = m.addend.ld = ldc;
    m.beta = adds ? 1.0f : 0.0f;
    return m;
}

}  // namespace

TileProduct::TileProduct(DType dtype, int M, int N, int K, Operand A, Operand B, int64_t ldc, bool adds)
    : call_(call_of(dtype, M, N, K, A, B, ldc, adds)), product_(call_, M, N) {}

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

}  // namespace teon
