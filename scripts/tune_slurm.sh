#!/usr/bin/env bash
# A sweep tuned by a Slurm job array: each task has one GPU and one shard, and leaves its table and
# journal in a folder that all nodes see; a job that waits for all of them merges the tables.
#
#   scripts/tune_slurm.sh SWEEP FOLDER SHARDS [OPTION of vqgen tune...]
#
# The table is FOLDER/tuned.jsonl. Partition, account and limits of time are Slurm's own variables,
# such as SBATCH_PARTITION and SBATCH_TIMELIMIT; GPU_REQUEST is what asks for one GPU
# (--gres=gpu:1), VQGEN the tool (vqgen). Where a task fails nothing is merged; the same command
# again goes on from the journals, as does a task that Slurm has requeued.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/command.sh"
command_help "${BASH_SOURCE[0]}" "$@"

if [ $# -lt 3 ]; then
  (command_help "${BASH_SOURCE[0]}" --help) >&2
  exit 2
fi
readonly SWEEP="$1" SHARDS="$3"
if ! [[ "$SHARDS" =~ ^[1-9][0-9]{0,4}$ ]]; then
  echo "tune_slurm: SHARDS is '$SHARDS'; give a number from 1 on, such as that of your GPUs" >&2
  exit 2
fi
mkdir -p "$2"
FOLDER="$(realpath "$2")"
readonly FOLDER VQGEN="${VQGEN:-vqgen}" GPU_REQUEST="${GPU_REQUEST---gres=gpu:1}"
shift 3

# The arguments as bash reads them again.
quoted() { printf '%q ' "$@"; }

tables=()
for ((shard = 0; shard < SHARDS; ++shard)); do
  tables+=("$FOLDER/shard-$shard-of-$SHARDS.jsonl")
done

# The shard is named, not left to the environment: --array of fewer tasks would mean others.
# shellcheck disable=SC2086
array="$(sbatch --parsable --job-name=vqgen-tune --array="0-$((SHARDS - 1))" --ntasks=1 $GPU_REQUEST \
  --requeue --open-mode=append --output="$FOLDER/shard-%a-of-$SHARDS.log" <<EOF
#!/usr/bin/env bash
exec $(quoted "$VQGEN" tune "$SWEEP") --shard "\$SLURM_ARRAY_TASK_ID/$SHARDS" \
  --out $(quoted "$FOLDER" | sed "s/ $//")/"shard-\$SLURM_ARRAY_TASK_ID-of-$SHARDS.jsonl" $(quoted "$@")
EOF
)"
array="${array%%;*}"  # of a federation it is ID;CLUSTER

# All tables by name, so that one that is missing is an error and no smaller table.
merge="$(sbatch --parsable --job-name=vqgen-merge --ntasks=1 --dependency="afterok:$array" \
  --kill-on-invalid-dep=yes --output="$FOLDER/merge.log" <<EOF
#!/usr/bin/env bash
exec $(quoted "$VQGEN" db merge "${tables[@]}" --out "$FOLDER/tuned.jsonl")
EOF
)"
echo "tune_slurm: job $array tunes $SWEEP in $SHARDS shards; job ${merge%%;*} merges them into $FOLDER/tuned.jsonl"
