// Products by cuBLASLt, NVIDIA's or cpu/'s: a plan, of descriptors and an algorithm, for each kind of call. Private to
// linalg.cu.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/algorithm_search.h"
#include "runtime/gemm.h"

namespace teon {

// One call of the library: a Gemm whose batch is one level of `count` matrices at stride_inner, and whose C is read
// from `addend`.
struct LtCall {
    Gemm g;
    int count;
    Mat addend;

    bool has_aux() const { return g.epilogue == Epilogue::gelu || g.epilogue == Epilogue::dgelu; }
    // What the library adds, or null; it computes no bias gradient.
    const void* bias() const {
        return g.epilogue == Epilogue::bias || g.epilogue == Epilogue::gelu ? g.bias.data : nullptr;
    }
};
std::string text_of(const LtCall& c);  // for people

// Everything that the choice of an algorithm may depend on.
using LtKey = std::array<int64_t, 24>;
LtKey key_of(const LtCall& c);
std::string text_of(const LtKey& key);

class LtMatmul {
public:
    // Holds references to both.
    LtMatmul(const Stream& stream, const AlgorithmSearch& search);
    ~LtMatmul();

    // False if the library refuses the call, which it says on standard error once per kind of call. Throws Error where
    // nothing else computes it, as for FP8.
    bool multiply(const LtCall& c);

    void forget_algorithms();   // chooses again
    int refused_kinds() const;  // of calls
    size_t workspace_bytes() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
