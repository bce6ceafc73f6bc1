// Products by cuBLASLt (NVIDIA's or cpu/'s). Each kind of call has a plan, which consists of descriptors and an
// algorithm. Private to linalg.cu.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/linalg/algorithm_search.h"
#include "runtime/linalg/gemm.h"

namespace teon {

// One call of the library: a Gemm with a single level of batch, `count` matrices that are stride_inner apart. `addend`
// is the matrix that beta multiplies.
struct LtCall {
    Gemm g;
    int count;
    Mat addend;

    bool has_aux() const { return g.epilogue == Epilogue::gelu || g.epilogue == Epilogue::dgelu; }
    // The bias that the library adds, or null; the library does not compute bias gradients.
    const void* bias() const {
        return g.epilogue == Epilogue::bias || g.epilogue == Epilogue::gelu ? g.bias.data : nullptr;
    }
};
std::string text_of(const LtCall& c);  // for messages

// Everything that the choice of an algorithm may depend on.
struct LtMatrixKey {
    DType dtype;
    int64_t ld;
    int64_t stride;      // between the matrices of a batch; 0: there is only one
    uint32_t alignment;  // in bytes, of all matrices of the batch
    auto operator<=>(const LtMatrixKey&) const = default;
};
struct LtKey {
    int M, N, K;
    int count;
    bool trans_a, trans_b;
    LtMatrixKey a, b, c, addend;
    bool adds;      // beta is not 0
    bool in_place;  // addend is C
    int epilogue;
    uint32_t bias_alignment;  // 0: no bias
    int64_t aux_ld;           // 0: no auxiliary output or input
    uint32_t aux_alignment;
    bool fast_accumulation;
    auto operator<=>(const LtKey&) const = default;
};
LtKey key_of(const LtCall& c);
std::string text_of(const LtKey& key);

class LtMatmul {
public:
    // Holds references to the stream and the search.
    LtMatmul(const Stream& stream, const AlgorithmSearch& search);
    ~LtMatmul();

    // Computes c. Returns false if the library refuses the call; a warning on standard error says so once per kind of
    // call. Throws Error if no other kernel computes it, as for FP8.
    bool multiply(const LtCall& c);

    void forget_algorithms();   // so that later calls choose again
    int refused_kinds() const;  // number of kinds of calls

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
