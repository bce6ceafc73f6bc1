// Tests of functions that programs of others call (gpusim/abi/programs.cpp, cublas.cpp). Those with the tag [legacy]
// use the default stream: gpusim/test/test_model_gpu.py runs them with CUDA_DEFAULT_STREAM=legacy.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cpu/error.h"
#include "cpu/include/cublasLt.h"
#include "gpusim/control.h"
#include "gpusim/test/registered_program.h"
#include "test/support/catch.h"

struct cublasContext;
extern "C" {
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* to, int byte, size_t bytes);
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind);
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind);
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol);
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int index);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          size_t dynamic_shared);
int cublasCreate_v2(cublasContext** handle);
int cublasDestroy_v2(cublasContext* handle);
int cublasSetStream_v2(cublasContext* handle, cudaStream_t stream);
int cublasSgemm_v2(cublasContext* handle, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a,
                   int ld_a, const float* b, int ld_b, const float* beta, float* c, int ld_c);
int cublasGemmEx(cublasContext* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
                 int type_a, int ld_a, const void* b, int type_b, int ld_b, const void* beta, void* c, int type_c,
                 int ld_c, int compute, int algorithm);
int cublasGemmStridedBatchedEx(cublasContext* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                               const void* a, int type_a, int ld_a, long long stride_a, const void* b, int type_b,
                               int ld_b, long long stride_b, const void* beta, void* c, int type_c, int ld_c,
                               long long stride_c, int batch, int compute, int algorithm);
}

using namespace teon;
using namespace teon::test;

