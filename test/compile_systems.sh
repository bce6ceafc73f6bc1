#!/bin/bash
# Compiles every source and test (`make syntax`) with the compilers and libraries of the other supported systems, and
# with clang++ 16 or later if this machine has it. Each system is a bare one, as test/machines.sh makes them, in which
# scripts/setup.sh installs what it finds missing.
#
#   test/compile_systems.sh                    all
#   test/compile_systems.sh ubuntu22 clang     these
#
# A system that cannot be made here is skipped by name: "SKIPPED: compile in NAME: why". The systems are kept in CACHE
# (default: ~/.cache/teon-machines), and the next call compiles there only what has changed.
set -uo pipefail

# name | suite
rows="ubuntu22 jammy
ubuntu24 noble
debian13 trixie"

repository=$(cd "$(dirname "$0")/.." && pwd)
. "$repository/test/systems.sh"
chosen() { [ ${#names[@]} = 0 ] || [[ " ${names[*]} " == *" $1 "* ]]; }
names=("$@")
for name in "$@"; do
    [ "$name" = clang ] || grep -q "^$name " <<<"$rows" || { echo "no system $name; there are:" \
        "$(cut -d' ' -f1 <<<"$rows" | paste -sd' ') clang" >&2; exit 2; }
done
if [ "${IN_NAMESPACE:-}" != 1 ] && ! reason=$(cannot_make_systems); then
    IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi

failed=0
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-machines}
work=$(mktemp -d "${TMPDIR:-/tmp}/compile-systems-XXXXXX")
roots=()
finish() {
    for root in "${roots[@]}"; do leave "$root"; done
    rm -rf --one-file-system "$work"
}
trap finish EXIT

skip() { echo "SKIPPED: compile in $1: $2"; }

# report NAME START COMMAND...: runs the command and prints how long it took.
report() {
    local name=$1
    shift
    local start=$SECONDS
    if "$@"; then
        echo "compile in $name: passed, $((SECONDS - start)) s"
    else
        echo "compile in $name: FAILED"
        failed=1
    fi
}

# Copies the checkout's files that differ to folder $1 and removes those that are gone.
copy_checkout() {
    local file
    git -C "$repository" ls-files --cached --others --exclude-standard >"$work/files" || return 1
    while read -r file; do
        [ ! -f "$repository/$file" ] || cmp -s "$repository/$file" "$1/$file" ||
            (cd "$repository" && cp --parents "$file" "$1") || return 1
    done <"$work/files"
    (cd "$1" && find . -name build -prune -o -type f -print | sed 's|^\./||' | { grep -vxFf "$work/files" || true; } |
        xargs -r rm)
}

# Compiles in the system of one row, which is made first unless it is in the cache.
compile_in() {
    local name=$1 suite=$2 root=$cache/compile-$2
    mkdir -p "$cache/packages"
    exec {lock}>"$cache/$suite.lock"
    flock "$lock"  # for two calls at once
    if [ ! -e "$root/made" ]; then
        rm -rf --one-file-system "$root"
        make_suite "$suite" >"$work/log" 2>&1 && cp -a "$cache/$suite" "$root" ||
            { skip "$name" "$(grep -v '^ubuntu-archive-keyring' "$work/log" | tail -1)"; return; }
    fi
    roots+=("$root")
    copy_settings "$root" && mkdir -p "$root/src" && copy_checkout "$root/src" ||
        { skip "$name" "the checkout could not be copied"; return; }
    local install="scripts/setup.sh packages && scripts/setup.sh mpi"
    if ! inside "$root" root /src "$install" >"$work/log" 2>&1; then
        inside "$root" root / "apt-get update -q" >/dev/null 2>&1 ||
            { skip "$name" "its packages cannot be reached"; return; }
        tail -5 "$work/log"
    fi
    report "$name" inside "$root" root /src "make -k SETUP=0 BACKEND=cpu syntax"
}

while read -r name suite; do
    chosen "$name" || continue
    if [ "${IN_NAMESPACE:-}" = 1 ]; then compile_in "$name" "$suite" </dev/null; else skip "$name" "$reason"; fi
done <<<"$rows"

if chosen clang; then
    compiler=$(compgen -c clang++- | grep -xE 'clang\+\+-(1[6-9]|[2-9][0-9])' | sort -V | tail -1)
    if [ -n "$compiler" ]; then
        report "clang ($compiler)" make -C "$repository" -k --no-print-directory SETUP=0 BACKEND=cpu CXX="$compiler" \
            syntax
    else
        skip clang "needs clang++-16 or later (scripts/setup.sh dev)"
    fi
fi
exit $failed
