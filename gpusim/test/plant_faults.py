#!/usr/bin/env python3
"""Plants faults in the PTX of a program that nvcc built, one at a time, and checks that the modelled GPU finds each.

    LD_LIBRARY_PATH=build/model-gpu gpusim/test/plant_faults.py build/cuda-model/tests build/cuda-model/clusters [WORD]

The second program is gpusim/examples/clusters.cu. With WORD, plants only the faults whose row contains it.

A fault replaces text in the PTX of kernels (for sm_90a or sm_80) in a copy of the program by text that is not longer,
so nothing is compiled. Exit status: 0 if the intended check found each fault, else 1.
"""
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import threading

LINE = rb"\s*\.loc[^\n]*\n"  # a source location, which does not execute: room for longer instructions
# {kind of fault: (pattern, its replacement)}. \1 and so on are groups of the pattern.
KINDS = {
    "no barrier": (rb"bar\.sync\s+0;", rb";"),
    "a barrier for some lanes": (rb"bar\.sync\s+0;" + LINE, rb"@%p1 bar.sync 0;\n"),
    "no __syncwarp": (rb"bar\.warp\.sync\s+-1;", rb";"),
    "__syncwarp of lane 0": (rb"bar\.warp\.sync\s+-1;", rb"bar.warp.sync 1;"),
    "waiting for one copy too few": (rb"cp\.async\.wait_group\s+0;", rb"cp.async.wait_group 1;"),
    "copies not committed": (rb"cp\.async\.commit_group;", rb";"),
    "half a copy": (rb"(cp\.async\.c[ag]\.shared\.global[^;]*), 16([,;])", rb"\1, 8\2"),
    "no wait for earlier kernels": (rb"griddepcontrol\.wait;", rb";"),
    ">= becomes >": (rb"setp\.ge\.([su])", rb"setp.gt.\1"),
    "< becomes <=": (rb"setp\.lt\.([su])", rb"setp.le.\1"),
    "> becomes >=": (rb"setp\.gt\.([su])", rb"setp.ge.\1"),
    "a condition's opposite": (rb"@(%p\d+) bra\s+(\$\w+;)\s\s", rb"@!\1 bra \2\n"),
    "!= becomes ==": (rb"setp\.ne\.", rb"setp.eq."),
    "a wider index": (rb"(mul\.wide\.[su]32\s+%rd\d+, %r\d+), 4;", rb"\1, 8;"),
    "a narrower index": (rb"(mul\.wide\.[su]32\s+%rd\d+, %r\d+), 4;", rb"\1, 2;"),
    "an index of 16 bits": (rb"(mul\.wide\.[su]32\s+%rd\d+, %r\d+), 2;", rb"\1, 4;"),
    "a wider shared index": (rb"(shl\.b32\s+%r\d+, %r\d+), 2;", rb"\1, 3;"),
    "the wrong dimension": (rb"%ctaid\.x;", rb"%ctaid.y;"),
    "the other coordinate": (rb"%ctaid\.y;", rb"%ctaid.x;"),
    "a misaligned vector": (rb"(\.v[24]\.[^;\[]*\[%rd?\d+\+-?\d*)\d\]", rb"\g<1>1]"),
    "truncation": (rb"cvt\.rn\.bf16\.f32", rb"cvt.rz.bf16.f32"),
    "truncation of pairs": (rb"cvt\.rn\.bf16x2\.f32", rb"cvt.rz.bf16x2.f32"),
    "a sign": (rb"(cvt\.)s64\.s32", rb"\1u64.u32"),
    "wrong mma operand": (rb"(mma\.sync[^{]*\{[^}]*\}[^{]*\{)(%r\d+), (%r\d+)", rb"\1\3, \2"),
    "wrong mma columns": (rb"(mma\.sync[^{]*\{[^}]*\}[^{]*\{[^}]*\}[^{]*\{)(%r\d+), (%r\d+)", rb"\1\3, \2"),
    "wrong accumulators": (
        rb"(mma\.sync[^{]*\{[^}]*\}[^{]*\{[^}]*\}[^{]*\{[^}]*\}[^{]*\{)(%f\d+), (%f\d+)", rb"\1\3, \2"),
    "ldmatrix not transposed": (rb"(ldmatrix[^;]*)\.trans([^;]*;)", rb"\1\2"),
    "another shuffle": (rb"shfl\.sync\.bfly([^;]*;)", rb"shfl.sync.up\1"),
    "a mask of one lane": (rb"(shfl\.sync\.\w+\.b32\s+[^;]*), %r\d+;", rb"\1, 1;"),
    "a wrong distance": (rb"(mov\.u32\s+%r\d+), 16;", rb"\1, 15;"),
    "a missing accumulate": (rb"add\.f32\s+(%f\d+), (%f\d+), (%f\d+);", rb"mov.f32 \1, \3;"),
    "a missing product": (rb"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+), (%f\d+);", rb"mov.f32 \1, \4;"),
    "an fma's sum that is lost": (rb"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+), (%f\d+);", rb"mul.f32 \1, \2, \3;"),
    "min for max": (rb"max\.f32", rb"min.f32"),
    "max for min": (rb"min\.f32", rb"max.f32"),
    "sum for difference": (rb"sub\.f32", rb"add.f32"),
    "an atomic add that reads only": (rb"atom\.(global|shared)\.add\.([usf]\d+)(\s+%\w+), (\[[^\]]*\]), [^;]*;",
                                      rb"ld.\1.\2\3, \4;"),
    "a lost store": (rb"st\.global\.[^;]*;", rb";"),
    "a lost store to shared memory": (rb"st\.shared\.[^;]*;", rb";"),
    "fewer threads by __launch_bounds__": (rb"\.maxntid \d+", rb".maxntid 31"),
    "no wgmma.fence": (rb"wgmma\.fence\.sync\.aligned;", rb";"),
    "products not waited for": (rb"wgmma\.wait_group\.sync\.aligned \d;", rb";"),
    "waiting for one group too few": (rb"wgmma\.wait_group\.sync\.aligned 0;", rb"wgmma.wait_group.sync.aligned 1;"),
    "wgmma not transposed": (rb"(wgmma\.mma_async[^;]*p, 1, 1), 1;", rb"\1, 0;"),
    "operands not transposed": (rb"(wgmma\.mma_async[^;]*p, 1, 1), 1, 1;", rb"\1, 0, 0;"),
    "an old sum": (rb"(setp\.ne\.b32 p, %r\d+), 0;\n(wgmma)", rb"\1, 9;\n\2"),
    "no arrival": (rb"mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];", rb";"),
    "an arrival too many": (rb"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), %r\d+;", rb"\1, 2;"),
    "bytes not expected": (rb"mbarrier\.arrive\.expect_tx(\.shared::cta\.b64 _, \[%r\d+\]), %r\d+;",
                           rb"mbarrier.arrive.expect_tx\1, 16;"),
    "a wait that says yes": (rb"(mbarrier\.try_wait[^;]*;\s+)selp\.b32 (%r\d+), 1, 0, p;", rb"\1mov.b32 \2, 1;"),
    "no fence of mbarriers": (rb"fence\.mbarrier_init\.release\.cluster;", rb";"),
    "swapped coordinates": (rb"(cp\.async\.bulk[^{]*\{)(%r\d+), (%r\d+)", rb"\1\3, \2"),
    "no turn": (rb"bar\.arrive [^;]*;", rb";"),
    "no named barrier": (rb"bar\.sync %r\d+, %?\w+;", rb";"),
    "more registers": (rb"(setmaxnreg\.inc\.sync\.aligned\.u32) 232;", rb"\1 240;"),
    "less static shared memory": (rb"(\.shared \.align \d+ \.b8 \w+)\[\d+\]", rb"\1[8]"),
    "too much static shared memory": (rb"(\.shared \.align )16( \.b8 \w+)\[\d\d\d\];\s+", rb"\g<1>4\2[50000];\n"),
    "no barrier of the cluster": (rb"barrier\.cluster\.arrive\.release\.aligned;\s*"
                                  rb"barrier\.cluster\.wait\.acquire\.aligned;", rb";"),
    "no arrival at the other block": (rb"mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64 _, [^;]*;", rb";"),
    "one receiver": (rb"(mov\.u16\s+%rs\d+), 3;", rb"\1, 1;"),
    "a wait that does not wait": (rb"@!done bra again; \}", rb"}"),
    "no proxy fence": (rb"fence\.proxy\.async\.shared::cta;", rb";"),
    "stores not committed": (rb"cp\.async\.bulk\.commit_group;", rb";"),
    "waiting for one store too few": (rb"cp\.async\.bulk\.wait_group\.read 0;", rb"cp.async.bulk.wait_group.read 1;"),
    "fewer bytes expected": (rb"(mbarrier\.arrive\.expect_tx[^;]*), 512;", rb"\1, 256;"),
    "the own block": (rb"mapa\.shared::cluster\.u32 (%r\d+), (%r\d+), %r\d+;", rb"mov.u32 \1, \2;"),
    "a tile's coordinates swapped": (rb"(cp\.async\.bulk\.tensor\.2d\.global[^{]*\{)(%r\d+), (%r\d+)", rb"\1\3, \2"),
    "no arrival at the cluster's barrier": (rb"barrier\.cluster\.arrive\.release\.aligned;", rb";"),
    "no wait at the cluster's barrier": (rb"barrier\.cluster\.wait\.acquire\.aligned;", rb";"),
    "one arrival is enough": (rb"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), 2;", rb"\1, 1;"),
    "two arrivals for one": (rb"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), 1;", rb"\1, 2;"),
    "a wait for phase 0": (rb"(mbarrier\.try_wait[^;]*\]), %r\d+;", rb"\1, 0;"),
    "more bytes expected": (rb"(mbarrier\.arrive\.expect_tx[^;]*), 512;", rb"\1, 528;"),
    "an arrival without bytes": (rb"mbarrier\.arrive\.expect_tx(\.shared::cta\.b64 _, \[%r\d+\]), (%r\d+|512);",
                                 rb"mbarrier.arrive\1;"),
    "the fence of device memory": (rb"fence\.proxy\.async\.shared::cta;", rb"fence.proxy.async.global;"),
    "the other receiver": (rb"(mov\.u16\s+%rs\d+), 3;", rb"\1, 2;"),
    "a store to another row": (rb"(cp\.async\.bulk\.tensor\.2d\.global[^{]*\{)(%r\d+), (%r\d+)", rb"\1\2, \2"),
    "a store not waited for": (rb"cp\.async\.bulk\.wait_group\.read 0;", rb";"),
    "a phase that stays": (rb"xor\.b32(\s+(%r\d+), \2, %r\d+;)", rb"or.b32\1"),
    "a phase that stays 0": (rb"xor\.b32(\s+(%r\d+), \2, %r\d+;)", rb"and.b32\1"),
    "products not committed": (rb"wgmma\.commit_group\.sync\.aligned;", rb";"),
    "another distance of rows": (rb"(or\.b64\s+%rd\d+, %rd\d+), 4611686293305294848;", rb"\1, 4611686155866341376;"),
    "no swizzle": (rb"(or\.b64\s+%rd\d+, %rd\d+), 4611686293305294848;", rb"\1, 274877906944;"),
    "fewer threads at a named barrier": (rb"bar\.sync (%r\d+), %r\d+;", rb"bar.sync \1, 64;"),
    "no wait at a named barrier": (rb"bar\.sync %r\d+, %r\d+;", rb";"),
    "no registers given": (rb"setmaxnreg\.dec\.sync\.aligned\.u32 \d+;", rb";"),
    "a lost tile": (rb"cp\.async\.bulk\.tensor\.3d[^;]*;", rb";"),
    "row and batch swapped": (rb"(cp\.async\.bulk\.tensor\.3d[^{]*\{%r\d+, )(%r\d+), (%r\d+)", rb"\1\3, \2"),
    "some threads wait for earlier kernels": (rb"griddepcontrol\.wait;" + LINE, rb"@%p1 griddepcontrol.wait;\n"),
    "a mask of half the warp": (rb"(shfl\.sync\.\w+\.b32\s+[^;]*), %r\d+;\s*" + LINE, rb"\1, 65535;\n"),
    "an atomic add that stores": (rb"atom\.(global|shared)\.add\.([usf]32)(\s+%\w+), (\[[^\]]*\]), ([^;]*);",
                                  rb"atom.\1.exch.b32\3, \4,\5;"),
    "a copy of one group more in flight": (rb"cp\.async\.wait_group\s+1;", rb"cp.async.wait_group 2;"),
    "no exponential": (rb"ex2\.approx\.ftz\.f32(\s+%f\d+, %f\d+;)", rb"mov.f32\1"),
}