namespace {

void check(cudaError_t status) { REQUIRE(std::string(cudaGetErrorString(status)) == "cudaSuccess"); }

// Device memory.
class Memory {
public:
    explicit Memory(size_t bytes) { check(cudaMalloc(&p_, bytes)); }
    ~Memory() { cudaFree(p_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    char* at(size_t byte = 0) const { return static_cast<char*>(p_) + byte; }

private:
    void* p_ = nullptr;
};

class BlockingStream {
public:
    BlockingStream() { check(cudaStreamCreate(&stream_)); }
    ~BlockingStream() { cudaStreamDestroy(stream_); }
    BlockingStream(const BlockingStream&) = delete;
    BlockingStream& operator=(const BlockingStream&) = delete;
    operator cudaStream_t() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

class ScopedOrder {
public:
    explicit ScopedOrder(const std::string& order) : before_(cudaModelControl()->set_order(order)) {}
    ~ScopedOrder() { cudaModelControl()->set_order(before_); }

private:
    std::string before_;
};

template <typename T>
std::vector<T> read(const Memory& memory, size_t count) {
    std::vector<T> values(count);
    check(cudaMemcpy(values.data(), memory.at(), count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

const std::string kTable = ".visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};\n";

}  // namespace

TEST_CASE("gpusim/programs: variables of device code are read and written from the host", "[.][legacy]") {
    RegisteredProgram program(
        RegisteredProgram::ptx("mov.u64 %d1, table; ld.global.u32 %r1, [%d1]; ld.global.u32 %r2, [%d1+4];"
                               "add.u32 %r3, %r1, %r2; st.global.u32 [%d1+12], %r3;",
                               kTable));
    const char table = 0;  // the host's shadow
    program.register_variable(&table, "table", 16);
    size_t bytes = 0;
    void* address = nullptr;
    check(cudaGetSymbolSize(&bytes, &table));
    check(cudaGetSymbolAddress(&address, &table));
    REQUIRE((bytes == 16 && address != nullptr && address != &table));
    std::vector<uint32_t> values(4);
    check(cudaMemcpyFromSymbol(values.data(), &table, 16, 0, cudaMemcpyDeviceToHost));
    REQUIRE(values == std::vector<uint32_t>{1, 2, 3, 4});

    std::vector<uint32_t> sources = {10, 20};
    check(cudaMemcpyToSymbol(&table, sources.data(), 8, 0, cudaMemcpyHostToDevice));
    sources = {7, 7};  // the call has taken pageable memory's values
    check(program.launch(nullptr));
    check(cudaMemcpyFromSymbol(values.data(), &table, 12, 4, cudaMemcpyDeviceToHost));
    REQUIRE(values == std::vector<uint32_t>{20, 3, 30, 4});

    REQUIRE(cudaMemcpyToSymbol(&table, sources.data(), 8, 12, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    REQUIRE_THAT(cudaGetErrorString(cudaErrorInvalidValue),
                 ContainsSubstring("8 bytes at byte 12 of a variable of 16 bytes"));
    REQUIRE(cudaMemcpyFromSymbol(values.data(), &table, 4, ~size_t{0}, cudaMemcpyDeviceToHost) ==
            cudaErrorInvalidValue);
    REQUIRE(cudaGetSymbolSize(&bytes, &bytes) == cudaErrorInvalidValue);
}

TEST_CASE("gpusim/programs: copies of rows leave what lies between them", "[.][legacy]") {
    constexpr size_t kRows = 5;
    constexpr size_t kWidth = 8;
    constexpr size_t kHostPitch = 12;
    constexpr size_t kDevicePitch = 16;
    std::vector<uint8_t> in(kRows * kHostPitch);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i + 1);
    const Memory memory(kRows * kDevicePitch);
    check(cudaMemset(memory.at(), 0x5a, kRows * kDevicePitch));
    check(cudaMemcpy2D(memory.at(), kDevicePitch, in.data(), kHostPitch, kWidth, kRows, cudaMemcpyHostToDevice));
    const auto device = read<uint8_t>(memory, kRows * kDevicePitch);
    for (size_t i = 0; i < device.size(); ++i) {
        const size_t row = i / kDevicePitch;
        const size_t column = i % kDevicePitch;
        REQUIRE(device[i] == (column < kWidth ? in[row * kHostPitch + column] : 0x5a));
    }
    std::vector<uint8_t> out(kRows * kHostPitch, 9);
    check(cudaMemcpy2D(out.data(), kHostPitch, memory.at(), kDevicePitch, kWidth, kRows, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == (i % kHostPitch < kWidth ? in[i] : 9));

    const Memory other(kRows * kWidth);
    const BlockingStream stream;
    check(cudaMemcpy2DAsync(other.at(), kWidth, memory.at(), kDevicePitch, kWidth, kRows, cudaMemcpyDeviceToDevice,
                            stream));
    check(cudaStreamSynchronize(stream));
    const auto dense = read<uint8_t>(other, kRows * kWidth);
    for (size_t i = 0; i < dense.size(); ++i) REQUIRE(dense[i] == in[i / kWidth * kHostPitch + i % kWidth]);

    check(cudaMemcpy2D(memory.at(), kDevicePitch, in.data(), kHostPitch, kWidth, 0, cudaMemcpyHostToDevice));
    REQUIRE(cudaMemcpy2D(memory.at(), kDevicePitch, in.data(), kHostPitch, 13, 2, cudaMemcpyHostToDevice) ==
            cudaErrorInvalidValue);
    REQUIRE_THAT(cudaGetErrorString(cudaErrorInvalidValue), ContainsSubstring("rows of 13 bytes, 16 and 12 apart"));
    REQUIRE(cudaMemcpy2D(memory.at(), kDevicePitch, in.data(), kHostPitch, kWidth, kRows + 1,
                         cudaMemcpyHostToDevice) == cudaErrorInvalidValue);  // beyond the allocation
}

TEST_CASE("gpusim/programs: fills of device memory stay within it", "[.][legacy]") {
    const Memory memory(64);
    check(cudaMemset(memory.at(), 1, 64));
    check(cudaMemset(memory.at(8), 0x1fe, 16));  // the low byte
    const auto values = read<uint8_t>(memory, 64);
    for (size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == (i >= 8 && i < 24 ? 0xfe : 1));
    REQUIRE(cudaMemset(memory.at(8), 0, 64) == cudaErrorInvalidValue);
    std::vector<char> host(64);
    REQUIRE(cudaMemset(host.data(), 0, 64) == cudaErrorInvalidValue);
    REQUIRE_THAT(cudaGetErrorString(cudaErrorInvalidValue),
                 ContainsSubstring("host memory where device memory is due"));
    check(cudaMemset(memory.at(), 3, 0));
    REQUIRE(read<uint8_t>(memory, 1)[0] == 1);
}

TEST_CASE("gpusim/programs: the default stream and blocking streams wait for each other, others do not",
          "[.][legacy]") {
    const Memory from(64);
    const Memory to(64);
    const BlockingStream blocking;
    cudaStream_t free_stream = nullptr;
    check(cudaStreamCreateWithFlags(&free_stream, cudaStreamNonBlocking));
    const auto fill = [&](int byte, cudaStream_t stream) { check(cudaMemsetAsync(from.at(), byte, 64, stream)); };
    const auto copy = [&](cudaStream_t stream) {
        check(cudaMemcpyAsync(to.at(), from.at(), 64, cudaMemcpyDeviceToDevice, stream));
        check(cudaStreamSynchronize(stream));
    };
    for (const std::string order : {"late", "random:1", "random:2", "random:3"}) {
        const ScopedOrder scope(order);
        fill(1, nullptr);
        copy(blocking);
        REQUIRE(read<uint8_t>(to, 1)[0] == 1);
        fill(2, blocking);
        copy(nullptr);
        REQUIRE(read<uint8_t>(to, 1)[0] == 2);
    }
    const ScopedOrder scope("late");  // work runs only when something waits for it
    fill(3, nullptr);
    copy(free_stream);
    REQUIRE(read<uint8_t>(to, 1)[0] == 2);  // the fill on the default stream had not run
    check(cudaStreamDestroy(free_stream));
}

TEST_CASE("gpusim/programs: without CUDA_DEFAULT_STREAM=legacy a call without a stream is refused") {
    if (std::getenv("CUDA_DEFAULT_STREAM")) return;
    const Memory memory(64);
    REQUIRE(cudaMemset(memory.at(), 1, 64) == cudaErrorInvalidResourceHandle);
    REQUIRE_THAT(cudaGetErrorString(cudaErrorInvalidResourceHandle), ContainsSubstring("CUDA_DEFAULT_STREAM"));
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaErrorInvalidValue);
}

TEST_CASE("gpusim/programs: attributes of an H200 are those of NVIDIA's tables, others are refused") {
    const auto value = [](int attribute) {
        int number = -7;
        check(cudaDeviceGetAttribute(&number, attribute, 0));
        return number;
    };
    // cudaDeviceAttr of the toolkit's driver_types.h; "Technical Specifications per Compute Capability", 9.0.
    for (const auto& [attribute, expected] : std::vector<std::pair<int, int>>{{1, 1024},
                                                                              {4, 64},
                                                                              {5, 2147483647},
                                                                              {6, 65535},
                                                                              {8, 49152},
                                                                              {10, 32},
                                                                              {12, 65536},
                                                                              {13, -1},  // the clock: unknown
                                                                              {16, 132},
                                                                              {20, 0},
                                                                              {39, 2048},
                                                                              {75, 9},
                                                                              {76, 0},
                                                                              {81, 233472},
                                                                              {82, 65536},
                                                                              {95, 1},
                                                                              {97, 232448},
                                                                              {106, 32},
                                                                              {120, 1}}) {
        INFO("attribute " << attribute);
        REQUIRE(value(attribute) == expected);
    }
    int number = -7;
    REQUIRE(cudaDeviceGetAttribute(&number, 36, 0) == cudaErrorInvalidValue);  // the memory clock's rate
    REQUIRE(cudaDeviceGetAttribute(&number, 1, 99) == cudaErrorInvalidDevice);
    REQUIRE(number == -7);
}

// A multiprocessor of an H200 has 2,048 threads, 32 blocks, 65,536 registers, and 228 KiB of shared memory, of which
// each block takes 1 KiB in addition to its own.
TEST_CASE("gpusim/programs: occupancy is limited by threads, blocks, shared memory and registers") {
    const auto blocks = [](const RegisteredProgram& program, int threads, size_t shared) {
        int count = -7;
        check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, program.function(), threads, shared));
        return count;
    };
    const auto bounded = [](const std::string& bounds) {
        return RegisteredProgram(RegisteredProgram::ptx("", "", bounds));
    };
    // Two blocks of 1,024 threads leave each thread 32 registers, so that registers limit no block.
    const RegisteredProgram full = bounded(".maxntid 1024\n.minnctapersm 2\n");
    REQUIRE(blocks(full, 1024, 0) == 2);
    REQUIRE(blocks(full, 256, 0) == 8);
    REQUIRE(blocks(full, 250, 0) == 8);  // 8 warps too
    REQUIRE(blocks(full, 32, 0) == 32);
    REQUIRE(blocks(full, 256, 100 << 10) == 2);  // 2 * 101 <= 228 < 3 * 101
    REQUIRE(blocks(full, 256, 113 << 10) == 2);  // 2 * 114 = 228
    REQUIRE(blocks(full, 256, (113 << 10) + 1) == 1);
    REQUIRE(blocks(full, 256, 227 << 10) == 1);
    REQUIRE(blocks(full, 256, 228 << 10) == 0);
    const RegisteredProgram narrow = bounded(".maxntid 256\n.minnctapersm 2\n");  // 128 registers
    REQUIRE(blocks(narrow, 256, 0) == 2);
    REQUIRE(blocks(narrow, 128, 0) == 4);
    REQUIRE(blocks(narrow, 257, 0) == 0);
    REQUIRE(blocks(bounded(""), 1024, 0) == 1);  // as many registers as a block of this size can have
    int count = -7;
    REQUIRE(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, full.function(), 0, 0) == cudaErrorInvalidValue);
    REQUIRE(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, &count, 32, 0) == cudaErrorInvalidDeviceFunction);
}

namespace {

// Column-major operands of a product in device memory, and the product in float64.
struct Product {
    int m, n, k;
    bool trans_a, trans_b;
    float alpha, beta;

    template <typename T>
    static std::vector<T> random(size_t count, uint32_t seed) {
        std::mt19937 generator(seed);
        std::vector<T> values;
        for (size_t i = 0; i < count; ++i) values.push_back(T(static_cast<float>(generator() % 17) / 4.0f - 2.0f));
        return values;
    }
    int ld_a() const { return (trans_a ? k : m) + 3; }
    int ld_b() const { return (trans_b ? n : k) + 1; }
    int ld_c() const { return m + 2; }
    size_t size_a() const { return static_cast<size_t>(ld_a()) * static_cast<size_t>(trans_a ? m : k); }
    size_t size_b() const { return static_cast<size_t>(ld_b()) * static_cast<size_t>(trans_b ? k : n); }
    size_t size_c() const { return static_cast<size_t>(ld_c()) * static_cast<size_t>(n); }

    template <typename T>
    double expected(const T* a, const T* b, double before, int i, int j) const {
        double sum = 0;
        for (int l = 0; l < k; ++l)
            sum += double{static_cast<float>(trans_a ? a[l + i * ld_a()] : a[i + l * ld_a()])} *
                   double{static_cast<float>(trans_b ? b[j + l * ld_b()] : b[l + j * ld_b()])};
        return double{alpha} * sum + (beta == 0 ? 0 : double{beta} * before);
    }
};

template <typename T>
void upload(const Memory& to, const std::vector<T>& from, cudaStream_t stream) {
    check(cudaMemcpyAsync(to.at(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
}

// Multiplies `batch` pairs of T into floats by the library and compares. The values are multiples of 1/16 below 2^10,
// so that sums are exact.
template <typename T>
void multiply_and_compare(const Product& p, int batch, int type, cublasContext* handle, cudaStream_t stream) {
    const auto count = static_cast<size_t>(batch);
    const auto a = Product::random<T>(p.size_a() * count, 1);
    const auto b = Product::random<T>(p.size_b() * count, 2);
    auto c = Product::random<float>(p.size_c() * count, 3);
    if (p.beta == 0) std::fill(c.begin(), c.end(), NAN);  // not read
    const Memory a_device(a.size() * sizeof(T));
    const Memory b_device(b.size() * sizeof(T));
    const Memory c_device(c.size() * sizeof(float));
    upload(a_device, a, stream);
    upload(b_device, b, stream);
    upload(c_device, c, stream);
    const int op_a = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int op_b = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int status =
        batch == 1
            ? cublasGemmEx(handle, op_a, op_b, p.m, p.n, p.k, &p.alpha, a_device.at(), type, p.ld_a(), b_device.at(),
                           type, p.ld_b(), &p.beta, c_device.at(), CUDA_R_32F, p.ld_c(), CUBLAS_COMPUTE_32F, -1)
            : cublasGemmStridedBatchedEx(handle, op_a, op_b, p.m, p.n, p.k, &p.alpha, a_device.at(), type, p.ld_a(),
                                         static_cast<long long>(p.size_a()), b_device.at(), type, p.ld_b(),
                                         static_cast<long long>(p.size_b()), &p.beta, c_device.at(), CUDA_R_32F,
                                         p.ld_c(), static_cast<long long>(p.size_c()), batch, CUBLAS_COMPUTE_32F, -1);
    REQUIRE(status == CUBLAS_STATUS_SUCCESS);
    std::vector<float> result(c.size());
    check(cudaMemcpyAsync(result.data(), c_device.at(), c.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    for (size_t l = 0; l < count; ++l)
        for (int j = 0; j < p.n; ++j)
            for (int i = 0; i < p.ld_c(); ++i) {
                const size_t at = l * p.size_c() + static_cast<size_t>(i + j * p.ld_c());
                const bool is_kept = i >= p.m;
                if (is_kept && std::isnan(c[at])) continue;
                const T* const a_of_batch = a.data() + l * p.size_a();
                const T* const b_of_batch = b.data() + l * p.size_b();
                REQUIRE(result[at] ==
                        (is_kept ? c[at] : static_cast<float>(p.expected(a_of_batch, b_of_batch, c[at], i, j))));
            }
}

}  // namespace

TEST_CASE("gpusim/programs: cuBLAS multiplies as documented, column-major, and refuses by a status") {
    cudaStream_t stream = nullptr;
    cublasContext* handle = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE(cublasCreate_v2(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasSetStream_v2(handle, stream) == CUBLAS_STATUS_SUCCESS);
    for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true})
            for (const float beta : {0.0f, 0.5f}) {
                CAPTURE(trans_a, trans_b, beta);
                const Product p{5, 7, 11, trans_a, trans_b, 2.0f, beta};
                multiply_and_compare<float>(p, 1, CUDA_R_32F, handle, stream);
                multiply_and_compare<bf16>(p, 1, CUDA_R_16BF, handle, stream);
                multiply_and_compare<bf16>(p, 3, CUDA_R_16BF, handle, stream);
            }
    const Memory memory(1024);
    const float one = 1;
    const auto ex = [&](int type, int ld, int compute) {
        return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, memory.at(), type, ld, memory.at(), type,
                            4, &one, memory.at(512), CUDA_R_32F, 4, compute, -1);
    };
    REQUIRE(ex(CUDA_R_32F, 3, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_INVALID_VALUE);
    REQUIRE(ex(1, 4, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);  // doubles
    REQUIRE(ex(CUDA_R_32F, 4, CUBLAS_COMPUTE_32F + 1) == CUBLAS_STATUS_NOT_SUPPORTED);
    REQUIRE(cublasSgemm_v2(nullptr, 0, 0, 4, 4, 4, &one, nullptr, 4, nullptr, 4, &one, nullptr, 4) ==
            CUBLAS_STATUS_NOT_INITIALIZED);
    REQUIRE(cublasSgemm_v2(handle, 0, 0, 0, 4, 4, &one, nullptr, 4, nullptr, 4, &one, nullptr, 4) ==
            CUBLAS_STATUS_SUCCESS);  // an empty product touches nothing
    REQUIRE(cublasDestroy_v2(handle) == CUBLAS_STATUS_SUCCESS);
    check(cudaStreamDestroy(stream));
}
