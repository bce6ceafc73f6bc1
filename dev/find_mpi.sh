#!/bin/bash
# Asks MPI's compiler wrapper, MPICC (default: mpicc), what a build with MPI needs. The wrappers of Open MPI, MPICH and
# Intel MPI answer to -show or --showme with the command of a C compiler.
#
#   dev/find_mpi.sh include   compiler flags
#   dev/find_mpi.sh libs      linker flags, with an rpath for folders that the loader does not search
#   dev/find_mpi.sh name      which MPI this is, or why there is none
#
# Without MPI, or with MPICC=none, there are no flags.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin  # of ldconfig
: "${MPICC:=mpicc}"

includes=() folders=() library="" problem=""
if wrapper=$(command -v "$MPICC"); then
    export I_MPI_ROOT=${I_MPI_ROOT:-$(dirname "$(dirname "$wrapper")")}  # Intel's packages for pip do not know it
    shown=$("$wrapper" -show 2>/dev/null || "$wrapper" --showme 2>/dev/null || true)
    while read -r word; do
        case $word in
        -I*) includes+=("${word#-I}") ;;
        -L*) folders+=("${word#-L}") ;;
        -lmpi | -lmpich) library=${word#-l} ;;
        esac
    done < <(xargs -n 1 <<<"$shown")  # which takes a shell's quotes away
    [ -n "$library" ] || problem="$MPICC -show and --showme name no library of MPI"
elif [ "$MPICC" = none ]; then
    problem="MPICC=none"
elif command -v mpirun >/dev/null; then
    problem="there is mpirun, but no $MPICC: install MPI's package for developers"
else
    problem="there is no $MPICC (scripts/setup.sh mpi)"
fi

# Prints "Open MPI 4.1.4".
version() {
    g++ -E -dM "${includes[@]/#/-I}" -x c++ - <<<'#include <mpi.h>' 2>/dev/null | tr -d '"' | awk '
        $1 == "#define" { value[$2] = $3 }
        END {
            open = "OMPI_MAJOR_VERSION"
            if (open in value) print "Open MPI " value[open] "." value["OMPI_MINOR_VERSION"] "." \
                value["OMPI_RELEASE_VERSION"]
            else if ("I_MPI_VERSION" in value) print "Intel MPI " value["I_MPI_VERSION"]
            else if ("MPICH_VERSION" in value) print "MPICH " value["MPICH_VERSION"]
            else print "an MPI whose mpi.h is not found"
        }'
}

# Prints the linker's flags.
link() {
    local folder searched
    searched=$(ldconfig -p | sed -n 's|.* => \(.*\)/.*|\1|p' | sort -u | xargs -r readlink -f)
    for folder in "${folders[@]}"; do
        printf -- '-L%q ' "$folder"
        grep -qxF "$(readlink -f "$folder")" <<<"$searched" || printf -- '-Wl,-rpath,%q ' "$folder"
    done
    echo "-l$library"
}

case "$1" in
include) [ -n "$problem" ] || [ ${#includes[@]} = 0 ] || { printf -- '-isystem %q ' "${includes[@]}"; echo; } ;;
libs) [ -n "$problem" ] || link ;;
name) [ -z "$problem" ] && echo "with $(version) ($wrapper)" || echo "without MPI: $problem" ;;
*) sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2 ;;
esac
