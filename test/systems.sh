# Makes minimal Debian and Ubuntu systems with debootstrap, for test/machines.sh and test/compile_systems.sh, which
# source this file. They set cache (a folder), work (a folder for logs) and CCACHE, and are in a mount namespace of
# their own.

# Prints why this machine cannot make systems, or fails.
cannot_make_systems() {
    [ "$(id -u)" = 0 ] || { echo "needs root (chroot)"; return; }
    command -v debootstrap >/dev/null || { echo "needs debootstrap (apt-get install debootstrap)"; return; }
    unshare --mount true 2>/dev/null || { echo "needs the right to mount (a container without it runs here)"; return; }
    return 1
}

# Unmounts what copy_settings mounted.
leave() {
    local place
    for place in proc dev var/cache/apt/archives var/cache/ccache; do
        umount --lazy --recursive "$1/$place" 2>/dev/null || true
    done
}

# Makes the minimal system of a suite, unless it exists.
make_suite() {
    local suite=$1 root=$cache/$1 mirror=http://deb.debian.org/debian areas=main
    [ ! -e "$root/made" ] || return 0
    local script=/usr/share/debootstrap/scripts/$suite base=sid signature=()
    case $suite in jammy | noble) base=gutsy mirror=http://archive.ubuntu.com/ubuntu areas=main,universe ;; esac
    # debootstrap's scripts for newer suites are links to these.
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/$base
    if [ $base = gutsy ] && [ ! -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]; then
        echo "ubuntu-archive-keyring is not installed: the base system's signature is not checked"
        signature=(--no-check-gpg)
    fi
    rm -rf --one-file-system "$root"
    debootstrap "${signature[@]}" --variant=minbase --components="$areas" --include=make,git,ca-certificates \
        "$suite" "$root" "$mirror" "$script" >"$cache/$suite.log" 2>&1 || { tail -20 "$cache/$suite.log"; return 1; }
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"  # this system need not survive a crash
    touch "$root/made"
}

# Copies this machine's settings for package registries, and mounts /proc, /dev and the caches.
copy_settings() {
    local root=$1 file
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/apt/apt.conf /etc/apt/apt.conf.d/*proxy* \
        /etc/apt/auth.conf /etc/apt/auth.conf.d/* /etc/apt/apt.conf.d/99*; do
        [ -f "$file" ] && cp -L --parents "$file" "$root"
    done
    if [ -d /usr/local/share/ca-certificates ]; then
        mkdir -p "$root/usr/local/share/ca-certificates"
        cp -rL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates"
        chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin update-ca-certificates >/dev/null 2>&1 || return 1
    fi
    local pip='PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|DEFAULT_TIMEOUT)'
    env | grep -E "^((https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY|$pip)=" >"$root/etc/settings"
    mount --bind "$cache/packages" "$root/var/cache/apt/archives"
    if [ "${CCACHE:-0}" = 1 ]; then
        printf '%s\n' "MAKEFLAGS=' -- CXX=/usr/local/lib/ccache/g++'" CCACHE_DIR=/var/cache/ccache \
            CCACHE_UMASK=000 CCACHE_BASEDIR=/home CCACHE_NOHASHDIR=1 \
            CCACHE_SLOPPINESS=time_macros,include_file_mtime,include_file_ctime >>"$root/etc/settings"
        mkdir -p "$root/var/cache/ccache" && mount --bind "$cache/ccache" "$root/var/cache/ccache" &&
            inside "$root" root / "apt-get update -q && apt-get install -q -y --no-install-recommends ccache &&
                mkdir /usr/local/lib/ccache && ln -s /usr/bin/ccache /usr/local/lib/ccache/g++" >"$work/ccache.log" 2>&1
    fi
}

# inside ROOT USER FOLDER COMMAND: runs the command in the system.
inside() {
    chroot "$1" /usr/bin/env -i \
        HOME="$(chroot "$1" getent passwd "$2" | cut -d: -f6)" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        LANG=C.UTF-8 DEMO_STEPS="${DEMO_STEPS-30}" setpriv --reuid="$2" --regid="$2" --init-groups \
        bash -c "set -a; . /etc/settings; set +a; cd '$3' && $4"
}
