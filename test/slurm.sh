#!/bin/bash
# Runs test/slurm_jobs.py on a Slurm of one node, which it starts in a temporary folder, on ports of its own, and ends.
#
#   test/slurm.sh [-k WORD]
#
# Needs root, slurmctld, slurmd and munged (scripts/setup.sh slurm installs Debian's); the last line is else "SKIPPED:
# jobs of Slurm: why". Jobs have a minute as their limit, so that this takes three.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
PATH=$PATH:/usr/sbin:/sbin

skip() { echo "SKIPPED: jobs of Slurm: $1"; exit 0; }
[ "$(id -u)" = 0 ] || skip "needs root, as slurmd does"
for program in munged slurmctld slurmd; do
    command -v $program >/dev/null || skip "needs $program (scripts/setup.sh slurm)"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/slurm-XXXXXX") host=$(hostname -s)
finish() {
    scancel --user=root --full 2>/dev/null
    local name pid
    for name in slurmctld slurmd munged; do
        pid=$(cat "$work/$name.pid" 2>/dev/null) && kill "$pid" || continue
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done  # it writes into the folder
    done
    rm -rf --one-file-system "$work"
}
trap finish EXIT
mkdir "$work/state" "$work/spool"
head -c 128 /dev/urandom >"$work/munge.key"
chmod 400 "$work/munge.key"
touch "$work"/gpu{0..7}
echo "NodeName=$host Name=gpu File=$work/gpu[0-7]" >"$work/gres.conf"
cat >"$work/slurm.conf" <<CONFIGURATION
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
SlurmctldPort=$((20000 + RANDOM % 10000))
SlurmdPort=$((30000 + RANDOM % 2000))
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
KillWait=30
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 RealMemory=16000 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES State=UP
CONFIGURATION
export SLURM_CONF=$work/slurm.conf

munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/seed" && slurmctld -c && slurmd &&
    for _ in {1..100}; do [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break; sleep 0.2; done
if [ "$(sinfo -h -o %T 2>/dev/null)" != idle ]; then
    tail -n 3 "$work"/*.log
    skip "Slurm does not start here"
fi
python3 dev/run_tests.py test/slurm_jobs.py "$@"
