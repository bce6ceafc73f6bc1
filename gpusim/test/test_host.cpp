// Tests of what programs get from the model's host functions and from the device's system.
#include <cublasLt.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <cstdio>

#include "cpu/error.h"
#include "gpusim/abi/layouts.h"
#include "gpusim/tensor_map.h"
#include "gpusim/test/registered_program.h"
#include "test/support/catch.h"

using namespace teon::test;
using teon::gpusim::TensorMap;

namespace {

// Returns what `print` writes to stdout.
template <typename Print>
std::string printed(Print&& print) {
    std::fflush(stdout);
    std::FILE* const file = std::tmpfile();
    const int before = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    print();
    std::fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    std::rewind(file);
    std::string text;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
    std::fclose(file);
    return text;
}

std::string text_of(const char* name, const std::string& text) {
    std::string bytes;
    for (const char c : text) bytes += std::to_string(static_cast<int>(c)) + ", ";
    return fmt::format(".global .align 1 .b8 {}[{}] = {{{}0}};\n", name, text.size() + 1, bytes);
}

std::string generic(const char* to, const char* name) {
    return fmt::format("mov.u64 {0}, {1}; cvta.global.u64 {0}, {0};", to, name);
}

}  // namespace

TEST_CASE("gpusim/host: the device's printf") {
    const std::string declarations =
        ".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 "
        "arguments);\n" +
        text_of("$format", "%d %5.2f|%s|%llx %u%% %c%*d\n") + text_of("$word", "word");
    const RegisteredProgram program(RegisteredProgram::ptx(
        ".local .align 8 .b8 stack[64]; mov.u64 %d1, stack; cvta.local.u64 %d2, %d1; mov.u32 %r0, %tid.x;" +
            generic("%d3", "$format") + generic("%d4", "$word") +
            "mov.f64 %g1, 0d400921FB54442D18; st.local.u32 [%d1], -7; st.local.f64 [%d1+8], %g1; st.local.u64 "
            "[%d1+16], %d4;"
            "mov.u64 %d5, 0xabcdef0123; st.local.u64 [%d1+24], %d5; st.local.u32 [%d1+32], %r0;"
            "st.local.u32 [%d1+36], 65; st.local.u32 [%d1+40], 4; st.local.u32 [%d1+44], 9;"
            "{ .param .b64 param0; .param .b64 param1; .param .b32 retval0; st.param.b64 [param0], %d3;"
            "st.param.b64 [param1], %d2; call.uni (retval0), vprintf, (param0, param1);"
            "ld.param.b32 %r5, [retval0]; }",
        declarations));
    cudaError_t status = cudaSuccess;
    const std::string text = printed([&] { status = program.run(2); });
    REQUIRE(std::string(cudaGetErrorString(status)) == "cudaSuccess");
    REQUIRE(text == "-7  3.14|word|abcdef0123 0% A   9\n-7  3.14|word|abcdef0123 1% A   9\n");
}

TEST_CASE("gpusim/host: a failed assertion prints its text and place") {
    const std::string declarations =
        ".extern .func __assertfail(.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, "
        ".param .b64 size) .noreturn;\n" +
        text_of("$message", "x < 3") + text_of("$file", "folder/kernel.cu") + text_of("$function", "void k(int)");
    const RegisteredProgram program(RegisteredProgram::ptx(
        generic("%d1", "$message") + generic("%d2", "$file") + generic("%d3", "$function") +
            "mov.u32 %r0, %tid.x; setp.ne.u32 %p1, %r0, 5; @%p1 bra $end;"
            "{ .param .b64 param0; .param .b64 param1; .param .b32 param2; .param .b64 param3; .param .b64 param4;"
            "st.param.b64 [param0], %d1; st.param.b64 [param1], %d2; st.param.b32 [param2], 17;"
            "st.param.b64 [param3], %d3; st.param.b64 [param4], 1;"
            "call.uni __assertfail, (param0, param1, param2, param3, param4); } $end:",
        declarations));
    const cudaError_t status = program.run(32);
    const std::string text = cudaGetErrorString(status);
    teon::cpu::forget_device_error();
    REQUIRE(status == cudaErrorLaunchFailure);
    REQUIRE_THAT(text, ContainsSubstring("lane 5: the assertion `x < 3' fails, in void k(int) at folder/kernel.cu:17"));
}

TEST_CASE("gpusim/host: code that cannot be decoded is an error of its own, which no call after it hides") {
    const RegisteredProgram program(RegisteredProgram::ptx("tensormap.cp_fenceproxy %r1, %r2;"));
    char attributes[teon::gpusim::kFunctionAttributesBytes];
    const std::string words = "the modelled GPU does not know \"tensormap.cp_fenceproxy %r1, %r2\"";
    const auto [first, second, last] = [&] {
        const cudaError_t first = cudaFuncGetAttributes(attributes, program.function());
        (void)cudaGetLastError();  // as a program that has another kernel for such a device
        const cudaError_t second = cudaDeviceSynchronize();
        return std::tuple{first, second, cudaGetLastError()};
    }();
    const std::string text = cudaGetErrorString(cudaErrorInvalidPtx);
    teon::cpu::forget_device_error();
    REQUIRE((first == cudaErrorInvalidPtx && second == cudaErrorInvalidPtx && last == cudaErrorInvalidPtx));
    REQUIRE_THAT(text, ContainsSubstring(words));
    const cudaError_t set = cudaFuncSetAttribute(program.function(), cudaFuncAttributeMaxDynamicSharedMemorySize, 4);
    teon::cpu::forget_device_error();
    const cudaError_t launched = program.run(1);
    teon::cpu::forget_device_error();
    REQUIRE((set == cudaErrorInvalidPtx && launched == cudaErrorInvalidPtx));
}

