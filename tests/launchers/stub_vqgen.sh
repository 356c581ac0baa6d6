#!/usr/bin/env bash
# Stands in for vqgen in tests of its launchers. Each call leaves a file in RECORDS: one argument
# per line, then what the launcher said. tune writes its shard's table, unless FAILS names a file
# that holds the shard; merge combines all tables, which must exist.
set -euo pipefail
{
  printf '%s\n' "$@"
  echo "gpu ${CUDA_VISIBLE_DEVICES-none}"
  echo "task ${SLURM_ARRAY_TASK_ID-none} of ${SLURM_ARRAY_TASK_COUNT-none} step ${SLURM_STEP_NUM_TASKS-none}"
} >"$(mktemp "$RECORDS/XXXXXX")"
out="" shard="" tables=()
for ((i = 1; i <= $#; ++i)); do
  next=$((i + 1))
  case "${!i}" in
    --out) out="${!next}" ;;
    --shard) shard="${!next}" ;;
    *.jsonl) [ "${!i}" = "$out" ] || tables+=("${!i}") ;;
  esac
done
if [ "$1" = tune ]; then
  if [ -e "${FAILS-}" ] && grep -qx "$shard" "$FAILS"; then
    echo "vqgen: error: the stub was told to fail"
    exit 5
  fi
  echo "row of $shard" >"$out"
else
  cat "${tables[@]}" >"$out"
fi
