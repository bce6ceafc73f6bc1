#!/bin/bash
# Tests teon_torch with the torch and transformers of dev/requirements-dev.txt, which `make setup` does not install.
# Makes a virtual environment with them at the first call and after a change of that file, and keeps it in CACHE
# (default: ~/.cache/teon-torch-venv). It takes 3 GB from the package index and 6 GB on the disk, much less where
# PyTorch's index of CPU builds can be reached.
#
#   test/torch_tests.sh [-k WORD]       WORD: only tests with this word in their names
#   test/torch_tests.sh floors          the oldest torch of scripts/pyproject.toml, and the oldest for FSDP2 on CPUs
#   test/torch_tests.sh muons           Teon.like() and recipes beside the packages of dev/requirements-muons.txt (1
#                                       GB), dion and nanochat, from GitHub or the folder TEON_MUON_SOURCES
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

if [ "${1:-}" != muons ] && .venv/bin/python -c 'import torch, transformers' 2>/dev/null; then
    exec .venv/bin/python dev/run_tests.py "${tests[@]}" "$@"
fi
# Usage: beside FOLDER FILE OPTION...
# installs a file's packages into a folder of the cache. Without them, their tests are skipped by name.
beside() {
    DS_BUILD_OPS=0 timeout 600 "$cache/venv/bin/python" -m pip install -q --disable-pip-version-check \
        --only-binary=:all: --retries 1 --no-cache-dir --no-compile --no-deps --target "$cache/$1" -r "$2" "${@:3}" \
        >>"$cache/log" 2>&1 || rm -rf "${cache:?}/$1"
}
# Usage: source_of OWNER/NAME COMMIT
source_of() {
    local folder=$cache/muon-sources/${1#*/}
    [ "$(git -C "$folder" rev-parse HEAD 2>/dev/null)" = "$2" ] && return
    rm -rf "$folder"
    git init -q "$folder"
    if ! { timeout 60 git -C "$folder" fetch -q --depth 1 "https://github.com/$1" "$2" &&
        git -C "$folder" checkout -q FETCH_HEAD; }; then
        rm -rf "$folder"  # its test is skipped by name
    fi
}

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
    beside torchtitan $titan
    echo "$key" >"$cache/made"
fi
if [ "${1:-}" = muons ]; then
    muons=dev/requirements-muons.txt
    if ! cmp -s $muons "$cache/muons.made"; then
        rm -rf "$cache"/muons*
        beside muons $muons --no-binary deepspeed --ignore-requires-python
        cp $muons "$cache/muons.made"
    fi
    if [ -z "${TEON_MUON_SOURCES:-}" ]; then
        source_of microsoft/dion 0a059a4542e5aa74b40dcd1dce363836c7afcd48 2>>"$cache/log"
        source_of karpathy/nanochat 92d63d4e8bb4df75c3b71618f31ddde2378b2bcd 2>>"$cache/log"
    fi
    flock --unlock "$lock"
    exec env TEON_VENV="$cache/venv" TEON_MUON_SOURCES="${TEON_MUON_SOURCES:-$cache/muon-sources}" \
        PYTHONPATH="$cache/muons" "$cache/venv/bin/python" dev/run_tests.py test/scripts/test_muons.py \
        test/scripts/test_recipes_elsewhere.py "${@:2}"
fi
flock --unlock "$lock"
# TEON_VENV: without it, run_tests.py would restart itself with .venv's Python (scripts/common/use_venv.py).
[ -d "$cache/torchtitan" ] && export PYTHONPATH="$cache/torchtitan${PYTHONPATH:+:$PYTHONPATH}"
exec env TEON_VENV="$cache/venv" "$cache/venv/bin/python" dev/run_tests.py "${tests[@]}" "$@"
