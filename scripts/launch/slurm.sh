#!/bin/bash
# Trains on a Slurm cluster; one task per GPU. From the repository, after `make BACKEND=cuda`:
#
#   sbatch --nodes=1 --gpus-per-node=1 --ntasks-per-node=1 scripts/launch/slurm.sh --data datasets/fineweb10B
#   sbatch --nodes=2 scripts/launch/slurm.sh --model large --optimizer teon --data datasets/fineweb10B
#   TEON_CELLS=cells.txt sbatch --array=1-4 --nodes=1 --gpus-per-node=1 --ntasks-per-node=1 scripts/launch/slurm.sh \
#       --data datasets/fineweb10B
#
# The first trains on one GPU, the second on two nodes of eight. The third trains four runs; task N of the array adds
# the flags on line N of the file, for example `--optimizer muon --lr 0.02`. A run's folder is runs/slurm-JOB or
# runs/slurm-ARRAY_TASK; TEON_OUT names another, without _TASK. TEON_PROGRAM is the program (./train_gpt2).
#
# Two minutes before its time limit the job gets SIGTERM, saves a checkpoint and ends with status 75; this script then
# requeues it, and it continues from the checkpoint. Checkpoints do not depend on the number of GPUs. Ranks meet at an
# address on the first node; ranks of a build for CPUs meet by MPI (export SLURM_MPI_TYPE=pmix).
#
#SBATCH --job-name=teon
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?run me with sbatch}"

task=${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
out=${TEON_OUT:-runs/slurm-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}$task  # a requeued job keeps its number
program=${TEON_PROGRAM:-./train_gpt2}
cell=()
if [ -n "${TEON_CELLS:-}" ]; then
    mapfile -t cells <"$TEON_CELLS"
    line=${SLURM_ARRAY_TASK_ID:?TEON_CELLS needs sbatch --array}
    [ "$line" -ge 1 ] && [ "$line" -le ${#cells[@]} ] || { echo "$TEON_CELLS has no line $line" >&2; exit 2; }
    read -ra cell <<<"${cells[line - 1]}"
fi
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-none}

# --resume continues from the newest checkpoint in --out, if there is one.
status=0
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" "$program" "$@" "${cell[@]}" --out "$out" --resume \
    --exit-when-stopped 75 || status=$?

if [ $status = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
