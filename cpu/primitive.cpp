#include "cpu/primitive.h"

#include <fmt/core.h>

#include <map>
#include <mutex>
#include <string_view>

#include "base/check.h"
#include "cpu/instructions.h"
#include "cpu/one_thread.h"

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "this oneDNN has threads of its own; one built with OpenMP or for one thread is needed (Debian's libdnnl-dev)"
#endif

namespace teon::cpu {

namespace {

// The largest number of primitives kept. A program uses some hundred.
constexpr size_t kMaxPrimitives = 4096;

// Never destroyed: threads may outlive main's statics.
dnnl::engine& dnnl_engine() {
    static auto& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
    return engine;
}

dnnl::memory::data_type dnnl_type(DType t) {
    using Type = dnnl::memory::data_type;
    switch (t) {
        case DType::f32:
            return Type::f32;
        case DType::bf16:
            return Type::bf16;
        case DType::f16:
            return Type::f16;
        case DType::e4m3:
        case DType::e5m2:
            break;  // oneDNN gets bf16
    }
    __builtin_unreachable();
}

// bias: null if there is none.
dnnl::matmul::primitive_desc describe(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                      const dnnl::memory::desc* bias, const dnnl::memory::desc& c,
                                      const dnnl::primitive_attr& attributes) {
    using dnnl::matmul;
#if DNNL_VERSION_MAJOR >= 3
    if (!bias) return {dnnl_engine(), a, b, c, attributes};
    return {dnnl_engine(), a, b, *bias, c, attributes};
#else
    return {bias ? matmul::desc(a, b, *bias, c) : matmul::desc(a, b, c), attributes, dnnl_engine()};
#endif
}

// Returns null if oneDNN cannot multiply the 16-bit operands.
std::shared_ptr<const Primitive> make_primitive(const ProductKind& s) {
    using dnnl::memory;
    // Here a version of oneDNN has been wrong (product_check.h). No version, CPU or shape gets such a product.
    CHECK(size_of(s.in) != 2 || s.K % 2 == 0, "a product of {} elements with an odd K, {}", name_of(s.in), s.K);
    // Without bf16 instructions oneDNN emulates them, which is slower than widening once.
    if (s.in == DType::bf16 && !multiplies_bf16()) return nullptr;
    const memory::desc a({s.M, s.K}, dnnl_type(s.in), s.trans_a ? memory::dims{1, s.lda} : memory::dims{s.lda, 1});
    const memory::desc b({s.K, s.N}, dnnl_type(s.in), s.trans_b ? memory::dims{1, s.ldb} : memory::dims{s.ldb, 1});
    const memory::desc c({s.M, s.N}, dnnl_type(s.out), memory::dims{s.ldc, 1});
    const memory::desc bias({1, s.N}, dnnl_type(s.out), memory::dims{s.N, 1});
    dnnl::post_ops after;
    if (s.alpha != 1.0f) {
#if DNNL_VERSION_MAJOR >= 3
        after.append_eltwise(dnnl::algorithm::eltwise_linear, s.alpha, 0.0f);
#else
        after.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, s.alpha, 0.0f);
#endif
    }
    if (s.beta != 0.0f) after.append_sum(s.beta);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // threads would share the library's own
#if DNNL_VERSION_MAJOR * 100 + DNNL_VERSION_MINOR >= 206          // older ones never round float operands
    attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
#endif
    try {
        auto description = describe(a, b, s.bias ? &bias : nullptr, c, attributes);
        const bool reference = std::string_view(description.impl_info_str()).find("ref") != std::string_view::npos;
        return std::make_shared<const Primitive>(s, description, dnnl::matmul(description), reference);
    } catch (const dnnl::error& e) {
        if (s.in != DType::f32 && e.status == dnnl_unimplemented) return nullptr;
        throw Error(
            fmt::format("oneDNN cannot multiply {} x {} x {} {} matrices: {}", s.M, s.N, s.K, name_of(s.in), e.what()));
    }
}

}  // namespace

std::shared_ptr<const Primitive> primitive(const ProductKind& s) {
    static auto& mutex = *new std::mutex;
    static auto& primitives = *new std::map<ProductKind, std::shared_ptr<const Primitive>>;
    const std::lock_guard lock(mutex);
    if (auto entry = primitives.find(s); entry != primitives.end()) return entry->second;
    if (primitives.size() >= kMaxPrimitives) primitives.clear();
    const OneThread one;
    return primitives[s] = make_primitive(s);
}

Worker::Worker() : stream_(dnnl_engine()) {}

Worker& Worker::mine() {
    static thread_local Worker worker;
    return worker;
}

void Worker::run(const std::shared_ptr<const Primitive>& p, const void* a, const void* b, void* c, const void* bias) {
    if (p->checked.load(std::memory_order_relaxed)) return execute(p, a, b, c, bias);
    const ProductCheck check(p->kind, c);
    execute(p, a, b, c, bias);
    if (check.compare(a, b, c, bias) == Comparison::agrees) p->checked.store(true, std::memory_order_relaxed);
}

void Worker::execute(const std::shared_ptr<const Primitive>& p, const void* a, const void* b, void* c,
                     const void* bias) {
    const OneThread one;  // oneDNN asks OpenMP for the number of threads at every call
    Arguments& arguments = arguments_of(p);
    const void* data[] = {a, b, c, scratchpad_.data(), bias};
    for (size_t i = 0; i < arguments.memories.size(); ++i)
        arguments.memories[i].set_data_handle(const_cast<void*>(data[i]));
    dnnl::error::wrap_c_api(dnnl_primitive_execute(p->product.get(), stream_.get(),
                                                   static_cast<int>(arguments.named.size()), arguments.named.data()),
                            "multiplying");
    stream_.wait();
}

Worker::Arguments& Worker::arguments_of(const std::shared_ptr<const Primitive>& p) {
    if (auto entry = arguments_.find(p.get()); entry != arguments_.end()) return entry->second;
    if (arguments_.size() >= kMaxPrimitives) arguments_.clear();
    const auto& d = p->description;
    const size_t lines = (d.scratchpad_desc().get_size() + sizeof(Line) - 1) / sizeof(Line);
    if (scratchpad_.size() < lines) scratchpad_.resize(lines);
    Arguments made{p, {}, {}};
    auto add = [&](int name, const dnnl::memory::desc& description) {
        made.memories.emplace_back(description, dnnl_engine(), nullptr);
        made.named.push_back({name, made.memories.back().get()});
    };
    add(DNNL_ARG_SRC, d.src_desc());
    add(DNNL_ARG_WEIGHTS, d.weights_desc());
    add(DNNL_ARG_DST, d.dst_desc());
    add(DNNL_ARG_SCRATCHPAD, d.scratchpad_desc());
    if (p->kind.bias) add(DNNL_ARG_BIAS, d.bias_desc());
    return arguments_.emplace(p.get(), std::move(made)).first->second;
}

}  // namespace teon::cpu
