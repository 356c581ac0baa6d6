#!/usr/bin/env bash
# Builds and tests everything: the dev preset, then asan (AddressSanitizer and UBSan). Fails if any
# part fails or no test ran. Arguments, such as -R NAME, go to both ctest runs. The pairwise sweep runs
# in asan alone, where the race checker looks at it too. VQGEN_UNITY=ON compiles the sources of a
# library together in dev too: half the time of a first build, and more after each change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/deps.sh

TIMES=""
# part NAME opens a part of the run, and notes how long the one before took.
part() {
  if [ -n "${PART:-}" ]; then
    TIMES+="$(printf '%6d s  %s' "$((SECONDS - PART_START))" "$PART")"$'\n'
  fi
  PART="$1"
  PART_START=$SECONDS
  printf '\n== %s\n' "$PART"
}

part "dependencies"
deps_prepare
status=0
for preset in dev asan; do
  part "build $preset"
  unity=()
  [ "$preset" = asan ] || unity=("-DCMAKE_UNITY_BUILD=${VQGEN_UNITY:-OFF}")
  cmake --preset "$preset" "${unity[@]}" "${VQGEN_CMAKE_ARGS[@]}" --log-level=WARNING
  cmake --build --preset "$preset" --parallel "$(nproc)"
  part "test $preset"
  [ "$preset" = dev ] || printf '%s\n' "$TIMES"
  skipped=()
  [ "$preset" = asan ] || skipped=(-E 'Sweep\..*Pairwise')
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j 2 "${skipped[@]}" "$@" ||
    status=$?
done
exit "$status"
