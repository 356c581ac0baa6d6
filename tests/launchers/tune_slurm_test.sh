#!/usr/bin/env bash
# scripts/tune_slurm.sh on a one-machine Slurm (munged, slurmctld and slurmd in a folder of the
# test) with a stub for vqgen instead of GPUs. All shards run once and are merged; a failing shard
# prevents the merge, and repeating the command completes it.
#
#   tune_slurm_test.sh SOURCE_DIR        exits with 77 if Debian's slurm-wlm is not installed
set -euo pipefail
export PATH="$PATH:/usr/sbin"
for tool in munged slurmctld slurmd sbatch squeue; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: no slurm: $tool is missing; apt-get install slurm-wlm"
    exit 77
  fi
done
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
readonly SCRIPT="$1/scripts/tune_slurm.sh"
prepare_stub

daemons=()
cleanup() {
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${daemons[@]}"; do wait "$pid" 2>/dev/null || true; done
}

free_ports() {
  python3 -c 'import socket
held = [socket.socket() for _ in range(2)]
for each in held: each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in held))'
}

start_slurm() {
  local user name controller_port node_port
  user="$(id -un)"
  name="$(hostname -s)"
  read -r controller_port node_port < <(free_ports)
  mkdir -p "$work/state" "$work/spool"
  (umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
  munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" \
    --pid-file="$work/munge.pid" --seed-file="$work/munge.seed" --log-file="$work/munge.log" \
    >"$work/munge.out" 2>&1 &
  daemons+=($!)
  export SLURM_CONF="$work/slurm.conf"
  cat >"$SLURM_CONF" <<CONF
ClusterName=vqgen
SlurmctldHost=$name(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
AuthInfo=socket=$work/munge.socket
SlurmctldPort=$controller_port
SlurmdPort=$node_port
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
NodeName=$name NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=test Nodes=$name Default=YES State=UP
CONF
  # Devices that every machine has, which Slurm then assigns like GPUs.
  printf 'Name=gpu File=%s Flags=nvidia_gpu_env\n' /dev/null /dev/zero >"$work/gres.conf"
  for ((i = 0; i < 50; ++i)); do
    [ -S "$work/munge.socket" ] && break
    sleep 0.1
  done
  slurmctld -D >"$work/slurmctld.out" 2>&1 &
  daemons+=($!)
  slurmd -D >"$work/slurmd.out" 2>&1 &
  daemons+=($!)
  for ((i = 0; i < 150; ++i)); do
    [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ] && return 0
    sleep 0.1
  done
  tail -n 15 "$work"/*.log "$work"/*.out
  fail "Slurm did not start within 15 s"
  exit 1
}

# Waits until no job is left; jobs take milliseconds.
wait_for_jobs() {
  for ((i = 0; i < 300; ++i)); do
    [ -z "$(squeue --noheader 2>/dev/null)" ] && return 0
    sleep 0.2
  done
  squeue
  tail -n 15 "$work/slurmctld.log" "$work/slurmd.log"
  fail "jobs did not end within 60 s"
}

start_slurm

"$SCRIPT" "my sweep.json" "$work/out dir" 5 --budget "1 s" >"$work/log"
grep -q "in 5 shards" "$work/log" || fail "says '$(cat "$work/log")'"
wait_for_jobs
expect "all shards, once each" "$(sort "$work/out dir/tuned.jsonl" | tr '\n' '|')" \
  "row of 0/5|row of 1/5|row of 2/5|row of 3/5|row of 4/5|"
expect "five tasks and the merge" "$(records | wc -l)" 6
third="$(grep -lx 3/5 "$RECORDS"/*)"
expect "arguments as they were" "$(head -n 8 "$third" | tr '\n' '|')" \
  "tune|my sweep.json|--shard|3/5|--out|$work/out dir/shard-3-of-5.jsonl|--budget|1 s|"
expect "a GPU each" "$(grep -h "^gpu [01]" "$RECORDS"/* | sort -u | tr '\n' '|')" "gpu 0|gpu 1|"
# The variables that runtime/tuning/sweep/sweep.h takes from Slurm: a batch script is not a step.
expect "Slurm's own words" "$(tail -n 1 "$third")" "task 3 of 5 step none"

# Shard 2 fails: no merge, now or later.
fresh_records
echo 2/3 >"$FAILS"
"$SCRIPT" sweep "$work/second" 3 >/dev/null
wait_for_jobs
expect "three tasks, no merge" "$(records | wc -l)" 3
expect "no merged table" "$([ -e "$work/second/tuned.jsonl" ] && echo there || echo none)" none
grep -q "told to fail" "$work/second/shard-2-of-3.log" || fail "no word of the reason in its log"
rm "$FAILS"
"$SCRIPT" sweep "$work/second" 3 >/dev/null
wait_for_jobs
expect "a table after all" "$(wc -l <"$work/second/tuned.jsonl")" 3

# Steps of srun know their number and their count.
# shellcheck disable=SC2016
expect "a step's words" "$(srun --ntasks=3 bash -c 'echo $SLURM_PROCID of $SLURM_STEP_NUM_TASKS' | sort | tr '\n' '|')" \
  "0 of 3|1 of 3|2 of 3|"

for wrong in 0 -1 x 1.5 ""; do
  code=0
  "$SCRIPT" sweep "$work/third" "$wrong" >/dev/null 2>&1 || code=$?
  expect "SHARDS '$wrong'" "$code" 2
done
finish
