#!/bin/bash
# Finds CUDA on this machine: in a toolkit or in pip's nvidia packages, which name their libraries libX.so.N. Requires
# CUDA 12 or later, which compiles an empty kernel here, and a GPU of compute capability 8.0 (A100) or later; says what
# is missing. Prints paths as words of a shell command, with blanks escaped. CXX is the user's C++ compiler; if empty,
# it is g++ or, if nvcc refuses that, the newest g++-N that it permits. Tests replace the folders USUAL_CUDA and
# PCI_DEVICES and the file NVCC_WORKS, which says what has compiled.
#
#   dev/find_cuda.sh backend   "cuda" if a supported nvcc and NVIDIA GPU exist, otherwise "cpu"; says why if there
#                                  is a GPU
#   dev/find_cuda.sh nvcc      the compiler, with -ccbin for another C++ compiler than g++
#   dev/find_cuda.sh cxx       the C++ compiler
#   dev/find_cuda.sh arch      nvcc flags for this machine's GPU, or for all supported ones
#   dev/find_cuda.sh include   compiler flags
#   dev/find_cuda.sh libs      linker flags for cuBLASLt, cuSOLVER, NCCL and the CUDA runtime
set -euo pipefail
shopt -s nullglob

# Prints the files in pip's nvidia folders that match the patterns: nvidia/cu13/... or, for CUDA 12 (which has no nvcc
# there), nvidia/PACKAGE/...
pip_files() {
    python3 - "$@" <<'PYTHON' 2>/dev/null || true
import glob, sys, sysconfig
paths = {sysconfig.get_paths()[k] for k in ("purelib", "platlib")} | {p for p in sys.path if p.endswith("-packages")}
for path in sorted(paths):
    for pattern in sys.argv[1:]:
        print(*sorted(glob.glob(f"{path}/nvidia/{pattern}")), sep="\n")
PYTHON
}

find_nvcc() {
    local candidate
    while read -r candidate; do
        [ -x "$candidate" ] && { readlink -f "$candidate"; return; }
    done < <(printf '%s\n' "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc || true)" \
        "${USUAL_CUDA:-/usr/local/cuda}/bin/nvcc"
        pip_files 'cu*/bin/nvcc')
    return 1
}

cuda_release() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p' || true; }

# Compiles an empty kernel with nvcc $1 and the C++ compiler $2; prints what is said.
compile() {
    local folder include=() header status=0
    for header in cuda_runtime.h crt/host_config.h; do
        folder=$(folder_with include $header) && [ "$folder" != /usr/include ] && include+=(-isystem "$folder")
    done
    folder=$(mktemp -d)
    echo '__global__ void empty() {}' >"$folder/empty.cu"
    "$1" -ccbin "$2" -std=c++20 "${include[@]}" -arch=sm_80 -c "$folder/empty.cu" -o "$folder/empty.o" 2>&1 || status=$?
    rm -r "$folder"
    return $status
}

# Prints why nvcc $1 and the C++ compiler $2 compiled nothing; $3 is what they said, $4 the newest g++ that nvcc permits
# ("": it does not say), $5 the newest of these that is installed.
say_why() {
    local release glibc
    release=$(cuda_release "$1")
    glibc=$(glibc_release)
    if [[ $3 = *"exception specification is incompatible"* ]] ||
        { [ -n "$4" ] && [ "${release%%.*}" -lt 13 ] && printf '2.41\n%s\n' "$glibc" | sort -CV; }; then
        echo "CUDA $release compiles nothing with this system's glibc $glibc:" \
            "$([ "${release%%.*}" -lt 13 ] && echo "CUDA 13.0 or later" || echo "a newer CUDA") is needed"
    elif [ -n "$4" ]; then
        echo "CUDA $release permits g++ up to $4, and $2 is $("$2" -dumpversion):" \
            "$([ -n "$5" ] && echo "make CXX=$5" || echo "install g++-$4, or a newer CUDA")"
    else
        echo "$1 with $2 does not compile an empty kernel: $(grep -m1 -i error <<<"$3" || head -1 <<<"$3")"
    fi
}
glibc_release() { getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2 || true; }

