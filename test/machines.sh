#!/bin/bash
# Tests the README's two commands on minimal systems. For each row of the table below, makes a system with debootstrap
# that has only the row's packages, copies this repository's last commit there and runs `make demo` (30 steps) and
# `make test`. Prints a table of the results at the end. Not part of CI.
#
#   sudo test/machines.sh                         every row, one after the other (hours)
#   sudo test/machines.sh debian12 libblas        these rows
#   sudo DEMO_STEPS= COMMANDS="make demo" test/machines.sh debian12     other commands; the demo's full length
#   sudo CACHE=DIR KEEP=1 test/machines.sh user   keeps each suite's system and packages in DIR, and the row's system
#   sudo CACHE=DIR CCACHE=1 test/machines.sh      rows with the same compiler share its results (CXX is ccache's)
#
# Needs root and debootstrap. Ubuntu's archive signature is checked only if ubuntu-archive-keyring is installed. The new
# systems get this machine's settings for package registries: apt and pip settings, proxies and certificates. All mounts
# are in a private namespace, which ends with this script.
set -uo pipefail

# name | suite | preinstalled packages | folder of the source | variant
rows=$(sed 's/ *| */|/g; s/^ *//' <<'TABLE'
debian12    | bookworm |                             | teon      |
debian13    | trixie   |                             | teon      |
ubuntu22    | jammy    |                             | teon      |
ubuntu24    | noble    |                             | teon      |
libblas     | bookworm | libblas-dev liblapack-dev   | teon      |
openblas    | bookworm | libopenblas-dev             | teon      |
user        | bookworm | all                         | teon      | user
bare-user   | bookworm |                             | teon      | refused
space       | bookworm |                             | te on/src |
tarball     | bookworm |                             | teon      | tarball
no-venv     | bookworm | all but python3-venv        | teon      | user
container   | bookworm |                             | teon      | container
TABLE
)

repository=$(cd "$(dirname "$0")/.." && pwd)
. "$repository/test/systems.sh"

fail() { echo "machines: error: $*" >&2; exit 2; }
if [ "${IN_NAMESPACE:-}" != 1 ]; then
    reason=$(cannot_make_systems) && fail "$reason"
    names=$(cut -d'|' -f1 <<<"$rows" | paste -sd' ')
    for name in "$@"; do grep -q "^$name|" <<<"$rows" || fail "no row $name; there are: $names"; done
    IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/machines-XXXXXX")
cache=${CACHE:-$work/cache}
mkdir -p "$cache/packages"
[ "${CCACHE:-0}" != 1 ] || mkdir -p -m 1777 "$cache/ccache"
matrix=()
failed=0 finished=0

finish() {
    for root in "$work"/*/; do leave "${root%/}"; done
    [ "${KEEP:-0}" = 1 ] && echo "kept: $work" || rm -rf --one-file-system "$work"
    printf '\n%-12s%-10s%s\n' "machine" "suite" "result ($(nproc) cores)"
    printf '%s\n' "${matrix[@]}"
    [ $failed = 0 ] && [ $finished = 1 ] && echo "machines: passed" || { echo "machines: FAILED"; exit 1; }
}
trap finish EXIT

# Prints the cpu stage of Containerfile as one command: ENV, RUN and CMD.
container_steps() {
    sed -n '/ AS cpu$/,/ AS cuda$/{ s/^ENV /export /p; s/^RUN //p; s/^CMD \[\(.*\)\]/\1/p }' \
        "$repository/Containerfile" |
        sed 's/", "/ /g; s/"//g' | awk '{ printf "%s%s", (NR > 1 ? " && " : ""), $0 }'
}

# Makes the system of one row. Sets root, user and folder.
prepare() {
    local name=$1 suite=$2 packages=$3 place=$4 variant=$5
    root=$work/$name user=root folder=/home/$place
    local install="apt-get install -q -y --no-install-recommends"
    make_suite "$suite" && cp -a "$cache/$suite" "$root" && copy_settings "$root" || return 1
    mkdir -p "$root$folder"
    if [ "$variant" = tarball ]; then
        git -C "$repository" archive HEAD | tar -x -C "$root$folder"
    else
        git clone -q --no-hardlinks "$repository" "$root$folder"
    fi
    case $packages in
    all*)
        local less=${packages#all}
        inside "$root" root "$folder" "scripts/setup.sh packages"
        [ -n "$less" ] || inside "$root" root / "$install python3-venv >/dev/null" ;;
    ?*) inside "$root" root / "apt-get update -q && $install $packages" >"$work/$name.log" 2>&1 ;;
    esac || return 1
    if [ "$variant" = user ] || [ "$variant" = refused ]; then
        user=someone
        chroot "$root" useradd --create-home someone && chroot "$root" chown -R someone "$folder"
    fi
}

run_row() {
    local name=$1 suite=$2 variant=$5 result="" command start
    echo "== $name"
    if ! prepare "$@"; then
        result="FAILED: the machine could not be made"
    elif [ "$variant" = refused ]; then  # one line names the packages that an administrator has to install
        command=$(inside "$root" "$user" "$folder" "make demo" 2>&1)
        if [ $? != 0 ] && [ "$(grep -c 'only an administrator can install' <<<"$command")" = 1 ]; then
            result="make demo: refused in one line"
        else
            echo "$command"; result="FAILED: make demo was not refused in one line"
        fi
    else
        local commands=${COMMANDS:-make demo;make test}
        [ "$variant" != container ] || commands=$(container_steps)
        while read -r command; do
            start=$SECONDS
            echo "-- $command"
            if inside "$root" "$user" "$folder" "$command" 2>&1 | tee "$work/$name.log"; then
                result+="${command:0:60} $((SECONDS - start)) s"
            else
                result+="FAILED: ${command:0:60}"
            fi
            local summary='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'
            result+="$(grep -E "$summary" "$work/$name.log" | tail -1 | sed 's/.*/ (&)/'); "
        done <<<"${commands//;/$'\n'}"
    fi
    leave "$root"
    [ "${KEEP:-0}" = 1 ] || rm -rf --one-file-system "$root"
    [[ $result != *FAILED* ]] || failed=1
    matrix+=("$(printf '%-12s%-10s%s' "$name" "$suite" "${result%; }")")
}

while IFS='|' read -r name suite packages place variant; do
    if [ $# = 0 ] || [[ " $* " == *" $name "* ]]; then
        run_row "$name" "$suite" "$packages" "$place" "$variant" </dev/null
    fi
done <<<"$rows"
finished=1
