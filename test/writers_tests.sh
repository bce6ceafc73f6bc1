#!/bin/bash
# Tests that prepare.py reads what the programs of dev/requirements-writers.txt write. Makes a virtual environment with
# them at the first call and after a change of that file, in CACHE (default: ~/.cache/teon-writers-venv), of 1 GB.
#
#   test/writers_tests.sh
#
# If the packages cannot be installed within 10 minutes, it prints "SKIPPED: tests of writers: why" and succeeds.
set -uo pipefail
cd "$(dirname "$0")/.."
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-writers-venv}
mkdir -p "$cache"
exec {lock}>"$cache/lock"
flock "$lock"  # for two calls at once
wanted=(scripts/requirements.txt dev/requirements-writers.txt)
key=$(python3 --version; cat "${wanted[@]}")
if [ "$(cat "$cache/made" 2>/dev/null)" != "$key" ]; then
    rm -rf "$cache/made" "$cache/venv"
    if ! { python3 -m venv "$cache/venv" &&
        timeout 600 "$cache/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary=:all: \
            --retries 1 --no-cache-dir --no-compile -r "${wanted[0]}" -r "${wanted[1]}"
    } >"$cache/log" 2>&1; then
        reason=$(grep -m1 -E '^ERROR' "$cache/log" || tail -1 "$cache/log")
        echo "SKIPPED: tests of writers: ${reason:0:200}"
        rm -rf "$cache/venv"
        exit 0
    fi
    echo "$key" >"$cache/made"
fi
flock --unlock "$lock"
# TEON_VENV: without it, run_tests.py would restart itself with .venv's Python (scripts/common/use_venv.py).
exec env TEON_VENV="$cache/venv" "$cache/venv/bin/python" dev/run_tests.py test/scripts/test_writers.py "$@"
