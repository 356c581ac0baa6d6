#!/usr/bin/env bash
# scripts/tune_gpus.sh with a stub for vqgen: which GPU gets which shard, and what a failure does.
#
#   tune_gpus_test.sh SOURCE_DIR
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
readonly SCRIPT="$1/scripts/tune_gpus.sh"
prepare_stub

export CUDA_VISIBLE_DEVICES="3,GPU-ab,0"
"$SCRIPT" "my sweep.json" "$work/out dir" --budget "1 s" --search local >/dev/null
expect "a table of all shards" "$(sort "$work/out dir/tuned.jsonl")" $'row of 0/3\nrow of 1/3\nrow of 2/3'
expect "workers and the merge" "$(records | wc -l)" 4
expect "each its GPU" "$(grep -h -A 1 -- --shard "$RECORDS"/* | grep / | sort | tr '\n' ' ')" "0/3 1/3 2/3 "
for pair in "0/3:3" "1/3:GPU-ab" "2/3:0"; do
  expect "the GPU of ${pair%%:*}" "$(grep -h "^gpu" "$(grep -lx "${pair%%:*}" "$RECORDS"/*)")" "gpu ${pair##*:}"
done
expect "options as they were" "$(head -n 11 "$(grep -lx 1/3 "$RECORDS"/*)" | tr '\n' '|')" \
  "tune|my sweep.json|--shard|1/3|--out|$work/out dir/shard-1-of-3.jsonl|--budget|1 s|--search|local|gpu GPU-ab|"

# One worker fails: the others end, nothing is merged, and the script returns its status.
fresh_records
echo 1/3 >"$FAILS"
code=0
"$SCRIPT" sweep "$work/second" >"$work/log" 2>&1 || code=$?
expect "the failure's status" "$code" 5
expect "no merged table" "$([ -e "$work/second/tuned.jsonl" ] && echo there || echo none)" none
expect "three workers, no merge" "$(records | wc -l)" 3
grep -q "shard 1 of 3 on GPU GPU-ab failed" "$work/log" || fail "no word of the shard: $(cat "$work/log")"
grep -q "told to fail" "$work/log" || fail "no word of the reason: $(cat "$work/log")"
# Without the fault, the command succeeds in the same folder.
rm "$FAILS"
"$SCRIPT" sweep "$work/second" >/dev/null
expect "a table after all" "$(wc -l <"$work/second/tuned.jsonl")" 3

# Without a GPU, and without arguments, the script fails.
if ! command -v nvidia-smi >/dev/null; then
  code=0
  CUDA_VISIBLE_DEVICES="" "$SCRIPT" sweep "$work/third" >"$work/log" 2>&1 || code=$?
  expect "no GPU" "$code" 5
fi
code=0
"$SCRIPT" sweep >"$work/log" 2>&1 || code=$?
expect "usage" "$code" 2
grep -q "tune_gpus.sh SWEEP FOLDER" "$work/log" || fail "no usage: $(cat "$work/log")"

# A worker does not outlive the script that started it.
mkdir "$work/slow"
printf '#!/usr/bin/env bash\necho $$ >>"%s/pids"\nexec sleep 600\n' "$work/slow" >"$work/slow/vqgen"
chmod +x "$work/slow/vqgen"
VQGEN="$work/slow/vqgen" "$SCRIPT" sweep "$work/fourth" >"$work/log" 2>&1 &
script=$!
for ((i = 0; i < 100; ++i)); do
  [ -e "$work/slow/pids" ] && [ "$(wc -l <"$work/slow/pids")" -eq 3 ] && break
  sleep 0.1
done
kill "$script"
code=0
wait "$script" || code=$?
expect "stopped" "$code" 130
while read -r pid; do
  kill -0 "$pid" 2>/dev/null && fail "worker $pid still runs"
done <"$work/slow/pids"
finish
