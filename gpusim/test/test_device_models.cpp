#include "gpusim/device_models.h"

#include <cstdlib>

#include "base/check.h"
#include "test/support/catch.h"

TEST_CASE("gpusim/device_models: CUDA_DEVICE is a row of base/gpus.h up to sm_90, without it an H200") {
    const auto find = [](const char* name) -> const teon::GpuSheet& {
        ::setenv("CUDA_DEVICE", name, 1);
        const teon::GpuSheet& gpu = teon::gpusim::find_device_model();
        ::unsetenv("CUDA_DEVICE");
        return gpu;
    };
    REQUIRE(find("").capability == 90);
    REQUIRE(std::string(find("").model) == "H200");
    REQUIRE(find("A100").block_shared() == 163 * 1024);
    REQUIRE(find("RTX4090").multiprocessors == 128);
    REQUIRE_THROWS_WITH(find("B200"), "CUDA_DEVICE is \"B200\"; it must be one of H100, H200, A100, L40S, RTX4090");
    ::unsetenv("CUDA_DEVICE");
}
