#!/bin/bash
# Tests teon_torch with the torch and transformers of dev/requirements-dev.txt, which `make setup` does not install.
# Makes a virtual environment with them at the first call and after a change of that file, and keeps it in CACHE
# (default: ~/.cache/teon-torch-venv). It takes 3 GB from the package index and 6 GB on the disk, much less where
# PyTorch's index of CPU builds can be reached.
#
#   test/torch_tests.sh [-k WORD]       WORD: only tests with this word in their names
#   test/torch_tests.sh floors          the oldest torch of scripts/pyproject.toml, and the oldest for FSDP2 on CPUs
#
# Tests of what a torch has not yet are skipped by name. If the packages cannot be installed within 20 minutes, it
# prints "SKIPPED: tests of teon_torch: why" and succeeds.
set -uo pipefail
cd "$(dirname "$0")/.."
tests=(test/scripts/test_teon_torch*.py)
index=https://download.pytorch.org/whl/cpu  # of builds without NVIDIA's libraries, where it can be reached
wanted=dev/requirements-dev.txt

# Usage: floor VERSION WORD "TEST..." PACKAGE...
# runs the files' tests with this word in their names, with this torch and these packages in a new environment
floor() {
    local venv status
    venv=$(mktemp -d)
    if python3 -m venv "$venv" && timeout 1200 "$venv/bin/python" -m pip install -q --disable-pip-version-check \
        --only-binary=:all: --retries 1 --no-cache-dir --no-compile --extra-index-url $index \
        "torch==$1.*" "${@:4}" >"$venv/log" 2>&1; then
        echo "torch $1:"
        # shellcheck disable=SC2046,SC2086
        TEON_VENV=$venv "$venv/bin/python" dev/run_tests.py $(printf 'test/scripts/%s.py ' $3) -k "$2"
        status=$?
    else
        echo "SKIPPED: tests of teon_torch with torch $1: $(grep -m1 -E '^ERROR' "$venv/log" || tail -1 "$venv/log")"
        status=0
    fi
    rm -rf "$venv"
    return $status
}
if [ "${1:-}" = floors ]; then
    oldest=$(sed -nE 's/.*"torch>=([0-9.]+)".*/\1/p' scripts/pyproject.toml)
    floor "$oldest" "" "test_teon_torch test_teon_torch_ranks" numpy safetensors &&
        floor 2.9 fsdp2 test_teon_torch_ranks numpy safetensors transformers
    exit
fi

if .venv/bin/python -c 'import torch, transformers' 2>/dev/null; then
    exec .venv/bin/python dev/run_tests.py "${tests[@]}" "$@"
fi
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-torch-venv}
mkdir -p "$cache"
exec {lock}>"$cache/lock"
flock "$lock"  # for two calls at once
titan=dev/requirements-torchtitan.txt
key=$(python3 --version; cat scripts/requirements.txt $wanted $titan)
if [ "$(cat "$cache/made" 2>/dev/null)" != "$key" ]; then
    rm -rf "$cache/made" "$cache/venv" "$cache/torchtitan"
    # Of two builds of a version pip takes the one with a local name, 2.15.0+cpu, which lacks NVIDIA's libraries.
    if ! { python3 -m venv "$cache/venv" &&
        timeout 1200 "$cache/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary=:all: \
            --retries 1 --no-cache-dir --no-compile --extra-index-url $index -r $wanted
    } >"$cache/log" 2>&1; then
        reason=$(grep -m1 -E '^ERROR' "$cache/log" || tail -1 "$cache/log")
        reason=${reason:-the packages were not installed within 20 minutes}
        echo "SKIPPED: tests of teon_torch: ${reason:0:200}"
        rm -rf "$cache/venv"
        exit 0
    fi
    # Without torchtitan its tests are skipped by name.
    timeout 300 "$cache/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary=:all: --retries 1 \
        --no-cache-dir --no-compile --no-deps --target "$cache/torchtitan" -r $titan >>"$cache/log" 2>&1 ||
        rm -rf "$cache/torchtitan"
    echo "$key" >"$cache/made"
fi
flock --unlock "$lock"
# TEON_VENV: without it, run_tests.py would restart itself with .venv's Python (scripts/common/use_venv.py).
[ -d "$cache/torchtitan" ] && export PYTHONPATH="$cache/torchtitan${PYTHONPATH:+:$PYTHONPATH}"
exec env TEON_VENV="$cache/venv" "$cache/venv/bin/python" dev/run_tests.py "${tests[@]}" "$@"
