#!/usr/bin/env bash
# Everything that needs a GPU, in one command: the sweep and the laws, the backend's own tests, k-means, every
# example config, the machine code of products in flight, and compute-sanitizer (memcheck, racecheck)
# on the kernels of scripts/lib/sanitized_kernels.txt, some of each dataflow.
#
#   scripts/gpu_test.sh             builds the dev preset first
#   scripts/gpu_test.sh BUILD_DIR   takes the binaries in BUILD_DIR/bin, built elsewhere
#
# Without a GPU it says so and exits 0: nothing was tested.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/command.sh"
command_help "${BASH_SOURCE[0]}" "$@"
[ -z "${1:-}" ] || set -- "$(realpath "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build="${1:-}"
if [ -z "$build" ]; then
  source scripts/lib/deps.sh
  deps_prepare
  command_configure dev "${VQGEN_CMAKE_ARGS[@]}" --log-level=WARNING
  cmake --build --preset dev --parallel "$(nproc)" --target vqgen sweep_test cuda_test library_test \
    training_test rotating_test
  build=build/dev
fi
readonly BIN="$build/bin"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export VQGEN_CACHE_DIR="$work/cache" VQGEN_TEST_BACKEND=cuda VQGEN_SOURCE_DIR="$PWD"

report="$("$BIN/vqgen" doctor)"
echo "$report"
if ! grep -Eq '^GPU +ok' <<<"$report"; then
  echo "gpu_test: no GPU on this machine; nothing was tested"
  exit 0
fi

status=0
processes="$(($(nproc) < 16 ? $(nproc) : 16))"  # that share the GPU
# part NAME COMMAND...: shows the output's end, and all of it where the command fails.
part() {
  local name="$1" start=$SECONDS
  shift
  if "$@" >"$work/log" 2>&1; then
    printf 'ok      %-58s %4d s  %s\n' "$name" "$((SECONDS - start))" \
      "$(grep -E 'PASSED|ERROR SUMMARY|RACECHECK SUMMARY|rel_err|writes to what' "$work/log" | tail -n 1 | cut -c1-90)"
  else
    printf 'FAILED  %s\n' "$name"
    tail -n 40 "$work/log"
    status=1
  fi
}

# The sweep's tests, spread over processes: each compiles its own kernels.
sweep() {
  local shard pids=() failed=0
  for ((shard = 0; shard < processes; ++shard)); do
    GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$shard "$BIN/sweep_test" \
      >"$work/sweep-$shard.log" 2>&1 &
    pids+=($!)
  done
  for shard in "${!pids[@]}"; do
    wait "${pids[$shard]}" || { failed=1; grep -E "Which is|FAILED" "$work/sweep-$shard.log" | cut -c1-300; }
  done
  cat "$work"/sweep-*.log | awk '/ cases, /{n+=$2} /suites? ran\./{t+=$2}
    END{printf "[  PASSED  ] %d tests of the sweep, %d cases\n", t, n}'
  return "$failed"
}

# The kernels that are listed for a tool of compute-sanitizer under it, some at a time.
sanitized() {
  local tool="$1" name tools config file files=() failed=0
  mkdir "$work/$tool"
  while read -r name tools config; do
    [[ ",$tools," == *",$tool,"* ]] || continue
    file="$work/$tool/${name//\//-}"
    files+=("$file")
    echo "$config" >"$file.json"
    while [ "$(jobs -rp | wc -l)" -ge "$processes" ]; do wait -n || true; done
    { compute-sanitizer --tool "$tool" --error-exitcode 9 "$BIN/vqgen" run "$file.json" \
        --backend cuda && touch "$file.ok"; } >"$file.log" 2>&1 &
  done <scripts/lib/sanitized_kernels.txt
  wait
  for file in "${files[@]}"; do
    [ -e "$file.ok" ] || { failed=1; echo "${file##*/}"; tail -n 12 "$file.log"; }
  done
  [ "$failed" -ne 0 ] || echo "[  PASSED  ] ${#files[@]} kernels"
  return "$failed"
}

part "CUDA backend tests" "$BIN/cuda_test"
part "libvqgen on streams and captured" "$BIN/library_test" --gtest_filter="OnDevice.*"
part "k-means against the CPU's" "$BIN/training_test"
part "rotations against sums" "$BIN/rotating_test"
part "sweep and laws" sweep
for config in examples/configs/*.json; do
  part "run $(basename "$config")" "$BIN/vqgen" run "$config" --backend cuda
done
if command -v nvcc >/dev/null && command -v nvdisasm >/dev/null; then
  part "registers of products in flight" scripts/check_wgmma.py --kernels "$BIN/vqgen"
else
  echo "skipped: nvcc or nvdisasm is not installed, which scripts/check_wgmma.py needs"
fi
if command -v compute-sanitizer >/dev/null; then
  part "memcheck of each dataflow" sanitized memcheck
  part "racecheck of each dataflow" sanitized racecheck
  part "memcheck of wrong integers" compute-sanitizer --tool memcheck --error-exitcode 9 \
    "$BIN/sweep_test" --gtest_filter="WrongIntegers.*"
else
  echo "skipped: compute-sanitizer is not installed"
fi
exit "$status"
