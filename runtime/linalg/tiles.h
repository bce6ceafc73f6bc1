// What an operation on a CPU is made of that works on tiles: products of tiles, each on one thread, and tasks that the
// threads share; and symmetric products in tiles. Only in builds for CPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/dtype.h"
#include "cpu/tile_product.h"
#include "runtime/cuda/device.h"
#include "runtime/linalg/gemm.h"

namespace teon {

// C (M x N, float) = op(A) (M x K) op(B) (K x N), or += if it adds, of row-major tiles. A and B have type `dtype`.
class TileProduct {
public:
    struct Operand {
        int64_t ld;
        bool transposed = false;
    };
    TileProduct(DType dtype, int M, int N, int K, Operand A, Operand B, int64_t ldc, bool adds);
    void operator()(float* C, const void* A, const void* B) const;  // within a task

private:
    cpu::Matmul call_;
    cpu::TileProduct product_;
};

// The products that an operation computes of its tiles, by the numbers of rows and columns of a tile.
template <typename Products>
class ProductsBySize {
public:
    // Adds make(rows, columns) unless this size has its products.
    template <typename Make>
    void add(int rows, int columns, Make make) {
        if (const std::pair size(rows, columns); !all_.contains(size)) all_.emplace(size, make(rows, columns));
    }
    const Products& of(int rows, int columns) const { return all_.at({rows, columns}); }

private:
    std::map<std::pair<int, int>, Products> all_;
};

// The most tasks that run at a time.
int task_slots();

// Runs run(task, slot) for each of `tasks` tasks, the lowest first, after the work that is already on the stream. Tasks
// that run at the same time have different slots, which are below task_slots(). `name` must never be freed.
void run_tasks(const Stream& stream, const char* name, int64_t tasks, std::function<void(int64_t, int)> run);

// Computes g, a valid symmetric Gemm (runtime/linalg/gemm.h), in tiles on and below the diagonal. addend is read if
// beta is not 0; it is C or does not overlap it.
void multiply_symmetric_tiles(const Gemm& g, const Mat& addend, const Stream& stream);

}  // namespace teon
