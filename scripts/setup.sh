#!/bin/bash
# Installs the missing packages for building and testing and names them. Supports Debian 12 or 13 or Ubuntu 22.04 or
# 24.04, on x86-64; on other systems it prints what to install.
#
#   scripts/setup.sh packages   compiler and libraries, by apt-get (with sudo unless root)
#   scripts/setup.sh venv       .venv with scripts/requirements.txt, for plots and tokenizers
#   scripts/setup.sh mpi        OpenMPI, for several ranks on CPUs (build again afterwards)
#   scripts/setup.sh slurm      Slurm and munge, for test/slurm.sh
#   scripts/setup.sh arm64      a cross compiler and qemu, for test/arm64.sh
#   scripts/setup.sh dev        clang-format, clang-tidy and ruff, for `make format`, `make tidy`, `make lint`;
#                              clang and debootstrap (as root), for test/compile_systems.sh
#   scripts/setup.sh check      installs nothing; fails and names the missing packages if building would fail
#   scripts/setup.sh            packages and venv
#
# SETUP=0 installs nothing. BACKEND=cuda needs no CPU linear algebra. TESTS=0: only programs are built, without Catch2.
# INCLUDES: the build's include flags.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

# Header-only packages for building: package, header.
headers=("nlohmann-json3-dev <nlohmann/json.hpp>" "libxxhash-dev <xxhash.h>"
    "libfmt-dev <fmt/format.h>" "catch2 <catch2/catch.hpp> or <catch.hpp> or <catch2/catch_all.hpp>")
[ "${TESTS:-1}" != 0 ] || unset 'headers[3]'
# Libraries of a CPU build: package, flags, and a program that uses the needed functions. Checking for the header is not
# enough, because several packages have headers of the same name.
features=("libdnnl-dev|-ldnnl|#include <oneapi/dnnl/dnnl.h>
    static_assert(DNNL_VERSION_MAJOR * 100 + DNNL_VERSION_MINOR >= 202);
    static_assert(DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP || DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ);
    int main() { return dnnl_version()->major == 0; }"
    "liblapacke-dev|-llapacke|#include <lapacke.h>
    int main() { return LAPACKE_sgesdd_work(101, 'S', 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0) +
        LAPACKE_ssyevd_work(101, 'V', 'L', 0, 0, 1, 0, 0, 0, 0, 0); }"
    "libboost-context-dev|-lboost_context|#include <boost/context/detail/fcontext.hpp>
    int main() { return boost::context::detail::make_fcontext(0, 0, 0) != 0; }"
    "libfmt-dev|-lfmt|int main() {}")

