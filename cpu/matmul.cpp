#include "cpu/matmul.h"

#include <fmt/core.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/activation.h"
#include "base/check.h"
#include "base/integer.h"
#include "cpu/one_thread.h"
#include "cpu/signals.h"
#include "cpu/threads.h"

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "this oneDNN has threads of its own; one built with OpenMP or for one thread is needed (Debian's libdnnl-dev)"
#endif

namespace teon::cpu {

namespace {

// The part of K for which 16-bit operands are widened at a time. It bounds a thread's scratch memory for any K.
constexpr int64_t kSlice = 512;
// The size of the largest tile, whose operands stay close to the second-level cache. An output of at most kMaxColumns
// columns is not divided for its width, because oneDNN's best kernels need a dense output and a dense B; a wider one is
// divided into tiles of at most kColumns.
constexpr int64_t kMaxRows = 256, kMaxColumns = 1536, kColumns = 1024;
// Products are divided into at least this many tiles, for as many threads, unless the tiles would get tiny.
constexpr int64_t kTiles = 8;
// The least number of multiplications that a thread takes at a time, for some microseconds.
constexpr int64_t kChunk = 1 << 19;
// The largest number of primitives kept. A program uses some hundred.
constexpr size_t kMaxPrimitives = 4096;

// Never destroyed: threads may outlive main's statics.
dnnl::engine& engine() {
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

// Returns whether oneDNN uses an instruction set. The sets are bit masks, which contain all bits of the sets they
// include.
bool uses(dnnl::cpu_isa isa) {
    const int wanted = static_cast<int>(isa);
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

// ---- one product on one thread --------------------------------------------------------------------------------------

// The parameters for which oneDNN generates code.
struct Shape {
    int64_t M, N, K;
    bool trans_a, trans_b;
    DType in, out;
    int64_t lda, ldb, ldc;
    float alpha, beta;  // beta: factor of C's previous content
    bool bias;          // only with alpha = 1
    auto operator<=>(const Shape&) const = default;
};

struct Primitive {
    dnnl::matmul::primitive_desc description;
    dnnl::matmul product;
    bool bias;
    bool reference;  // oneDNN has only its reference code, which is a hundred times slower
};

// bias: null if there is none.
dnnl::matmul::primitive_desc describe(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                      const dnnl::memory::desc* bias, const dnnl::memory::desc& c,
                                      const dnnl::primitive_attr& attributes) {
    using dnnl::matmul;
#if DNNL_VERSION_MAJOR >= 3
    if (!bias) return {engine(), a, b, c, attributes};
    return {engine(), a, b, *bias, c, attributes};
#else
    return {bias ? matmul::desc(a, b, *bias, c) : matmul::desc(a, b, c), attributes, engine()};
#endif
}

// Returns null if oneDNN cannot multiply the 16-bit operands.
std::shared_ptr<const Primitive> make_primitive(const Shape& s) {
    using dnnl::memory;
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
        return std::make_shared<const Primitive>(Primitive{description, dnnl::matmul(description), s.bias, reference});
    } catch (const dnnl::error& e) {
        if (s.in != DType::f32 && e.status == dnnl_unimplemented) return nullptr;
        throw Error(
            fmt::format("oneDNN cannot multiply {} x {} x {} {} matrices: {}", s.M, s.N, s.K, name_of(s.in), e.what()));
    }
}

std::shared_ptr<const Primitive> primitive(const Shape& s) {
    static auto& mutex = *new std::mutex;
    static auto& known = *new std::map<Shape, std::shared_ptr<const Primitive>>;
    const std::lock_guard lock(mutex);
    if (auto found = known.find(s); found != known.end()) return found->second;
    if (known.size() >= kMaxPrimitives) known.clear();
    const OneThread one;
    return known[s] = make_primitive(s);
}

// A thread's memory: the arguments of the primitive that it ran last, and scratch memory, which grows on demand.
class Worker {
public:
    static Worker& mine() {
        static thread_local Worker worker;
        return worker;
    }

    void run(const std::shared_ptr<const Primitive>& p, const void* a, const void* b, void* c, const void* bias) {
        const OneThread one;  // oneDNN asks OpenMP for the number of threads at every call
        if (p != last_) prepare(p);
        const void* data[] = {a, b, c, bias};
        for (int i = 0; i < (bias ? 4 : 3); i++) memories_[i].set_data_handle(const_cast<void*>(data[i]));
        dnnl::error::wrap_c_api(dnnl_primitive_execute(p->product.get(), stream_.get(),
                                                       static_cast<int>(arguments_.size()), arguments_.data()),
                                "multiplying");
        stream_.wait();
    }

    std::vector<float> a, b, product;  // widened operands, and the product before it is finished

private:
    struct alignas(64) Line {
        char bytes[64];
    };

    void prepare(const std::shared_ptr<const Primitive>& p) {
        last_ = nullptr;
        const auto& d = p->description;
        const size_t lines = (d.scratchpad_desc().get_size() + sizeof(Line) - 1) / sizeof(Line);
        if (scratchpad_.size() < lines) scratchpad_.resize(lines);
        memories_.clear(), arguments_.clear();
        auto add = [&](int name, const dnnl::memory::desc& description, void* data) {
            memories_.emplace_back(description, engine(), data);
            arguments_.push_back({name, memories_.back().get()});
        };
        add(DNNL_ARG_SRC, d.src_desc(), nullptr);
        add(DNNL_ARG_WEIGHTS, d.weights_desc(), nullptr);
        add(DNNL_ARG_DST, d.dst_desc(), nullptr);
        if (p->bias) add(DNNL_ARG_BIAS, d.bias_desc(), nullptr);
        add(DNNL_ARG_SCRATCHPAD, d.scratchpad_desc(), scratchpad_.data());
        last_ = p;
    }

    std::shared_ptr<const Primitive> last_;
    std::vector<dnnl::memory> memories_;  // A, B, C, the bias if there is one, scratchpad
    std::vector<dnnl_exec_arg_t> arguments_;
    std::vector<Line> scratchpad_;
    dnnl::stream stream_{engine()};
};

// ---- tiles ----------------------------------------------------------------------------------------------------------

// The output as a grid of tiles of rows x columns; the last ones may be smaller.
struct Tiling {
    int64_t rows, columns;  // of a tile
    int64_t down, across;   // tiles per matrix
};

// Divides the output into tiles, depending on the shape and the batch, but not on the machine.
Tiling tile_output(const Matmul& m) {
    int64_t down = ceil_div(m.M, kMaxRows), across = m.N <= kMaxColumns ? 1 : ceil_div(m.N, kColumns);
    Tiling t{};
    auto split = [&] {
        t.rows = std::min(m.M, round_up(ceil_div(m.M, down), 16));  // whole register tiles
        t.columns = std::min(m.N, round_up(ceil_div(m.N, across), 64));
        t.down = ceil_div(m.M, t.rows), t.across = ceil_div(m.N, t.columns);
    };
    split();
    while (m.batch * t.down * t.across < kTiles && t.rows * t.columns >= 2 * 64 * 64) {
        (t.rows > 64 ? down : across) *= 2;
        split();
    }
    return t;
}

const void* at(const void* matrix, DType type, int64_t element) {
    return static_cast<const char*>(matrix) + element * size_of(type);
}
void* at(void* matrix, DType type, int64_t element) { return static_cast<char*>(matrix) + element * size_of(type); }

float* resized(std::vector<float>& v, int64_t n) {
    if (std::ssize(v) < n) v.resize(n);
    return v.data();
}

// Converts a block of rows x columns to packed floats.
const float* widen(std::vector<float>& scratch, DType type, const void* block, int64_t ld, int64_t rows,
                   int64_t columns) {
    float* to = resized(scratch, rows * columns);
    visit_dtype(type, [&]<typename T>(T) {
        const T* from = static_cast<const T*>(block);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) to[i * columns + j] = static_cast<float>(from[i * ld + j]);
    });
    return to;
}

// Computes a row c = alpha product + beta addend + bias, rounded once. bias may be null; c may be product.
template <typename TC, typename T>
void finish_row(TC* c, const float* product, const T* addend, float alpha, float beta, const T* bias, int64_t n) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; j++) {
        float x = alpha * product[j];
        if (beta != 0.0f) x = fmaf(beta, static_cast<float>(addend[j]), x);
        if (bias) x += static_cast<float>(bias[j]);
        c[j] = TC(x);
    }
}

