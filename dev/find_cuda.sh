#!/bin/bash
# Finds CUDA on this machine: in a toolkit or in pip's nvidia packages, which name their libraries libX.so.N. Requires
# CUDA 12 or later and a GPU of compute capability 8.0 (A100) or later; names an unsupported one. Prints paths as words
# of a shell command, with blanks escaped. Tests replace the folders USUAL_CUDA and PCI_DEVICES.
#
#   dev/find_cuda.sh backend   "cuda" if a supported nvcc and NVIDIA GPU exist, otherwise "cpu"; says why if there
#                                  is a GPU
#   dev/find_cuda.sh nvcc      the compiler
#   dev/find_cuda.sh arch      nvcc flags for this machine's GPU, or for all supported ones
#   dev/find_cuda.sh include   compiler flags
#   dev/find_cuda.sh libs      linker flags for cuBLASLt, cuSOLVER, NCCL and the CUDA runtime
set -euo pipefail
shopt -s nullglob

# Prints the files in pip's nvidia folders that match the patterns: nvidia/cu13/... or, for CUDA 12, nvidia/PACKAGE/...
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
        pip_files 'cu*/bin/nvcc' cuda_nvcc/bin/nvcc)
    return 1
}

# Print the reason why this compiler, or this machine's GPU, is not supported.
refuse_nvcc() {
    local release
    release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p') || true
    if [ -z "$release" ]; then
        echo "$1 --version does not print CUDA's release"
    elif [ "${release%%.*}" -lt 12 ]; then
        echo "$1 is CUDA $release: 12.0 or later is needed"
    fi
}
refuse_gpu() {
    local name capability
    IFS=, read -r name capability < <(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null) ||
        return 0
    capability=${capability// /}
    [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || return 0  # without a GPU nvidia-smi prints its error here
    [ "${capability%%.*}" -ge 8 ] ||
        echo "the $name here has compute capability $capability: 8.0 (A100) or later is needed"
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
        refuse_nvcc "$nvcc"
        refuse_gpu
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
    printf '%q\n' "$nvcc" ;;
arch)
    refused=$(refuse_gpu)
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
    fail "usage: find_cuda.sh backend|nvcc|arch|include|libs" ;;
esac
