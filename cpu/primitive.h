// One product on one thread, by code that oneDNN generates for its kind.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "cpu/product_check.h"

namespace teon::cpu {

struct Primitive {
    ProductKind kind;
    dnnl::matmul::primitive_desc description;
    dnnl::matmul product;
    bool reference;                             // oneDNN has only its reference code, which is a hundred times slower
    mutable std::atomic<bool> checked = false;  // a product was compared with its definition
};

// Returns null if oneDNN cannot multiply the 16-bit operands. In 16 bits K must be even.
std::shared_ptr<const Primitive> primitive(const ProductKind& kind);

// A thread's memory: the arguments of the primitives that it runs, and scratch memory, which grows on demand.
class Worker {
public:
    static Worker& mine();

    // bias: null if there is none. Checks the products of a primitive until a check says something; throws Error if a
    // product is wrong.
    void run(const std::shared_ptr<const Primitive>& p, const void* a, const void* b, void* c, const void* bias);

    std::vector<float> a, b, product;  // widened operands, and the product before it is finished

private:
    struct alignas(64) Line {
        char bytes[64];
    };

    // What a call of a primitive takes. oneDNN would allocate it for every call.
    struct Arguments {
        std::shared_ptr<const Primitive> primitive;
        std::vector<dnnl::memory> memories;  // A, B, C, scratchpad, the bias if there is one
        std::vector<dnnl_exec_arg_t> named;
    };

    Worker();
    Arguments& arguments_of(const std::shared_ptr<const Primitive>& p);
    void execute(const std::shared_ptr<const Primitive>& p, const void* a, const void* b, void* c, const void* bias);

    std::map<const Primitive*, Arguments> arguments_;
    std::vector<Line> scratchpad_;
    dnnl::stream stream_;
};

}  // namespace teon::cpu