// Applies the activation to a row of sums.
template <typename T>
void activate_row(T* c, T* aux, const float* sums, Activation activation, int64_t n) {
    if (activation == Activation::gelu) {
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++) aux[j] = T(sums[j]), c[j] = T(gelu_tanh(sums[j]));
    } else {
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++) c[j] = T(sums[j] * gelu_tanh_grad(static_cast<float>(aux[j])));
    }
}

// Computes the tiles of one size. Usually one primitive does everything. If oneDNN has only reference code for that, a
// primitive computes the plain product in packed floats, and this class does the rest. If it has only reference code
// for a plain product of 16-bit operands, too, they are widened, for a slice of K at a time.
class TilePlan {
public:
    TilePlan() = default;
    TilePlan(const Matmul& m, int64_t rows, int64_t columns) : rows_(rows), columns_(columns), depth_(m.K) {
        auto good = [](const auto& p) { return p && !p->reference; };
        // oneDNN 3.7 with AVX-512 treats a single column, of C or of a transposed A, as if its elements were
        // contiguous.
        const bool column_of_c = columns == 1 && m.ldc > 1, column_of_a = rows == 1 && m.trans_a && m.A.ld > 1;
        // A factor of NaN has no place in the order of Shapes: the map would return another factor's primitive.
        finished_ = (!m.bias || m.alpha == 1.0f) && !m.alpha_varies && m.activation == Activation::none &&
                    !column_of_c && !column_of_a && !std::isnan(m.alpha) && !std::isnan(m.beta);
        if (finished_) first_ = primitive(shape(m, m.K, m.beta));
        if (good(first_)) return;
        finished_ = false;
        if (!column_of_a) {
            first_ = primitive(shape(m, m.K, 0.0f));
            if (good(first_) || m.in == DType::f32) return;
        }
        widened_ = true;
        depth_ = std::min(m.K, kSlice);
        first_ = primitive(shape(m, depth_, 0.0f));
        if (m.K >= 2 * depth_) middle_ = primitive(shape(m, depth_, 1.0f));
        if (m.K % depth_ != 0) last_ = primitive(shape(m, m.K % depth_, 1.0f));
    }

