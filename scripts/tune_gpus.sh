#!/usr/bin/env bash
# A sweep tuned on all GPUs of this host: a worker a GPU, each with its shard, and one table of all.
#
#   scripts/tune_gpus.sh SWEEP FOLDER [OPTION of vqgen tune...]
#
# The table is FOLDER/tuned.jsonl; shards, journals and logs stand beside it. The GPUs are those of
# CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists; VQGEN is the tool (vqgen). Where a worker
# fails nothing is merged; the same command again goes on from the journals.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/command.sh"
command_help "${BASH_SOURCE[0]}" "$@"

if [ $# -lt 2 ]; then
  (command_help "${BASH_SOURCE[0]}" --help) >&2
  exit 2
fi
readonly SWEEP="$1" FOLDER="$2" VQGEN="${VQGEN:-vqgen}"
shift 2
mkdir -p "$FOLDER"

if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
  IFS=, read -r -a gpus <<<"$CUDA_VISIBLE_DEVICES"
elif command -v nvidia-smi >/dev/null; then
  mapfile -t gpus < <(nvidia-smi --query-gpu=uuid --format=csv,noheader)
else
  gpus=()
fi
readonly SHARDS="${#gpus[@]}"
if [ "$SHARDS" -eq 0 ]; then
  echo "tune_gpus: no GPU: nvidia-smi lists none; set CUDA_VISIBLE_DEVICES" >&2
  exit 5
fi

# Journals keep what was measured.
workers=()
stop() {
  trap '' INT TERM
  kill "${workers[@]}" 2>/dev/null || true
  wait || true
  echo "tune_gpus: stopped; the same command goes on from the journals" >&2
  exit 130
}
trap stop INT TERM

tables=()
for shard in "${!gpus[@]}"; do
  name="$FOLDER/shard-$shard-of-$SHARDS"
  tables+=("$name.jsonl")
  CUDA_VISIBLE_DEVICES="${gpus[$shard]}" "$VQGEN" tune "$SWEEP" --shard "$shard/$SHARDS" \
    --out "$name.jsonl" "$@" >>"$name.log" 2>&1 &
  workers+=($!)
done
echo "tune_gpus: $SHARDS workers; $FOLDER/shard-*-of-$SHARDS.log tell how far they are"

status=0
for shard in "${!workers[@]}"; do
  code=0
  wait "${workers[$shard]}" || code=$?
  [ "$code" -eq 0 ] && continue
  status="$code"
  echo "tune_gpus: shard $shard of $SHARDS on GPU ${gpus[$shard]} failed with exit code $code:" >&2
  tail -n 5 "$FOLDER/shard-$shard-of-$SHARDS.log" >&2
done
if [ "$status" -ne 0 ]; then
  echo "tune_gpus: nothing was merged; the same command goes on from the journals" >&2
  exit "$status"
fi
[ ! -f "$FOLDER/tuned.jsonl" ] || tables+=("$FOLDER/tuned.jsonl")  # of another sweep, too
exec "$VQGEN" db merge "${tables[@]}" --out "$FOLDER/tuned.jsonl"
