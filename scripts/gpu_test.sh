#!/usr/bin/env bash
# Everything that needs a GPU, in one command: the sweep and the laws, the backend's own tests, k-means, every
# example config, the machine code of products in flight, and compute-sanitizer (memcheck, racecheck)
# on one kernel of each op.
#
#   scripts/gpu_test.sh             builds the dev preset first
#   scripts/gpu_test.sh BUILD_DIR   takes the binaries in BUILD_DIR/bin, built elsewhere
#
# Without a GPU it says so and exits 0: nothing was tested.
set -euo pipefail
[ -z "${1:-}" ] || set -- "$(realpath "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build="${1:-}"
if [ -z "$build" ]; then
  source scripts/lib/deps.sh
  deps_prepare
  cmake --preset dev "${VQGEN_CMAKE_ARGS[@]}" --log-level=WARNING
  cmake --build --preset dev --parallel "$(nproc)" --target vqgen sweep_test cuda_test library_test \
    training_test
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
  local shards shard pids=() failed=0
  shards="$(($(nproc) < 12 ? $(nproc) : 12))"
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$BIN/sweep_test" \
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

part "CUDA backend tests" "$BIN/cuda_test"
part "libvqgen on streams and captured" "$BIN/library_test" --gtest_filter="OnDevice.*"
part "k-means against the CPU's" "$BIN/training_test"
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
  for config in tinycode-layer tinycode-projection llama3-8b-kv-append-2bit llama3-8b-kv-decode-2bit llama3-8b-merge int8-channel-quantize; do
    for tool in memcheck racecheck; do
      part "$tool $config" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$BIN/vqgen" run "examples/configs/$config.json" --backend cuda
    done
  done
else
  echo "skipped: compute-sanitizer is not installed"
fi
exit "$status"
