// Every operation, documented once. op_forward / op_backward launch kernels on the given stream and return.
//
// T is float or bf16; sums, statistics and parameter gradients are float. N = B * T rows. All matrices are row-major
// and dense. Outputs are written with `=` unless `+=` is said. Pointers come from Buffer, or are a piece of one
// (256-byte aligned); any dimension >= 1 is allowed unless said otherwise. Argument order: outputs, saved state,
// scratch, inputs, dimensions, scalars, stream. The same inputs give the same bits: no float atomics, two-stage
// reductions of fixed shape. Scratch for N rows suffices for fewer.
#pragma once

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/attention_decode.h"
#include "kernels/attention_flash.h"
#include "kernels/classifier.h"
#include "kernels/embedding.h"
#include "kernels/fill.h"
#include "kernels/fp8.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/lion.h"
#include "kernels/qk_norm.h"
#include "kernels/reduce.h"
#include "kernels/relu2.h"
#include "kernels/rmsnorm.h"
#include "kernels/rotary.h"
#include "kernels/soap.h"
#include "kernels/step_control.h"
#include "kernels/swiglu.h"
#include "kernels/teon.h"
