#!/bin/bash
# Proves the two commands on a bare machine: makes a minimal Debian with debootstrap, adds make, git and certificates and
# nothing else, clones this repository's last commit into it and runs `make demo` and `make test` there. Not part of CI.
#
#   sudo test/fresh_machine.sh                                                   Debian 12
#   sudo SUITE=noble MIRROR=http://archive.ubuntu.com/ubuntu AREAS=main,universe test/fresh_machine.sh     Ubuntu 24.04
#   sudo CONTAINERFILE=1 test/fresh_machine.sh                                   the steps of Containerfile's cpu stage
#   sudo COMMANDS="make test" KEEP=1 test/fresh_machine.sh                       other commands; keep the folder
#
# Needs root and debootstrap; for Ubuntu the archive's signature is checked where ubuntu-archive-keyring is installed. What this
# machine needs to reach packages (apt and pip settings, proxies, certificates) holds in the new one too. Everything is mounted in a
# private namespace, so nothing stays mounted however it ends.
set -euo pipefail
if [ "${IN_NAMESPACE:-}" != 1 ]; then
    [ "$(id -u)" = 0 ] || { echo "fresh_machine: error: needs root (chroot)" >&2; exit 2; }
    command -v debootstrap >/dev/null || { echo "fresh_machine: error: debootstrap is missing; apt-get install debootstrap" >&2; exit 2; }
    IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi

suite=${SUITE:-bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}
areas=${AREAS:-main}
repository=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d "${TMPDIR:-/tmp}/fresh-$suite-XXXXXX")
times=()
done=0

finish() {
    local status=$?
    printf '%s\n' "" "fresh machine, $suite, $(nproc) cores:" "${times[@]}"
    if [ "${KEEP:-0}" = 1 ]; then
        echo "kept: $root"
    else
        umount --lazy --recursive "$root/proc" "$root/dev" 2>/dev/null || true
        rm -rf --one-file-system "$root" || true
    fi
    if [ $done = 1 ]; then echo "fresh machine: passed"; else echo "fresh machine: FAILED"; exit $((status ? status : 1)); fi
}
trap finish EXIT

timed() {
    local what=$1 start=$SECONDS
    shift
    echo "== $what"
    "$@" && times+=("$(printf '  %5d s  %s' $((SECONDS - start)) "$what")") || { times+=("  FAILED   $what"); return 1; }
}

make_machine() {
    local script=/usr/share/debootstrap/scripts/$suite signature=()
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/gutsy  # what every newer Ubuntu's is a link to
    if grep -q ubuntu-archive-keyring "$script" && [ ! -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]; then
        echo "fresh_machine: no ubuntu-archive-keyring here: the base system's signature is not checked"
        signature=(--no-check-gpg)
    fi
    debootstrap "${signature[@]}" --variant=minbase --components="$areas" --include=make,git,ca-certificates \
        "$suite" "$root" "$mirror" "$script" >"$root.log" 2>&1 || { tail -20 "$root.log"; return 1; }
    rm -f "$root.log"
}

# The settings through which this machine reaches package registries.
copy_settings() {
    local file
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/apt/apt.conf /etc/apt/apt.conf.d/*proxy* /etc/apt/auth.conf \
        /etc/apt/auth.conf.d/* /etc/apt/apt.conf.d/99*; do
        [ -f "$file" ] && cp -L --parents "$file" "$root"
    done
    if [ -d /usr/local/share/ca-certificates ]; then
        mkdir -p "$root/usr/local/share/ca-certificates"
        cp -rL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates"
        chroot "$root" update-ca-certificates >/dev/null 2>&1
    fi
    env | grep -E '^((https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT))=' \
        >"$root/root/settings" || true
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
}

run_inside() {
    chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash -c \
        "set -a; . /root/settings; set +a; cd /root/teon && $1"
}

# The cpu stage of Containerfile as one command: its settings, its steps and what it is started with.
container_steps() {
    sed -n '/ AS cpu$/,/ AS cuda$/{ s/^ENV /export /p; s/^RUN //p; s/^CMD \[\(.*\)\]/\1/p }' "$repository/Containerfile" |
        sed 's/", "/ /g; s/"//g' | awk '{ printf "%s%s", (NR > 1 ? " && " : ""), $0 }'
}
[ -z "${CONTAINERFILE:-}" ] || COMMANDS=$(container_steps)

timed "minimal $suite" make_machine
copy_settings
git clone -q --no-hardlinks "$repository" "$root/root/teon"
IFS=';' read -ra commands <<<"${COMMANDS:-make demo;make test}"
for command in "${commands[@]}"; do timed "$command" run_inside "$command"; done
done=1