    void run(const Matmul& m, int64_t matrix, int64_t row, int64_t column) const {
        Worker& worker = Worker::mine();
        void* c = at(m.C, m.out, matrix * m.stride_c + row * m.ldc + column);
        const void* addend = at(m.addend.data, m.out, matrix * m.addend.stride + row * m.addend.ld + column);
        const void* bias = m.bias ? at(m.bias, m.out, column) : nullptr;
        float* product = finished_ ? nullptr : resized(worker.product, rows_ * columns_);
        if (finished_ && m.beta != 0.0f && c != addend) copy(c, m.ldc, addend, m.addend.ld, m.out);
        for (int64_t k = 0; k < m.K; k += depth_) {
            const int64_t depth = std::min(depth_, m.K - k);
            const void* a = at(m.A.data, m.in, matrix * m.A.stride + (m.trans_a ? k * m.A.ld + row : row * m.A.ld + k));
            const void* b =
                at(m.B.data, m.in, matrix * m.B.stride + (m.trans_b ? column * m.B.ld + k : k * m.B.ld + column));
            if (widened_) {
                a = widen(worker.a, m.in, a, m.A.ld, m.trans_a ? depth : rows_, m.trans_a ? rows_ : depth);
                b = widen(worker.b, m.in, b, m.B.ld, m.trans_b ? columns_ : depth, m.trans_b ? depth : columns_);
            }
            worker.run(k == 0            ? first_
                       : depth == depth_ ? middle_
                                         : last_,
                       a, b, finished_ ? c : product, finished_ ? bias : nullptr);
        }
        if (finished_) return;
        visit_dtype(m.out, [&]<typename T>(T) {
            for (int64_t i = 0; i < rows_; i++) {
                float* sums = product + i * columns_;
                auto finish = [&](auto* to) {
                    finish_row(to, sums, static_cast<const T*>(addend) + i * m.addend.ld, m.alpha, m.beta,
                               static_cast<const T*>(bias), columns_);
                };
                T* to = static_cast<T*>(c) + i * m.ldc;
                if (m.activation == Activation::none) {
                    finish(to);
                } else {
                    finish(sums);
                    activate_row(to, static_cast<T*>(at(m.aux, m.out, (row + i) * m.ld_aux + column)), sums,
                                 m.activation, columns_);
                }
            }
        });
    }

private:
    // Returns the shape for a slice of K. beta is the factor of the output's previous content, such as the sum of
    // earlier slices.
    Shape shape(const Matmul& m, int64_t depth, float beta) const {
        Shape s{rows_,  columns_, depth,   m.trans_a, m.trans_b,        m.in, m.out, m.A.ld,
                m.B.ld, m.ldc,    m.alpha, beta,      m.bias != nullptr};
        if (!finished_) s.out = DType::f32, s.ldc = columns_, s.alpha = 1.0f, s.bias = false;
        if (widened_) {
            s.in = DType::f32;
            s.lda = m.trans_a ? rows_ : depth, s.ldb = m.trans_b ? depth : columns_;
        }
        return s;
    }
    void copy(void* to, int64_t ld_to, const void* from, int64_t ld_from, DType type) const {
        for (int64_t i = 0; i < rows_; i++) {
            memcpy(at(to, type, i * ld_to), at(from, type, i * ld_from), columns_ * size_of(type));
        }
    }

