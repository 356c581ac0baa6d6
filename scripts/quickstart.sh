#!/usr/bin/env bash
# From a fresh checkout to verified kernels on real data, without a GPU: installs what is missing,
# builds vqgen, quantizes the keys, values and a weight in tests/data, compiles a kernel for the H200,
# and runs generated kernels against the reference, on the CPU where there is no GPU. Everything lands
# in build/ and out/quickstart/. It takes no arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/command.sh
command_without_arguments scripts/quickstart.sh "$@"
source scripts/lib/deps.sh

readonly OUT=out/quickstart
readonly DATA=tests/data
readonly VQGEN=build/release/bin/vqgen

step() { printf '\n[%s] %s\n' "$1" "$2"; }

# checked NAME COMMAND...: runs quietly, with a line of progress; shows the output where it fails.
checked() {
  local name="$1" start=$SECONDS
  shift
  printf '  %-46s' "$name"
  if ! "$@" >"$OUT/last.log" 2>&1; then
    printf ' failed\n'
    printf '  command: %s\n' "$*" >&2
    tail -n 20 "$OUT/last.log" >&2
    exit 4
  fi
  printf ' %4d s\n' "$((SECONDS - start))"
}

# once NAME RESULT COMMAND...: the same, unless RESULT is there already and newer than the tool.
once() {
  local name="$1" result="$2"
  shift 2
  if [ "$result" -nt "$VQGEN" ]; then
    printf '  %-46s there already\n' "$name"
  else
    checked "$name" "$@"
  fi
}

# into FILE COMMAND...: the command's standard output goes to the file.
into() {
  local file="$1"
  shift
  "$@" >"$file"
}

# quantize_cache PRESET PART: codebooks from the calibration text, codes for PART.
quantize_cache() {
  "$VQGEN" quantize --input "$DATA/tinycode-kv-$2.safetensors" \
    --calibration "$DATA/tinycode-kv-calibration.safetensors" --out "$OUT/$1-$2" \
    --keys layer2.k --key-format "$1" --values layer2.v --value-format "$1" \
    --queries layer2.q --keep-original
}

mkdir -p "$OUT"
step 1/5 "Dependencies"
deps_prepare

step 2/5 "Build (a few minutes the first time)"
command_configure release "${VQGEN_CMAKE_ARGS[@]}" -DVQGEN_TESTS=OFF --log-level=WARNING
cmake --build --preset release --target vqgen --parallel "$(nproc)"

step 3/5 "Quantize real keys, values and weights"
for preset in vecinfer-d2b8 vecinfer-d4b8 vecinfer-d8b12; do
  for part in calibration heldout; do
    once "$preset, $part text" "$OUT/$preset-$part" quantize_cache "$preset" "$part"
  done
done
once "aqlm-2x8, a projection" "$OUT/aqlm-2x8" "$VQGEN" quantize --input "$DATA/tinycode-weight.safetensors" \
  --out "$OUT/aqlm-2x8" --weights blocks.2.down.weight --format aqlm-2x8 --inputs x --keep-original

step 4/5 "Compile for the H200 (no GPU is needed)"
checked "attention decode, 2 bits" "$VQGEN" compile examples/configs/tinycode-layer.json --gpu h200

step 5/5 "Run and verify (on the CPU where there is no GPU)"
for preset in vecinfer-d2b8 vecinfer-d4b8 vecinfer-d8b12; do
  config="examples/configs/tinycode-layer-${preset#vecinfer-}.json"
  [ "$preset" != vecinfer-d4b8 ] || config=examples/configs/tinycode-layer.json
  for part in calibration heldout; do
    checked "$preset, $part text" into "$OUT/$preset-$part.json" \
      "$VQGEN" run "$config" --data "$OUT/$preset-$part" --json
  done
done
checked "aqlm-2x8, a projection" into "$OUT/aqlm-2x8.json" \
  "$VQGEN" run examples/configs/tinycode-projection.json --data "$OUT/aqlm-2x8" --json

printf '\n'
python3 scripts/lib/quickstart_table.py profiles/formats "$OUT" \
  attention:vecinfer-d2b8 attention:vecinfer-d4b8 attention:vecinfer-d8b12 gemv:aqlm-2x8