RACE, EARLY, UNWRITTEN = "a race", "before griddepcontrol.wait", "which nothing has written"
COPYING, BEYOND, ALIGNED = "which cp.async still writes", "of an allocation of", "is not a multiple of"
NOTED = {"no fence of mbarriers"}  # the model only notes these, because published kernels rely on them
UNFENCED, UNENDED = "written since the last wgmma.fence", "no wgmma.wait_group has ended"
SHARED, WRONG = "of shared memory, of which the block has", "with expansion:"  # a test's comparison
OTHERS, STILL_READ, ENDLESS = "another block's", "which a bulk copy of warp 0 still reads", "waits for ever"
# Replaces the n-th match of this kind in each kernel whose mangled name matches; `tests` must then fail with `words`.
# Without tests, the kernel is one of clusters.cu, which checks its results itself. order: of warps and copies.
Fault = collections.namedtuple("Fault", "kind kernel n tests words order", defaults=["forward"])
FORWARD, KEYS = rb"flash_attention_forward_kernelILi64", rb"flash_attention_key_gradient_kernelILi64"
QUERIES = rb"flash_attention_query_gradient_kernelILi64"
HOPPER, HOPPER_KEYS = rb"flash_attention_hopper_kernelILi64", rb"flash_attention_hopper_key_gradient_kernelILi64"
HOPPER_QUERIES = rb"flash_attention_hopper_query_gradient_kernelILi64"
HOPPER_SYMMETRIC = rb"symmetric_product_hopper_kernel"
ON_A100 = (FORWARD, KEYS, QUERIES)  # in the PTX for sm_80, because an H200 uses other kernels
FLASH = "kernels/attention/flash: many tiles*"
WALK = "kernels/attention/flash: blocks that*"
DECODE, CLASSIFIER = "kernels/attention/decode: the last*", "kernels/classifier: loss and*"
NORM, NORM_BACK = "kernels/norm: forward*", "kernels/norm: backward*"
QK, ROTARY, REDUCE = "kernels/qk_norm: forward and*", "kernels/rotary: forward and*", "kernels/reduce: sums*"
ACTIVATION, ACTIVATION_BACK = "kernels/activation: forward*", "kernels/activation: backward*"
EMBED_BACK = "kernels/embedding: backward*"
SYMMETRIC = "runtime/linalg/symmetric_product: equals*"
FAULTS = [
    Fault("no barrier", FORWARD, 0, FLASH, RACE),
    Fault("no barrier", KEYS, 1, FLASH, RACE),
    Fault("no barrier", rb"symmetric_product_kernel", 1, SYMMETRIC, RACE),
    Fault("no barrier", rb"attention_decode_kernel", 0, DECODE, UNWRITTEN),
    Fault("no barrier", rb"classifier_kernel", 0, CLASSIFIER, UNWRITTEN),
    Fault("no barrier", rb"embedding_backward_kernel", 0, EMBED_BACK, RACE),
    Fault("no barrier", rb"column_sums_kernel", 0, ACTIVATION_BACK, UNWRITTEN),
    Fault("no barrier", rb"reduce_final_kernel", 0, REDUCE, UNWRITTEN),
    Fault("a barrier for some lanes", rb"reduce_final_kernel", 0, REDUCE, "only some lanes of the warp"),
    Fault("no __syncwarp", FORWARD, 1, FLASH, RACE),
    Fault("no __syncwarp", QUERIES, 1, FLASH, RACE),
    Fault("__syncwarp of lane 0", KEYS, 0, FLASH, "is not in its own mask"),
    Fault("waiting for one copy too few", FORWARD, 0, FLASH, COPYING),
    Fault("copies not committed", KEYS, 0, FLASH, COPYING),
    Fault("half a copy", rb"symmetric_product_kernel", 0, SYMMETRIC, "are to be read of a copy of 8"),
    Fault("no wait for earlier kernels", rb"activation_forward_kernel.*4Gelu", 0, ACTIVATION, EARLY),
    Fault("no wait for earlier kernels", rb"norm_forward_kernel", 0, NORM, EARLY),
    Fault("no wait for earlier kernels", rb"rotary_kernel", 0, ROTARY, EARLY),
    Fault(">= becomes >", rb"activation_forward_kernel.*4Gelu", 0, ACTIVATION, "after the last element"),
    Fault(">= becomes >", rb"rotary_kernel", 0, ROTARY, BEYOND),
    Fault(">= becomes >", rb"reduce_final_kernel", 0, REDUCE, WRONG),
    Fault(">= becomes >", rb"cast_kernel", 0, "kernels/fill: casts*", "after the last element"),
    Fault("a condition's opposite", rb"mirror_kernel", 0, "runtime/linalg/linalg: a symm*", ""),
    Fault("a condition's opposite", rb"gated_forward_kernel.*6Swiglu", 0, ACTIVATION, ""),
    Fault("a condition's opposite", rb"add_identity_kernel", 0, "kernels/optimizers/teon: adding*", ""),
    Fault("!= becomes ==", rb"norm_backward_kernel", 0, NORM_BACK, BEYOND),
    Fault("a wider index", rb"embedding_forward_kernel", 0, "kernels/embedding: forward*", ""),
    Fault("a wider index", rb"reduce_final_kernel", 0, REDUCE, WRONG),
    Fault("a narrower index", rb"classifier_kernel", 0, CLASSIFIER, ""),
    Fault("a wider shared index", rb"embedding_backward_kernel", 0, EMBED_BACK, ""),
    Fault("the wrong dimension", rb"qk_norm_forward_kernel", 0, QK, WRONG),
    Fault("the wrong dimension", rb"transpose_kernel", 0, "runtime/linalg/decompositions: svd rec*", ""),
    Fault("the other coordinate", FORWARD, 0, FLASH, ""),
    Fault("a misaligned vector", rb"norm_forward_kernel", 0, NORM, ALIGNED),
    Fault("truncation", rb"norm_forward_kernel", 0, NORM, WRONG),
    Fault("truncation", rb"cast_kernel", 0, "kernels/fill: casts*", WRONG),
    Fault("truncation of pairs", FORWARD, 0, "kernels/attention/flash: errs*", WRONG),
    Fault("wrong mma operand", FORWARD, 0, FLASH, WRONG),
    Fault("wrong mma columns", rb"symmetric_product_kernel", 0, SYMMETRIC, WRONG),
    Fault("wrong accumulators", KEYS, 9, FLASH, WRONG),
    Fault("ldmatrix not transposed", FORWARD, 0, FLASH, WRONG),
    Fault("ldmatrix not transposed", QUERIES, 0, FLASH, WRONG),
    Fault("another shuffle", rb"norm_forward_kernel", 0, NORM, WRONG),
    Fault("another shuffle", rb"reduce_partial_kernel", 0, REDUCE, WRONG),
    Fault("another shuffle", rb"attention_softmax_forward_kernel", 0, "kernels/attention/attention: float*", WRONG),
    Fault("a mask of one lane", rb"qk_norm_backward_kernel", 0, QK, "is not in its own mask"),
    Fault("a wrong distance", rb"reduce_partial_kernel", 0, REDUCE, ""),
    Fault("a missing accumulate", rb"column_sums_kernel", 0, ACTIVATION_BACK, WRONG),
    Fault("a missing accumulate", rb"bias_partial_kernel", 0, "runtime/linalg/linalg: the bias gradient*", WRONG),
    Fault("an fma's sum that is lost", rb"element_update_kernel", 0, "kernels/optimizers/adamw: three*", WRONG),
    Fault("an fma's sum that is lost", rb"fold_update_kernel", 0, "kernels/optimizers/teon: the update*", WRONG),
    Fault("a missing product", rb"multiply_plain_kernel", 0, "runtime/linalg/linalg: gemm scales*", ""),
    Fault("min for max", rb"attention_softmax_forward_kernel", 0, "kernels/attention/attention: scores*", WRONG),
    Fault("min for max", rb"classifier_kernel", 0, "kernels/classifier: logits*", WRONG),
    Fault("a condition's opposite", rb"step_control_kernel", 1, "kernels/step_control: clips*", WRONG),
    Fault("an fma's sum that is lost", rb"rotary_kernel", 0, ROTARY, WRONG),
    Fault("an atomic add that reads only", rb".", 0, "runtime/simt: atomicAdd*", WRONG),
    Fault("a lost store", rb"gated_backward_kernel.*6Swiglu", 0, ACTIVATION_BACK, WRONG),
    Fault("a lost store to shared memory", rb"classifier_kernel", 0, CLASSIFIER, UNWRITTEN),
    Fault("fewer threads by __launch_bounds__", rb"activation_forward_kernel.*5Relu2", 0, ACTIVATION,
          "__launch_bounds__"),
    Fault("no wgmma.fence", HOPPER, 1, FLASH, UNFENCED),
    Fault("no wgmma.fence", HOPPER_KEYS, 0, FLASH, UNFENCED),
    Fault("products not waited for", HOPPER, 0, FLASH, UNENDED),
    Fault("products not waited for", HOPPER_QUERIES, 0, FLASH, UNENDED),
    Fault("waiting for one group too few", HOPPER_KEYS, 0, FLASH, UNENDED),
    Fault("wgmma not transposed", HOPPER, 0, FLASH, ""),
    Fault("an old sum", HOPPER_QUERIES, 0, FLASH, WRONG),
    Fault("no arrival", HOPPER, 0, FLASH, "waits for ever: for phase"),
    Fault("no arrival", HOPPER_KEYS, 0, FLASH, "waits for ever: for phase"),
    Fault("an arrival too many", HOPPER, 0, FLASH, "waits for ever: for phase 0"),
    Fault("bytes not expected", HOPPER_QUERIES, 1, FLASH, "waits for ever: for phase 0"),
    Fault("a wait that says yes", HOPPER, 3, FLASH, "", "reverse"),
    Fault("a wait that says yes", HOPPER, 6, FLASH, "", "reverse"),
    Fault("a wait that says yes", HOPPER_KEYS, 3, FLASH, ""),
    Fault("no fence of mbarriers", HOPPER, 0, FLASH, "without fence.proxy.async"),
    Fault("swapped coordinates", HOPPER, 0, FLASH, ""),
    Fault("no turn", HOPPER, 0, FLASH, "waits for ever"),
    Fault("more registers", HOPPER_KEYS, 0, FLASH, "waits for ever"),
    Fault("no barrier", HOPPER, 0, FLASH, "of shared memory"),
    Fault("no __syncwarp", HOPPER_KEYS, 0, FLASH, ""),
    Fault("no wgmma.fence", HOPPER_SYMMETRIC, 0, SYMMETRIC, UNFENCED),
    Fault("no arrival at the other block", HOPPER_SYMMETRIC, 0, SYMMETRIC, "waits for ever: for phase"),
    Fault("bytes not expected", HOPPER_SYMMETRIC, 0, SYMMETRIC, ENDLESS),
    Fault("a wait that says yes", HOPPER_SYMMETRIC, 0, SYMMETRIC, ""),
    Fault("a wait that says yes", HOPPER_SYMMETRIC, 1, SYMMETRIC, ""),
    Fault("an arrival too many", HOPPER_SYMMETRIC, 1, SYMMETRIC, ""),
    Fault("products not waited for", HOPPER_SYMMETRIC, 0, SYMMETRIC, ""),
    Fault("operands not transposed", HOPPER_SYMMETRIC, 0, SYMMETRIC, WRONG),
    Fault("swapped coordinates", HOPPER_SYMMETRIC, 0, SYMMETRIC, ""),
    Fault("no named barrier", HOPPER_SYMMETRIC, 2, SYMMETRIC, RACE),
    Fault("no fence of mbarriers", HOPPER_SYMMETRIC, 0, SYMMETRIC, "without fence.proxy.async"),
    Fault("less static shared memory", rb"reduce_final_kernel", 0, REDUCE, SHARED),
    Fault("no barrier of the cluster", rb"exchange", 0, "", OTHERS),
    Fault("no barrier of the cluster", rb"exchange", 1, "", "of the cluster"),
    Fault("no barrier of the cluster", rb"prefix_sums", 0, "", ""),
    Fault("no barrier of the cluster", rb"prefix_sums", 1, "", "ended"),
    Fault("no arrival at the other block", rb"prefix_sums", 0, "", ENDLESS),
    Fault("one receiver", rb"prefix_sums", 0, "", ENDLESS),
    Fault("a wait that does not wait", rb"prefix_sums", 0, "", ""),
    Fault("a wait that does not wait", rb"prefix_sums", 1, "", RACE),
    Fault("no proxy fence", rb"prefix_sums", 0, "", "without fence.proxy.async"),
    Fault("stores not committed", rb"prefix_sums", 0, "", STILL_READ),
    Fault("waiting for one store too few", rb"prefix_sums", 0, "", STILL_READ),
    Fault("fewer bytes expected", rb"prefix_sums", 0, "", ENDLESS),
    Fault("the own block", rb"exchange", 0, "", "exchange: element 0 is wrong"),
    Fault("the own block", rb"prefix_sums", 0, "", ""),
    Fault("a tile's coordinates swapped", rb"prefix_sums", 0, "", "is wrong"),
    Fault("too much static shared memory", rb"reduce_final_kernel", 0, REDUCE, "bytes of static shared memory"),
    # Clusters and stores.
    Fault("no arrival at the cluster's barrier", rb"exchange", 0, "", ""),
    Fault("no wait at the cluster's barrier", rb"exchange", 0, "", ""),
    Fault("no wait at the cluster's barrier", rb"exchange", 1, "", ""),
    Fault("no barrier", rb"prefix_sums", 0, "", ""),
    Fault("no barrier", rb"prefix_sums", 1, "", ""),
    Fault("a lost store to shared memory", rb"prefix_sums", 0, "", ""),
    Fault("swapped coordinates", rb"prefix_sums", 1, "", ""),
    Fault("one arrival is enough", rb"prefix_sums", 0, "", ""),
    Fault("two arrivals for one", rb"prefix_sums", 0, "", ENDLESS),
    Fault("a wait for phase 0", rb"prefix_sums", 4, "", ""),
    Fault("more bytes expected", rb"prefix_sums", 0, "", ENDLESS),
    Fault("an arrival without bytes", rb"prefix_sums", 0, "", ""),
    Fault("the fence of device memory", rb"prefix_sums", 0, "", "without fence.proxy.async"),
    Fault("the other receiver", rb"prefix_sums", 0, "", ENDLESS),
    Fault("a store to another row", rb"prefix_sums", 0, "", "is wrong"),
    Fault("a store not waited for", rb"prefix_sums", 0, "", STILL_READ),
    # Phases, proxies, coordinates, bytes and masks of the kernels for Hopper, and others.
    Fault("a phase that stays", HOPPER, 0, FLASH, ""),
    Fault("a phase that stays", HOPPER_KEYS, 0, FLASH, ""),
    Fault("a phase that stays", HOPPER_QUERIES, 0, FLASH, ""),
    Fault("a phase that stays", rb"flash_attention_hopper_kernelILi128", 0, FLASH, ""),
    Fault("a phase that stays", rb"flash_attention_hopper_key_gradient_kernelILi128", 0, FLASH, ""),
    Fault("products not committed", HOPPER, 0, FLASH, UNENDED),
    Fault("another distance of rows", HOPPER, 0, FLASH, ""),
    Fault("no swizzle", HOPPER_KEYS, 0, FLASH, ""),
    Fault("fewer threads at a named barrier", HOPPER, 0, FLASH, ""),
    Fault("no wait at a named barrier", HOPPER, 0, FLASH, ""),
    Fault("no registers given", HOPPER_QUERIES, 0, FLASH, "waits for ever"),
    Fault("a lost tile", HOPPER_KEYS, 1, FLASH, "waits for ever"),
    Fault("row and batch swapped", HOPPER_QUERIES, 0, FLASH, ""),
    Fault("an arrival without bytes", HOPPER, 1, FLASH, ""),
    Fault("some threads wait for earlier kernels", rb"classifier_kernel", 0, CLASSIFIER, EARLY),
    Fault("no wait for earlier kernels", HOPPER, 0, FLASH, EARLY),
    Fault("a mask of half the warp", rb"attention_softmax_forward_kernel", 0, "kernels/attention/attention: float*",
          "is not in its own mask"),
    Fault("an atomic add that stores", rb".", 0, "runtime/simt: atomicAdd*", WRONG),
    Fault("a copy of one group more in flight", rb"norm_backward_kernel", 0, NORM_BACK, COPYING),
    Fault("no exponential", HOPPER, 0, FLASH, WRONG),
    Fault("> becomes >=", HOPPER, 1, "kernels/attention/flash: documents that*", WRONG),
    # A block's second and third tile of queries: phases and release of queries, rings that go on, the output's rows.
    Fault("a phase that stays 0", HOPPER, 1, WALK, ""),
    Fault("a phase that stays 0", HOPPER, 5, WALK, "", "reverse"),
    Fault("no arrival", HOPPER, 3, WALK, "waits for ever: for phase"),
    Fault("a wait that says yes", HOPPER, 0, WALK, ""),
    Fault("a wait that says yes", rb"flash_attention_hopper_kernelILi128", 0, WALK, ""),
    Fault("no __syncwarp", HOPPER, 6, WALK, RACE),
]

