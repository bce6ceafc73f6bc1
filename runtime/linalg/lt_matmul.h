// Products by cuBLASLt (NVIDIA's or cpu/'s). Each kind of call has a plan, which consists of descriptors and an
// algorithm. Private to linalg.cu.
#pragma once

#include <memory>
#include <string>

#include "runtime/cuda/device.h"
#include "runtime/linalg/gemm.h"

namespace teon {

// One call of the library: a Gemm with a single level of batch, `count` matrices that are stride_inner apart. `addend`
// is the matrix that beta multiplies.
struct LtCall {
    Gemm g;
    int count;
    Mat addend;

    // The bias that the library adds, or null; the library does not compute bias gradients.
    const void* bias() const { return g.epilogue == Epilogue::bias ? g.bias.data : nullptr; }
};
std::string text_of(const LtCall& c);  // for messages

class LtMatmul {
public:
    explicit LtMatmul(const Stream& stream);  // holds a reference to the stream
    ~LtMatmul();

    // Computes c. Returns false if the library refuses the call; a warning on standard error says so once per kind of
    // call. Throws Error if no other kernel computes it, as for FP8.
    bool multiply(const LtCall& c);

    int refused_kinds() const;  // number of kinds of calls

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace teon
