// Races for shared memory, found while a kernel runs (test build): two threads of a block touch the same bytes, one of
// them writes, and no barrier stands between. An order of threads in which the result is right does not hide one.
//
// g++ reports every load and store: -fsanitize=thread, given to .cu files alone, puts a call before each, and race.cpp
// has these functions in place of the thread sanitizer's. What orders two accesses: __syncthreads() and the reductions
// of a block, for all of its threads; __syncwarp(), for the lanes of its mask. Shuffles and votes order nothing, as on
// a GPU. Atomic operations are taken on trust.
#pragma once

#include <cstddef>
#include <string>

#include "cpu/pages.h"

namespace teon::simt::race {

inline constexpr bool kEnabled = cpu::kUnkind;

inline constexpr int kMaxThreads = 1024;  // of a block

// The block that this OS thread runs begins, has all met at a barrier, has lanes of a warp that have met in a
// __syncwarp(), or ends: then with the first race in words, in which where(t) is thread t, or none. *thread is the
// thread that runs, at any time.
void begin_block(const int* thread, const void* dynamic_shared, size_t smem);
void barrier();
void warp_barrier(int warp, unsigned mask);
std::string end_block(std::string (*where)(int thread));

// These bytes are shared memory of the current block.
void add_memory(const void* begin, size_t bytes);

// The current thread touches memory in a way that g++ does not see; the line is the caller's.
void touch(const void* p, size_t bytes, bool write);

}  // namespace teon::simt::race