STARTING, TIMEOUT_S = threading.Lock(), 300


def kernels(program, name):
    """Yields (begin, end) of the PTX of each kernel whose mangled name matches."""
    for module in re.finditer(rb"\.target sm_80" if name in ON_A100 else rb"\.target sm_90a", program):
        end = program.index(b"\0", module.start())
        entries = list(re.finditer(rb"\.entry (\S+)\(", program[module.start():end]))
        for entry, after in zip(entries, entries[1:] + [None]):
            if re.search(name, entry[1]):
                yield module.start() + entry.end(), module.start() + after.start() if after else end


def plant(program, fault):
    """Returns the program with the fault, and the number of kernels that have it."""
    pattern, text = KINDS[fault.kind]
    pieces, at, count = [], 0, 0
    for begin, end in kernels(program, fault.kernel):
        places = [m for m in re.compile(pattern).finditer(program, begin, end) if len(m.expand(text)) <= len(m[0])]
        for place in places[fault.n:fault.n + 1]:
            pieces += [program[at:place.start()], place.expand(text).ljust(len(place[0]))]
            at, count = place.end(), count + 1
    return b"".join(pieces) + program[at:], count


def found(programs, fault):
    """Returns (whether the tests find the fault, their output)."""
    program = programs[0] if fault.tests else programs[1]
    planted, count = plant(program, fault)
    if not count:
        return False, "no kernel has such a place; update the table\n"
    device = "A100" if fault.kernel in ON_A100 else "H200"
    streams = "refuse" if fault.tests else "legacy"
    environment = {**os.environ, "CUDA_DEVICE": device, "TEON_THREADS": "1", "CUDA_DEFAULT_STREAM": streams,
                   "SIMT_ORDER": fault.order}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tests")
        with STARTING, open(path, "wb") as file:  # a process that starts meanwhile would keep the file open for writing
            file.write(planted)
        os.chmod(path, 0o755)
        with STARTING:
            words = [fault.tests, "--abort"] if fault.tests else []
            run = subprocess.Popen([path, *words], env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = run.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            return False, f"no end within {TIMEOUT_S} s"
    # Catch2 breaks lines anywhere, so whitespace is ignored.
    failed = run.returncode != 0 or fault.kind in NOTED
    return failed and "".join(fault.words.split()) in "".join(output.split()), output


def main():
    programs = []
    for path in sys.argv[1:3]:
        with open(path, "rb") as file:
            programs.append(file.read())
    word = sys.argv[3] if len(sys.argv) > 3 else ""
    faults = [fault for fault in FAULTS if word in f"{fault.kind} {fault.kernel.decode()} {fault.tests}"]
    missed = 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for fault, (ok, output) in zip(faults, pool.map(lambda fault: found(programs, fault), faults)):
            missed += not ok
            print(f"{'found ' if ok else 'MISSED'}  {fault.kind}: {fault.kernel.decode()}", flush=True)
            if not ok:
                print(fault, output[-1500:], sep="\n", file=sys.stderr)
    print(f"{len(faults) - missed} of {len(faults)} planted faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