# Sets cxx to the C++ compiler for nvcc $1, and refused to the reason why they compile nothing. What has compiled is
# kept in a file and not tried again.
choose_cxx() {
    local nvcc=$1 word said limit newest tried kept=${NVCC_WORKS:-$(dirname "$0")/../build/nvcc_works}
    refused=
    cxx=g++
    for word in ${CXX:-}; do [[ $word = -* ]] || cxx=$word; done  # "ccache g++-12"
    tried=$(echo "$nvcc ${CXX:-}"; "$nvcc" --version; "$cxx" --version 2>&1 || true; glibc_release)
    if [ "$tried" = "$(head -n -1 "$kept" 2>/dev/null)" ] && command -v "$(tail -1 "$kept")" >/dev/null; then
        cxx=$(tail -1 "$kept")
        return
    fi
    if ! said=$(compile "$nvcc" "$cxx"); then
        limit=$(sed -n 's/.*gcc versions later than \([0-9]*\) are not supported.*/\1/p;T;q' <<<"$said")
        newest=$(for ((n = ${limit:-0}; n >= 11; n--)); do command -v "g++-$n" && break; done)
        newest=${newest##*/}
        if [ -n "${CXX:-}" ] || [ -z "$newest" ]; then
            refused=$(say_why "$nvcc" "$cxx" "$said" "$limit" "$newest")
        else
            cxx=$newest
            said=$(compile "$nvcc" "$cxx") || refused=$(say_why "$nvcc" "$cxx" "$said" "" "")
        fi
    fi
    [ -z "$refused" ] || return 0
    mkdir -p "$(dirname "$kept")" 2>/dev/null && printf '%s\n' "$tried" "$cxx" 2>/dev/null >"$kept" || true
}

# Print the reason why compiler $1, or this machine's GPU with it, is not supported.
refuse_nvcc() {
    local release
    release=$(cuda_release "$1")
    if [ -z "$release" ]; then
        echo "$1 --version does not print CUDA's release"
    elif [ "${release%%.*}" -lt 12 ]; then
        echo "$1 is CUDA $release: 12.0 or later is needed"
    else
        choose_cxx "$1"
        [ -z "$refused" ] || echo "$refused"
    fi
}
refuse_gpu() {
    local name capability known needed
    IFS=, read -r name capability < <(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null) ||
        return 0
    capability=${capability// /}
    [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || return 0  # without a GPU nvidia-smi prints its error here
    if [ "${capability%%.*}" -lt 8 ]; then
        echo "the $name here has compute capability $capability: 8.0 (A100) or later is needed"
        return
    fi
    known=$("$1" --list-gpu-arch 2>/dev/null) || return 0
    [[ $known = *compute_* ]] && ! grep -qx "compute_${capability/./}" <<<"$known" || return 0
    case "$capability" in
    10.0 | 12.0) needed="CUDA 12.8 or later" ;;  # B200, RTX 50
    10.3 | 12.1) needed="CUDA 12.9 or later" ;;  # B300, Spark
    *) needed="a newer CUDA" ;;
    esac
    echo "CUDA $(cuda_release "$1") does not know the $name here (compute capability $capability): $needed is needed"
}

