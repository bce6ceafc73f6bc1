#!/bin/bash
# Compiles a file for the Makefile, and says which of the files of this make it is and how long the others will take:
# "  cpu  12 of 55, 40 s left  kernels/norm.cu".
#
#   MAKE_ID=ID GOALS="GOALS" JOBS=N dev/compile.sh FOLDER FILE COMMAND...
#
# MAKE_ID is the same for all calls of one make. The first counts the files, by asking make what it would do.
set -euo pipefail
trap 'exit 130' INT  # also if it comes while a program is about to end, after which bash would go on
folder=$1 file=$2
shift 2

# Prints how many files make would compile for these goals into this folder.
count() {
    local words=()
    for word in $MAKEFLAGS; do case $word in -j* | --jobserver*) ;; *) words+=("$word") ;; esac; done
    # shellcheck disable=SC2086
    MAKEFLAGS="${words[*]}" make -n COUNTING=1 $GOALS 2>/dev/null | grep -c "dev/compile.sh $folder " || true
}

# The state of this make: its name, when it began to compile, how many files there are, and how many were begun.
exec {state}>>"$folder/progress"
flock "$state"
IFS=, read -r make start total begun <"$folder/progress" || true
if [ "${make:-}" != "$MAKE_ID" ]; then
    total=$(count) start=$EPOCHSECONDS begun=0
fi
begun=$((begun + 1))
echo "$MAKE_ID,$start,$total,$begun" >"$folder/progress"

left= finished=$((begun - JOBS))
if [ $finished -ge 5 ]; then
    left=$(((EPOCHSECONDS - start) * (total - finished) / finished))
    if [ "$left" -ge 90 ]; then left=", $(((left + 30) / 60)) min left"; else left=", $left s left"; fi
fi
[ "$begun" -le "$total" ] && place="$begun of $total$left" || place=$begun
echo "  ${folder#build/}  $place  $file"  # before the next one counts
exec {state}>&-

# `make -j` without a number starts all compilers at once: each then waits for one of JOBS locks.
case " $MAKEFLAGS " in *" -j "*) exec flock "build/lock$((RANDOM % JOBS))" "$@" ;; esac
exec "$@"
