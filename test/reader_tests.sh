#!/bin/bash
# Opens checkpoints in the programs that read them: transformers 4.48 and the newest, llama.cpp, mlx-lm, CTranslate2,
# mistral.rs and lm-eval (dev/requirements-readers.txt), on CPUs. Builds on the torch of test/torch_tests.sh, which must
# have run before. Installs the programs at the first call and after a change of that file, 0.8 GB, beside torch in
# CACHE (default: ~/.cache/teon-torch-venv).
#
#   test/reader_tests.sh [-k WORD]     WORD: only tests with this word in their names
#
# If the packages cannot be installed within 10 minutes, it prints "SKIPPED: tests of readers: why" and succeeds.
set -uo pipefail
cd "$(dirname "$0")/.."
tests=(test/readers/test_*.py test/programs/test_{export,lm_eval,perplexity_elsewhere,quantized}.py)
wanted=dev/requirements-readers.txt before=dev/requirements-readers-before.txt

cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-torch-venv}
torch=
for python in .venv/bin/python "$cache/venv/bin/python"; do
    torch=$("$python" -c 'import torch, transformers, sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null) &&
        break
done
if [ -z "$torch" ]; then
    echo "SKIPPED: tests of readers: no torch and transformers; run test/torch_tests.sh"
    exit 0
fi
venv=$cache/readers
exec {lock}>"$cache/readers.lock"
flock "$lock"  # for two calls at once
key=$(python3 --version; echo "$torch"; cat "$cache/made" $wanted $before 2>/dev/null)
if [ "$(cat "$venv/made" 2>/dev/null)" != "$key" ]; then
    rm -rf "$venv"
    install() {
        timeout 600 "$venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary=:all: --retries 1 \
            --no-cache-dir --no-compile "$@"
    }
    if ! { python3 -m venv "$venv" &&
        echo "$torch" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth" &&
        install -r $wanted && install --no-deps --target "$venv/before" -r $before
    } >"$cache/readers.log" 2>&1; then
        reason=$(grep -m1 -E '^ERROR' "$cache/readers.log" || tail -1 "$cache/readers.log")
        reason=${reason:-the packages were not installed within 10 minutes}
        echo "SKIPPED: tests of readers: ${reason:0:200}"
        rm -rf "$venv"
        exit 0
    fi
    echo "$key" >"$venv/made"
fi
flock --unlock "$lock"
# TEON_VENV: without it, run_tests.py would restart itself with .venv's Python (scripts/common/use_venv.py).
export TEON_VENV="$venv" TEON_TRANSFORMERS_BEFORE="$venv/before"
exec "$venv/bin/python" dev/run_tests.py "${tests[@]}" "$@"