have_gpu() { [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; }

# Whether a GPU of NVIDIA's is on the bus, with or without a driver.
gpu_on_bus() {
    local device
    for device in "${PCI_DEVICES:-/sys/bus/pci/devices}"/*; do
        [[ $(cat "$device/vendor" 2>/dev/null) = 0x10de && $(cat "$device/class" 2>/dev/null) = 0x03* ]] && return
    done
    return 1
}

# Prints why a machine with a GPU cannot build for it.
refuse_machine() {
    local nvcc answer=
    if ! nvcc=$(find_nvcc); then
        { have_gpu || gpu_on_bus; } && echo "an NVIDIA GPU is here, but no nvcc: put it on the PATH or set CUDA_HOME"
    elif ! have_gpu; then
        command -v nvidia-smi >/dev/null && answer=$(nvidia-smi -L 2>&1 | grep -m1 . || true)
        if gpu_on_bus || command -v nvidia-smi >/dev/null; then
            echo "the NVIDIA driver does not work${answer:+ (nvidia-smi: $answer)}"
        fi
    else
        answer=$(refuse_nvcc "$nvcc")
        echo "${answer:-$(refuse_gpu "$nvcc")}"
    fi
    return 0
}

# Prints the folders named $1 (include or lib) of the toolkit and of the pip packages, in search order.
folders() {
    local kind=$1 nvcc root
    if nvcc=$(find_nvcc); then
        root=$(dirname "$(dirname "$nvcc")")
        printf '%s\n' "$root/$kind" "$root/${kind}64" "$root/targets/$(uname -m)-linux/$kind"
    fi
    pip_files "*/$kind"
    printf '%s\n' "/usr/$kind" "/usr/$kind/$(uname -m)-linux-gnu"
}

# Prints the first folder of kind $1 that contains one of the files $2...
folder_with() {
    local kind=$1 folder file
    shift
    while read -r folder; do
        [ -n "$folder" ] || continue
        for file in "$@"; do [ -e "$folder/$file" ] && { echo "$folder"; return; }; done
    done < <(folders "$kind")
    return 1
}

fail() { echo "find_cuda: $*" >&2; exit 1; }

case "${1:-}" in
backend)
    refused=$(refuse_machine)
    [ -z "$refused" ] && find_nvcc >/dev/null && have_gpu && { echo cuda; exit; }
    [ -z "$refused" ] || echo "find_cuda: $refused; building for the CPU (make BACKEND=cuda builds for GPUs)" >&2
    echo cpu ;;
nvcc)
    nvcc=$(find_nvcc) || fail "nvcc was not found; put it on the PATH or set CUDA_HOME"
    refused=$(refuse_nvcc "$nvcc")
    [ -z "$refused" ] || fail "$refused"
    choose_cxx "$nvcc"
    printf '%q' "$nvcc"
    [ "$cxx" = g++ ] || printf -- ' -ccbin %q' "$cxx"
    echo ;;
cxx)
    cxx=g++
    nvcc=$(find_nvcc) && [ -z "$(refuse_nvcc "$nvcc")" ] && choose_cxx "$nvcc"
    echo "$cxx" ;;
arch)
    refused=$(refuse_gpu "$(find_nvcc || true)")
    [ -z "$refused" ] || fail "$refused"
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d . || true)
    case "$capability" in
    90) echo "-gencode arch=compute_90a,code=sm_90a" ;;
    [1-9][0-9]*) echo "-gencode arch=compute_$capability,code=[sm_$capability,compute_$capability]" ;;
    *) echo "-gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a" ;;
    esac ;;
include)
    for header in cuda_runtime.h crt/host_config.h cublasLt.h cusolverDn.h nccl.h; do
        folder=$(folder_with include $header) || { [ $header = nccl.h ] && continue; fail "$header was not found"; }
        [ "$folder" = /usr/include ] || printf -- '-isystem %q\n' "$folder"
    done | awk '!seen[$0]++' ;;
libs)
    for name in cublasLt cusolver nccl cudart; do
        found=
        while read -r folder; do
            for file in "$folder/lib$name.so" "$folder/lib$name.so".[0-9]*; do
                [ -e "$file" ] && { found=$file; break 2; }
            done
        done < <(folders lib)
        [ -n "$found" ] || { [ $name = nccl ] && continue; fail "lib$name.so was not found"; }
        folder=$(printf '%q' "$(dirname "$found")")
        echo "-L$folder -Wl,-rpath,$folder -l:$(basename "$found")"
    done ;;
*)
    fail "usage: find_cuda.sh backend|nvcc|cxx|arch|include|libs" ;;
esac