TEST_CASE("gpusim/host: a program without code for the device says so, and goes on") {
    const RegisteredProgram program(RegisteredProgram::ptx(""), 120);
    char attributes[teon::gpusim::kFunctionAttributesBytes];
    REQUIRE(cudaFuncGetAttributes(attributes, program.function()) == cudaErrorNoKernelImageForDevice);
    REQUIRE_THAT(cudaGetErrorString(cudaErrorNoKernelImageForDevice),
                 ContainsSubstring("no PTX for a device of compute capability 9.0"));
    REQUIRE(cudaFuncGetAttributes(attributes, nullptr) == cudaErrorInvalidDeviceFunction);
    (void)cudaGetLastError();
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("gpusim/host: a device's properties are right or plainly unknown") {
    alignas(8) unsigned char properties[teon::gpusim::kPropertiesBytes] = {};
    REQUIRE(cudaGetDeviceProperties(reinterpret_cast<cudaDeviceProp*>(properties), 0) == cudaSuccess);
    const auto number = [&](size_t offset) {
        int value = 0;
        std::memcpy(&value, properties + offset, sizeof value);
        return value;
    };
    // The offsets that test/runtime/test_cuda_values.cu compares with the toolkit's; the values of an H200.
    REQUIRE(std::string(reinterpret_cast<const char*>(properties)) == "NVIDIA H200");
    REQUIRE(number(604) == 2048);                                         // maxThreadsPerMultiProcessor
    REQUIRE(number(688) == 32);                                           // maxBlocksPerMultiProcessor
    REQUIRE((number(324) == 1024 && number(332) == 64));                  // maxThreadsDim
    REQUIRE((number(336) == INT_MAX && number(340) == 65535));            // maxGridSize
    REQUIRE((number(632) == 65536 && number(352) == 65536));              // registers and constants of a multiprocessor
    REQUIRE((number(636) == 0 && number(668) == 1 && number(748) == 0));  // managed memory, cooperative, clusters
    REQUIRE(number(596) == -1);                                           // l2CacheSize
}

TEST_CASE("gpusim/host: pinned memory may be portable and write-combined, which changes nothing") {
    for (const unsigned flags : {1u, 4u, 5u}) {  // cudaHostAllocPortable, cudaHostAllocWriteCombined
        void* memory = nullptr;
        REQUIRE(cudaHostAlloc(&memory, 64, flags) == cudaSuccess);
        std::memset(memory, 1, 64);
        REQUIRE(cudaFreeHost(memory) == cudaSuccess);
    }
    void* memory = nullptr;
    REQUIRE(cudaHostAlloc(&memory, 64, 8) == cudaErrorInvalidValue);  // no flag
    cudaGetLastError();
}

TEST_CASE("gpusim/host: the scale of a product is float, which a program may say again") {
    cublasLtMatmulDesc_t operation;
    REQUIRE(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    const auto set = [&](cudaDataType_t type) {
        return cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &type, sizeof type);
    };
    REQUIRE(set(CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(set(CUDA_R_16BF) == CUBLAS_STATUS_NOT_SUPPORTED);
    cublasLtMatmulDescDestroy(operation);
}

TEST_CASE("gpusim/host: a program may clear bit 21 of a tensor map's second word") {
    void* function = nullptr;
    REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, 0, nullptr) == cudaSuccess);
    using Encode = int (*)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                           const uint32_t*, int, int, int, int);
    const uint64_t extents[] = {64, 256};
    const uint64_t strides[] = {128};
    const uint32_t box[] = {64, 128};
    const uint32_t steps[] = {1, 1};
    void* const address = reinterpret_cast<void*>(~uint64_t{0xf});  // has every bit of an address
    struct alignas(64) {
        uint64_t words[16];
    } map = {};
    REQUIRE(reinterpret_cast<Encode>(function)(&map, teon::gpusim::kTensorMapBf16, 2, address, extents, strides, box,
                                               steps, 0, teon::gpusim::kTensorMapSwizzle128, 0, 0) == 0);
    map.words[1] &= ~(uint64_t{1} << 21);
    TensorMap decoded;
    std::memcpy(static_cast<void*>(&decoded), &map, sizeof decoded);
    REQUIRE(decoded.address == reinterpret_cast<uintptr_t>(address));
    REQUIRE((decoded.magic == TensorMap::kMagic && decoded.rank == 2 && decoded.swizzle_bytes == 128));
    REQUIRE((decoded.strides[1] == 128 && decoded.extents[1] == 256 && decoded.box[1] == 128));
}
