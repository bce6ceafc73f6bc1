// All operations, and the conventions that they share. op_forward and op_backward launch kernels on the given stream
// and return.
//
// T is float or bf16; sums, statistics and parameter gradients are float. N = B * T rows. All matrices are row-major
// and dense. Outputs are overwritten (`=`) unless the comment says `+=`. Pointers are those of a Buffer or of a
// 256-byte aligned piece of one. Any dimension >= 1 is allowed unless the comment says otherwise. The order of
// arguments is outputs, saved state, scratch, inputs, dimensions, scalars, stream. The same inputs give the same bits:
// there are no float atomics, and reductions have two stages of fixed shape. Scratch for N rows suffices for fewer
// rows.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/decode.h"
#include "kernels/attention/first_key.h"
#include "kernels/attention/flash.h"
#include "kernels/classifier.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/fill.h"
#include "kernels/fp8.h"
#include "kernels/norm.h"
#include "kernels/optimizers/adamw.h"
#include "kernels/optimizers/lion.h"
#include "kernels/optimizers/teon.h"
#include "kernels/qk_norm.h"
#include "kernels/reduce.h"
#include "kernels/rotary.h"
#include "kernels/step_control.h"