    int64_t rows_ = 0, columns_ = 0, depth_ = 0;
    bool widened_ = false;
    bool finished_ = true;  // the primitive writes the final result to C
    std::shared_ptr<const Primitive> first_, middle_, last_;
};

}  // namespace

void matmul(const Matmul& m) {
    const Tiling t = tile_output(m);
    const int64_t last_rows = m.M - (t.down - 1) * t.rows, last_columns = m.N - (t.across - 1) * t.columns;
    TilePlan plans[2][2];  // [in the last row of tiles][in the last column]
    for (int down : {0, 1}) {
        for (int across : {0, 1}) {
            if (t.down - 1 < 1 - down || t.across - 1 < 1 - across) continue;
            plans[down][across] = {m, down ? last_rows : t.rows, across ? last_columns : t.columns};
        }
    }
    const int64_t tiles = m.batch * t.down * t.across;
    const int64_t chunk = std::max<int64_t>(1, kChunk / (t.rows * t.columns * m.K));
    const HeldSignals held;  // for all tiles together, because it takes two system calls
    parallel_for(tiles, chunk, [&](int64_t i) {
        const int64_t across = i % t.across, down = i / t.across % t.down;
        plans[down == t.down - 1][across == t.across - 1].run(m, i / (t.across * t.down), down * t.rows,
                                                              across * t.columns);
    });
}

namespace {

template <typename F>
void widen_rows(std::vector<bf16>& to, const Matrix& from, int64_t rows, int64_t columns) {
    static const auto table = [] {
        std::array<bf16, 256> t;
        for (unsigned code = 0; code < t.size(); code++) {
            F x;
            x.bits = static_cast<uint8_t>(code);
            t[code] = bf16(static_cast<float>(x));
        }
        return t;
    }();
    if (std::ssize(to) < rows * columns) to.resize(rows * columns);
    parallel_for(rows, std::max<int64_t>(1, (1 << 14) / columns), [&](int64_t i) {
        const auto* row = static_cast<const uint8_t*>(from.data) + i * from.ld;
        for (int64_t j = 0; j < columns; j++) to[i * columns + j] = table[row[j]];
    });
}

}  // namespace

void matmul_fp8(Matmul m, DType a, DType b, float scale) {
    static thread_local std::vector<bf16> wide_a, wide_b;
    const auto widen_operand = [&](Matrix& x, DType type, std::vector<bf16>& wide, int64_t rows) {
        (type == DType::e4m3 ? widen_rows<e4m3> : widen_rows<e5m2>)(wide, x, rows, m.K);
        x = {wide.data(), m.K, 0};
    };
    widen_operand(m.A, a, wide_a, m.M);
    widen_operand(m.B, b, wide_b, m.N);
    m.in = DType::bf16;
    m.alpha *= scale;
    m.alpha_varies = true;
    matmul(m);
}

bool multiplies_bf16() { return uses(dnnl::cpu_isa::avx512_core_bf16); }

std::string matmul_library() {
    const dnnl_version_t& v = *dnnl::version();
    const struct {
        dnnl::cpu_isa isa;
        const char* name;
    } known[] = {{dnnl::cpu_isa::avx512_core_amx, "AMX"},
                 {dnnl::cpu_isa::avx512_core_bf16, "AVX512_BF16"},
                 {dnnl::cpu_isa::avx512_core, "AVX512"},
                 {dnnl::cpu_isa::avx2, "AVX2"},
                 {dnnl::cpu_isa::avx, "AVX"},
                 {dnnl::cpu_isa::sse41, "SSE4.1"}};
    const auto* best = std::find_if(std::begin(known), std::end(known), [](const auto& k) { return uses(k.isa); });
    return fmt::format("oneDNN {}.{}.{} with {}", v.major, v.minor, v.patch,
                       best == std::end(known) ? "no vector instructions" : best->name);
}

}  // namespace teon::cpu
