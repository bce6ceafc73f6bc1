#!/bin/bash
# Checks what keeps the rooms apart (docs/architecture.md): backend names stay in runtime/, includes go one way.
#
#   scripts/check_seam.sh     prints each line at fault; exit status 1 if there is one
set -uo pipefail
cd "$(dirname "$0")/.."
faults=0

# reject WHAT PATTERN FILE...: no line of the files may match.
reject() {
    local what=$1 pattern=$2 found
    shift 2
    [ $# -gt 0 ] && found=$(grep -HnP -- "$pattern" "$@") || return 0
    echo "seam: $what:"
    sed 's/^/  /' <<<"$found"
    faults=$((faults + 1))
}

sources() { find "$@" \( -name '*.cu' -o -name '*.h' -o -name '*.cpp' \) -not -path './build/*' -not -path './.*' | sort; }

mapfile -t outside < <(sources . | grep -vE '^\./((base|runtime|cpu|test/cpu)/|test/runtime/test_cuda_values\.cu)')
reject "names of a backend outside runtime/ and cpu/" 'cuda[A-Z]|cublas|cusolver|nccl|MPI_|cblas_|LAPACKE_|<<<' "${outside[@]}"
reject "a condition on the backend outside runtime/ and cpu/" '^ *# *(if|elif).*(__CUDACC__|__CUDA_ARCH__|__NVCC__|TEON_CUDA|TEON_UNKIND)' "${outside[@]}"

# Which rooms each room may include, beside itself.
while read -r room allowed; do
    mapfile -t files < <(sources "$room" 2>/dev/null)
    pattern="^ *# *include \"($(printf '%s\n' base runtime cpu files kernels model optim data options checkpoint generation plan train test | grep -vwE "$room${allowed:+|${allowed// /|}}" | paste -sd'|'))/"
    reject "$room/ may include ${allowed:-nothing} only" "$pattern" "${files[@]}"
done <<'TABLE'
base
cpu base
runtime base cpu
files base
kernels base runtime
model base runtime files kernels data
optim base runtime kernels model
data base runtime files
options base runtime files
checkpoint base runtime files kernels model optim data
generation base runtime files kernels model data options checkpoint
plan base runtime files kernels model optim data options checkpoint generation
train base runtime files kernels model optim data options checkpoint generation plan
TABLE

# Of model/, optim/ sees the parameter table and the abstract Model; train/ also what options and plans are made of.
while read -r room allowed; do
    mapfile -t files < <(sources "$room")
    reject "of model/, $room/ may include $allowed only" \
        "^ *# *include \"model/(?!(${allowed// /|})\.h\")" "${files[@]}"
done <<'TABLE'
optim param_table model
checkpoint param_table
plan param_table activation_plan decoder family
train param_table model activation_plan decoder family
TABLE

# A kernel may be started while those ahead of it still run (runtime/simt.h).
mapfile -t files < <(sources . | grep -vE '^\./(runtime/simt\.h|(test/)?cpu/)')
found=$(grep -PzoH '__global__ void[^;{]*\{(?!\s*wait_for_earlier_kernels\(\);)' "${files[@]}" | tr '\0' '\n')
if [ -n "$found" ]; then
    echo "seam: a kernel that does not begin with wait_for_earlier_kernels():"
    sed 's/^/  /' <<<"$found"
    faults=$((faults + 1))
fi

[ $faults = 0 ] && echo "seam: clean"
exit $((faults > 0))
