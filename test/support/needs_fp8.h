// NEEDS_FP8() skips a test case on a GPU without FP8 products.
#pragma once

#include "runtime/cuda/device.h"
#include "test/support/skip.h"

#define NEEDS_FP8()                                                                                 \
    if (const auto device = ::teon::device_info(); device.is_gpu && device.compute_capability < 89) \
    SKIP_TEST("multiplies FP8, which GPUs do from compute capability 8.9 on")
