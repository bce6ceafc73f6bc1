// Programs as nvcc's host code registers them, with PTX that tests write.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, void*, void*, void*, void*,
                            int*);
void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t bytes, int, int);
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t dynamic_shared,
                             cudaStream_t stream);
cudaError_t cudaFuncGetAttributes(void* attributes, const void* function);
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long, int*);
}

namespace teon::test {

// A program with one kernel, called "kernel". Never unregistered, like nvcc's.
class RegisteredProgram {
public:
    explicit RegisteredProgram(const std::string& ptx, uint32_t architecture = 80) {
        // The layouts of gpusim/fat_binary.cpp.
        struct {
            uint32_t magic = 0xba55ed50;
            uint16_t version = 1, header_bytes = 16;
            uint64_t bytes = 0;
        } header;
        struct {
            uint16_t kind = 1, version = 0x101;
            uint32_t header_bytes = 48;
            uint64_t bytes = 0;
            uint32_t compressed_bytes = 0, options = 0;
            uint16_t minor = 0, major = 8;
            uint32_t architecture = 80, name_offset = 0, name_bytes = 0;
            uint64_t flags = 0;
        } entry;
        static_assert(sizeof header == 16 && sizeof entry == 48);
        entry.bytes = ptx.size() + 1;
        entry.architecture = architecture;
        header.bytes = sizeof entry + entry.bytes;
        auto* data = new std::vector<unsigned char>(sizeof header + header.bytes);
        std::memcpy(data->data(), &header, sizeof header);
        std::memcpy(data->data() + sizeof header, &entry, sizeof entry);
        std::memcpy(data->data() + sizeof header + sizeof entry, ptx.c_str(), ptx.size() + 1);
        struct Wrapper {
            uint32_t magic = 0x466243b1, version = 1;
            const unsigned char* data;
            const void* rest = nullptr;
        };
        module_ = __cudaRegisterFatBinary(new Wrapper{.data = data->data()});
        __cudaRegisterFunction(module_, function(), nullptr, "kernel", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    }

    // Stands for the kernel's host function.
    const char* function() const { return reinterpret_cast<const char*>(module_); }

    // `host` stands for the host's shadow of a variable of device code.
    void register_variable(const char* host, const char* name, size_t bytes) {
        __cudaRegisterVar(module_, const_cast<char*>(host), nullptr, name, 0, bytes, 0, 1);
    }

    cudaError_t launch(cudaStream_t stream, unsigned threads = 1) const {
        return cudaLaunchKernel(function(), dim3(1), dim3(threads), nullptr, 0, stream);
    }

    // Runs the kernel with this many threads, without arguments, and returns the error of the launch or of the wait.
    cudaError_t run(unsigned threads) const {
        cudaStream_t stream;
        cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        if (status == cudaSuccess) status = launch(stream, threads);
        if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
        cudaStreamDestroy(stream);
        return status;
    }

    // `bounds`: directives of the kernel.
    static std::string ptx(const std::string& body, const std::string& declarations = "",
                           const std::string& bounds = "") {
        return ".version 8.0\n.target sm_80\n.address_size 64\n" + declarations + ".visible .entry kernel()\n" +
               bounds + "{\n.reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .f64 %g<4>;\n" + body +
               "\nret;\n}\n";
    }

private:
    void** module_ = nullptr;
};

}  // namespace teon::test