# Prints the package of each header that the compiler does not find.
missing_headers() {
    local row
    for row in "${headers[@]}"; do
        echo "#if $(sed 's/ or / || /g; s/<[^>]*>/__has_include(&)/g' <<<"${row#* }")"
        echo "#else"
        echo "${row%% *}"
        echo "#endif"
    done | g++ ${INCLUDES:-} -E -P -x c++ - | grep . || true
}

# Prints the package of each feature that does not compile and link. If all do, records this in build/features.
missing_features() {
    local row flags tried
    tried="${features[*]} ${INCLUDES:-} $(g++ -dumpfullversion)"
    [ "$tried" != "$(cat build/features 2>/dev/null)" ] || return 0
    local lacking=()
    for row in "${features[@]}"; do
        flags=${row#*|}
        g++ -std=c++20 ${INCLUDES:-} -x c++ - -o /dev/null "${flags%%|*}" <<<"${flags#*|}" >/dev/null 2>&1 ||
            lacking+=("${row%%|*}")
    done
    if [ ${#lacking[@]} = 0 ]; then
        mkdir -p build && echo "$tried" >build/features
    else
        printf '%s\n' "${lacking[@]}"
    fi
}

# Prints the missing packages for building.
missing_packages() {
    command -v python3 >/dev/null || echo python3
    if command -v g++ >/dev/null && echo '#include <vector>' | g++ -E -x c++ - >/dev/null 2>&1; then
        missing_headers
        [ "${BACKEND:-cpu}" = cuda ] || missing_features
    else
        echo g++
        printf '%s\n' "${headers[@]%% *}"
        [ "${BACKEND:-cpu}" = cuda ] || printf '%s\n' "${features[@]%%|*}"
    fi | sort -u
}

# Succeeds if packages can be installed: as root, or by sudo without a password or with a terminal to type it (sudo asks
# there, not on the standard input of make's jobs).
sudo=()
may_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] && return
    command -v sudo >/dev/null && { sudo -n true || : </dev/tty; } 2>/dev/null && sudo=(sudo)
}

install_packages() {
    [ $# -gt 0 ] || return 0
    [ "${SETUP:-1}" != 0 ] || { say "SETUP=0: not installing $*"; return 0; }
    if ! may_install; then
        if command -v apt-get >/dev/null; then
            say "packages are missing that only an administrator can install: apt-get install $*" >&2
        else
            say "this machine has no apt-get; please install (Debian's names): $*" >&2
        fi
        return 1
    fi
    local log
    say "installing with ${sudo[*]:+sudo }apt-get: $*"
    log=$(mktemp)
    if ! { "${sudo[@]}" apt-get update -q && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -20 "$log" >&2
        say "apt-get failed (its output: $log)" >&2
        return 1
    fi
    rm -f "$log"
}

packages() {
    local wanted
    mapfile -t wanted < <(missing_packages)
    [ ${#wanted[@]} -gt 0 ] || return 0
    install_packages "${wanted[@]}"
    [ "${SETUP:-1}" != 0 ] || return 0
    mapfile -t wanted < <(missing_packages)
    [ ${#wanted[@]} = 0 ] || { say "this system's ${wanted[*]} is not usable, perhaps too old:" \
        "Debian 12 or 13 or Ubuntu 22.04 or 24.04, on x86-64, is needed" >&2; return 1; }
}

venv() {
    cmp -s scripts/requirements.txt .venv/requirements.txt && return
    [ "${SETUP:-1}" != 0 ] || return 0
    local log reason
    log=$(mktemp)
    python3 -c 'import ensurepip, venv' 2>/dev/null || { may_install && install_packages python3-venv; } || true
    say "making .venv with $(sed -n 's/^\([a-z_]*\)==.*/\1/p' scripts/requirements.txt | uniq | paste -sd' ')"
    if python3 -m venv .venv >"$log" 2>&1 &&
        .venv/bin/python -m pip install -q --disable-pip-version-check --only-binary=:all: --retries 2 \
            -r scripts/requirements.txt >>"$log" 2>&1; then
        cp scripts/requirements.txt .venv/requirements.txt
        rm -f "$log"
    else
        reason=$(grep -m1 -E '^ERROR' "$log" || tail -1 "$log")
        say "Python packages cannot be installed: ${reason:0:200}"
        say "continuing without them: plots and tokenizers are missing (SETUP=0 skips this step; log: $log)"
    fi
}

case "${1:-all}" in
packages) packages ;;
venv) venv ;;
mpi) { command -v mpicc && command -v mpirun; } >/dev/null || install_packages libopenmpi-dev openmpi-bin ;;
slurm) { command -v munged && command -v slurmctld; } >/dev/null || install_packages slurm-wlm munge ;;
arm64) { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64-static && command -v debootstrap; } >/dev/null ||
    install_packages g++-aarch64-linux-gnu qemu-user-static debootstrap ;;
dev)
    status=0
    venv
    [ -x .venv/bin/ruff ] || .venv/bin/python -m pip install -q --disable-pip-version-check ruff==0.17.6 || status=1
    command -v clang-format-14 >/dev/null || install_packages clang-format-14 || status=1
    { command -v clang-tidy-16 && command -v clang++-16; } >/dev/null ||
        install_packages clang-tidy-16 clang-16 libomp-16-dev || status=1
    [ "$(id -u)" != 0 ] || command -v debootstrap >/dev/null || install_packages debootstrap || status=1
    exit $status ;;
check)
    mapfile -t wanted < <(missing_packages)
    [ ${#wanted[@]} = 0 ] || { say "missing: ${wanted[*]} ('make setup' installs them)" >&2; exit 1; } ;;
all) packages && venv ;;
*) sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2 ;;
esac
