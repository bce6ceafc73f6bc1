# shellcheck shell=bash
# What the scripts of this folder share. A script names its packages, then the output that it expects of a program:
#
#   . "$(dirname "$0")/lib.sh"
#   packages numpy==2.4.6 optax==0.2.8
#   prints "$expected" python - <<'END' ... END
#
# FINDINGS_VENVS: a folder in which environments are kept for the next script; else they go with the script.
set -euo pipefail
# Variables that would choose another code path in a library.
steering='G?OMP|KMP|PMIX|OPENBLAS|NVPL|MKL|DNNL|ONEDNN|ATEN|(PY)?TORCH|JAX|XLA|KERAS|MLX|OV|ORT|HF|TRANSFORMERS|PYTHON'
for variable in $(compgen -e | grep -E "^($steering)"); do
    unset "$variable"
done

name=$(basename "$0" .sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"

fail() {
    echo "$name: $1"
    exit 1
}

# Makes an environment of exactly these versions, whose programs come first on the PATH.
packages() {
    local venv
    venv=${FINDINGS_VENVS:-$work}/venv-$(echo "$*" | sha256sum | cut -c1-12)
    if [ ! -e "$venv/made" ]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q --no-compile --only-binary=:all: "$@" >"$work/pip" 2>&1 ||
            fail "not run: cannot install $* ($(grep -m1 ERROR "$work/pip" || tail -1 "$work/pip"))"
        touch "$venv/made"
    fi
    PATH=$venv/bin:$PATH
    echo "$name: $* (Python $(python3 -c 'import platform as p; print(p.python_version(), p.machine(), sep=", ")'))"
}

# Runs a command, shows what it prints, and fails unless that is the first argument.
prints() {
    local expected=$1 seen
    shift
    seen=$("$@" 2>"$work/errors") || fail "changed: it fails now: $(tail -1 "$work/errors")"
    echo "$seen"
    [ "$seen" = "$expected" ] ||
        fail "changed: $(grep -m1 '^>' <<<"$(diff <(echo "$expected") <(echo "$seen"))" || echo 'less is printed')"
}
