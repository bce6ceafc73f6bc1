#!/bin/bash
# Compiles everything for ARM64 Linux with Debian's cross compiler, runs test/arm64_runs.py and some C++ tests under
# qemu, compiles some files of a GPU program with nvcc for such a host (GH200, GB200, DGX Spark), and asks pip whether
# scripts/requirements.txt has wheels.
#
#   test/arm64.sh
#
# Needs g++-aarch64-linux-gnu, qemu-user-static and debootstrap (scripts/setup.sh arm64). What cannot run is skipped by
# name: "SKIPPED: ARM64: why". The libraries of Debian 12 and NVIDIA's headers are kept in CACHE (default:
# ~/.cache/teon-arm64).
set -uo pipefail
cd "$(dirname "$0")/.." || exit

skip() { echo "SKIPPED: ARM64: $1"; }
for program in aarch64-linux-gnu-g++ qemu-aarch64-static debootstrap; do
    command -v $program >/dev/null || { skip "needs $program (scripts/setup.sh arm64)"; exit 0; }
done
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-arm64}
root=$cache/root libraries=/usr/lib/aarch64-linux-gnu
mkdir -p "$cache" build
failed=0

# report WHAT COMMAND...: runs the command and prints how long it took.
report() {
    local what=$1 start=$SECONDS
    shift
    if "$@"; then echo "ARM64: $what: passed, $((SECONDS - start)) s"; else echo "ARM64: $what: FAILED"; failed=1; fi
}

# Unpacks the libraries; nothing of them is installed or run but under qemu.
if [ ! -e "$root/made" ]; then
    rm -rf --one-file-system "$root"
    packages=libc6-dev,libstdc++-12-dev,libfmt-dev,nlohmann-json3-dev,libxxhash-dev,catch2
    packages+=,libdnnl-dev,liblapacke-dev,libboost-context-dev
    debootstrap --foreign --arch=arm64 --variant=minbase --include=$packages bookworm "$root" \
        http://deb.debian.org/debian >"$cache/log" 2>&1 ||
        { skip "Debian's packages cannot be had: $(tail -n 1 "$cache/log")"; exit 0; }
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    ln -s lapack/liblapack.so.3 blas/libblas.so.3 "$root$libraries/"  # as their installation would
    touch "$root/made"
fi

printf '#!/bin/bash\nexec aarch64-linux-gnu-g++ --sysroot=%q "$@"\n' "$root" >"$cache/g++"
chmod +x "$cache/g++"
compile() {
    local programs
    programs=$(printf 'build/arm64/%s ' tests generate train_*.cu)
    # shellcheck disable=SC2086
    make -s SETUP=0 BACKEND=cpu BUILD=build/arm64 MPICC=none OPT=-O1 MARCH= CXX="$cache/g++" ${programs//.cu/}
}
report "every program and test compiled" compile
make -s SETUP=0 BACKEND=cpu build/cpu/train_gpt2 build/cpu/generate || exit 1

export TEON_QEMU="qemu-aarch64-static -L $root"
printf '#!/bin/bash\nexec %s build/arm64/tests "$@"\n' "$TEON_QEMU" >build/arm64/tests-under-qemu
chmod +x build/arm64/tests-under-qemu
report "runs under qemu" env TEON_BUILD=build/cpu python3 dev/run_tests.py test/arm64_runs.py
report "tests under qemu" python3 dev/run_tests.py build/arm64/tests-under-qemu \
    --only base/,files/json,kernels/norm,kernels/rotary,optim/unfold,cpu/stream,cpu/transpose

# nvcc takes the host's architecture from its compiler.
if nvcc=$(dev/find_cuda.sh nvcc 2>/dev/null); then
    nvcc=${nvcc%% -ccbin *}
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    headers=$cache/cuda$version
    if [ ! -e "$headers/made" ] && python3 -m pip install -q --disable-pip-version-check --no-deps --target "$headers" \
        --platform manylinux2014_aarch64 --only-binary=:all: "nvidia-cuda-runtime==$version.*" \
        "nvidia-cuda-crt==$version.*" "nvidia-cuda-cccl==$version.*" >"$cache/log" 2>&1; then
        touch "$headers/made"
    fi
    sbsa() {
        local file include=$headers/nvidia/cu${version%%.*}/include
        for file in kernels/norm.cu kernels/attention/flash.cu runtime/cuda/device.cu; do
            "$nvcc" -ccbin "$cache/g++" -std=c++20 -O1 --expt-relaxed-constexpr -diag-suppress 20208 -I. \
                -isystem "$include" -isystem "$include/cccl" -isystem "$(dirname "$nvcc")/../include" \
                -DTEON_CUDA -DFMT_HEADER_ONLY -DFMT_USE_CONSTEXPR=1 -gencode arch=compute_90a,code=sm_90a \
                -c "$file" -o build/arm64/nvcc.o || return 1
        done
    }
    if [ -e "$headers/made" ]; then report "nvcc" sbsa; else skip "nvcc: $(tail -n 1 "$cache/log")"; fi
else
    skip "nvcc was not found"
fi

wheels() {
    python3 -m pip install -q --disable-pip-version-check --dry-run --target build/arm64/wheels --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
        --only-binary=:all: -r scripts/requirements.txt
}
report "wheels of scripts/requirements.txt" wheels
exit $failed
