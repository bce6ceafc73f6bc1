#!/bin/bash
# Guess: the newest cuobjdump reads the cubins of older ptxas, for every GPU that both know.
# Seen:  cuobjdump 13.5 says "does not contain device code" of what ptxas 12.0 made for sm_90, and ends with status 255.
#        What the same ptxas made for sm_80 it reads. So a binary of CUDA 12.0 seems to have no code for H100, which it
#        has: cuobjdump 12.4 lists it. That of ptxas 12.1 and 12.2 is not read either, that of 12.3 and later is.
# Known: cuobjdump 13.5.37 (2026-11). Found while one kernel was assembled by twelve versions of ptxas.
. "$(dirname "$0")/lib.sh"
packages nvidia-cuda-nvcc-cu12==12.0.140 nvidia-cuda-cuobjdump==13.5.37

both() {
    local tools gpu
    tools=$(python -c 'import nvidia; print(nvidia.__path__[0])')
    for gpu in sm_80 sm_90; do
        cat >add.ptx <<END
.version 7.8
.target $gpu
.address_size 64
.visible .entry add_one(.param .u64 p)
{
    .reg .b64 %rd<2>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [p];
    ld.global.f32 %f1, [%rd1];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd1], %f2;
    ret;
}
END
        "$tools/cuda_nvcc/bin/ptxas" -arch=$gpu add.ptx -o add.cubin
        status=0
        "$tools/cu13/bin/cuobjdump" -elf add.cubin >found 2>&1 || status=$?
        echo "$gpu: status $status, $(grep -oE 'does not contain device code|sm=[0-9]+, toolkit=[0-9]+' found)"
    done
}
prints "sm_80: status 0, sm=80, toolkit=120
sm_90: status 255, does not contain device code" both
