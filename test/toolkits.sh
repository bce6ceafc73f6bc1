#!/bin/bash
# Compiles kernels/ and runtime/ for sm_80 and sm_90a with the oldest and the newest CUDA that can be had without an
# installer, and fails if a kernel spills registers there. The oldest is Debian 13's, with headers from pip, whose
# packages for CUDA 12 have no compiler; the newest is pip's.
#
#   test/toolkits.sh            both
#   test/toolkits.sh oldest     this one
#
# A toolkit that cannot be had or does not fit this system is skipped by name: "SKIPPED: compile with the oldest CUDA:
# why". The toolkits (1 GB each) are kept in CACHE (default: ~/.cache/teon-toolkits), and the next call compiles only
# what has changed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-toolkits}

# packages FOLDER NAME...: unpacks packages of pip, whose headers and libraries they have below FOLDER/nvidia.
packages() { python3 -m pip install -q --no-deps --target "$@"; }

# Each makes a toolkit in folder $1, which exists.
get_oldest() {
    local apt=$1/apt from=$1/unpacked options folder
    mkdir -p "$apt"/{lists,archives}/partial "$1"/{bin,nvvm/bin}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie non-free" \
        >"$apt/sources.list"
    options=(-q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt" -o APT::Sandbox::User=)
    apt-get "${options[@]}" update && (cd "$apt" && apt-get "${options[@]}" download nvidia-cuda-toolkit) &&
        dpkg-deb -x "$apt"/*.deb "$from" || return
    mv "$from"/usr/bin/{cudafe++,fatbinary,nvlink,ptxas} "$from/usr/lib/nvidia-cuda-toolkit/bin/nvcc" "$1/bin" &&
        mv "$from/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$1/nvvm/bin" &&
        mv "$from/usr/lib/nvidia-cuda-toolkit/libdevice" "$1/nvvm" || return
    printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
        'PATH += $(TOP)/nvvm/bin:$(_HERE_):' 'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' \
        'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"' >"$1/bin/nvcc.profile"
    packages "$1/pip" nvidia-cuda-{nvcc-cu12==12.4.131,runtime-cu12==12.4.127,cccl-cu12==12.4.127} \
        nvidia-cublas-cu12==12.4.5.8 nvidia-cusolver-cu12==11.6.1.9 || return
    for folder in "$1"/pip/nvidia/*/; do cp -rl "$folder"{include,lib} "$1" 2>/dev/null; done
    rm -r "$apt" "$from"
}
get_newest() {
    packages "$1/pip" nvidia-cuda-{nvcc,crt,runtime,cccl} nvidia-{nvvm,cublas,cusolver} &&
        cp -rl "$1"/pip/nvidia/cu*/. "$1"
}

compile_with() {
    local name=$1 root=$cache/$1 build=build/toolkit-$1 log=build/toolkit-$1.log start=$SECONDS why
    skip() { echo "SKIPPED: compile with the $name CUDA: $1"; }
    mkdir -p "$cache" build
    if [ ! -e "$root/made" ]; then
        rm -rf "$root" && mkdir "$root"
        get_"$name" "$root" >"$cache/$name.log" 2>&1 || { skip "$(tail -1 "$cache/$name.log")"; return; }
        touch "$root/made"
    fi
    export CUDA_HOME=$root NVCC_WORKS=$root/nvcc_works
    why=$(dev/find_cuda.sh nvcc 2>&1 >/dev/null) || { skip "$why"; return; }
    if make -k --no-print-directory SETUP=0 BACKEND=cuda BUILD="$build" OPT=-O0 FASTER= NVCC_EXTRA='-Xptxas -v' \
        CUDA_ARCH='-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a' \
        compile-kernels >"$log" 2>&1 &&
        dev/ptxas_report.py "$build" >>"$log" 2>&1; then
        echo "compile with the $name CUDA ($("$root/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')):" \
            "passed, $((SECONDS - start)) s"
    else
        grep -E 'error|spills$' "$log" | head -20
        echo "compile with the $name CUDA: FAILED"
        failed=1
    fi
}

[ $# -gt 0 ] || set -- oldest newest
failed=0
for name in "$@"; do
    declare -F "get_$name" >/dev/null || { echo "no CUDA $name; there are: oldest newest" >&2; exit 2; }
    compile_with "$name"
done
exit $failed
