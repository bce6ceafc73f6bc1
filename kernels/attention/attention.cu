// Causal self-attention: checks its arguments and calls the implementation for the device.
#include "kernels/attention/attention.h"

#include "kernels/attention/rows.h"
#include "kernels/attention/tiled.h"
#include "kernels/common.h"
#include "kernels/dropout.h"

namespace teon {

namespace {

void check_shape(const AttentionShape& s) {
    CHECK(s.B >= 1 && s.T >= 1 && s.NH >= 1 && s.NKV >= 1 && s.HS >= 1,
          "attention: B={} T={} NH={} NKV={} HS={}, expected all >= 1", s.B, s.T, s.NH, s.NKV, s.HS);
    CHECK(s.NH % s.NKV == 0, "attention: {} query heads cannot share {} key/value heads evenly", s.NH, s.NKV);
}

// Builds for GPUs have no tiled attention: a template's branch that is not taken names nothing that must exist.
template <typename T>
size_t scratch_bytes(const AttentionShape& s, bool on_gpu) {
    if constexpr (!kGpu) {
        if (!on_gpu) return attention_tiled_scratch_bytes<T>(s);
    }
    return attention_rows_scratch_bytes<T>(s);
}

}  // namespace

size_t attention_scratch_bytes(const AttentionShape& s, DType dtype, bool on_gpu) {
    check_shape(s);
    CHECK(dtype == DType::f32 || dtype == DType::bf16, "attention: storage type {}, expected float or bf16",
          name_of(dtype));
    return dtype == DType::f32 ? scratch_bytes<float>(s, on_gpu) : scratch_bytes<bf16>(s, on_gpu);
}

template <typename T>
void attention_forward(T* out, float* lse, void* scratch, const T* qkv, const int* first_key, const AttentionShape& s,
                       Context& context, const DropoutMask& dropout) {
    check_shape(s);
    check_dropout(dropout);
    if constexpr (kGpu) {
        attention_rows_forward(out, lse, scratch, qkv, first_key, s, context, dropout);
    } else {
        attention_tiled_forward(out, lse, scratch, qkv, first_key, s, context, dropout);
    }
}

template <typename T>
void attention_backward(T* dqkv, void* scratch, const T* dout, const T* qkv, const T* out, const float* lse,
                        const int* first_key, const AttentionShape& s, Context& context, const DropoutMask& dropout) {
    check_shape(s);
    check_dropout(dropout);
    if constexpr (kGpu) {
        attention_rows_backward(dqkv, scratch, dout, qkv, out, lse, first_key, s, context, dropout);
    } else {
        attention_tiled_backward(dqkv, scratch, dout, qkv, out, lse, first_key, s, context, dropout);
    }
}

FOR_STORAGE_TYPES(attention_forward);
FOR_STORAGE_TYPES(attention_backward);

}  // namespace teon
