#!/bin/bash
# Trains on several nodes of a Slurm cluster; one task per GPU. From the repository, after `make BACKEND=cuda`:
#
#   sbatch --nodes=2 scripts/launch/slurm.sh --model large --optimizer teon --data datasets/fineweb10B \
#       --batch-tokens 524288
#
# Ranks connect at the first node of the step. Two minutes before its time limit the job gets SIGTERM, saves a
# checkpoint and ends with status 75; this script then requeues it, and it continues from the checkpoint. Checkpoints do
# not depend on the number of GPUs.
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

out=${TEON_OUT:-runs/slurm-$SLURM_JOB_ID}            # a requeued job keeps its id
program=${TEON_PROGRAM:-./train_gpt2}
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

# --resume continues from the newest checkpoint in --out, if there is one.
status=0
srun --mpi=none --kill-on-bad-exit=1 "$program" "$@" --out "$out" --resume --exit-when-stopped 75 || status=$?

if [ $status = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
