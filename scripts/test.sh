#!/usr/bin/env bash
# Builds and tests everything: the dev preset, then asan (AddressSanitizer and UBSan). Fails if any
# part fails or no test ran. Arguments, such as -R NAME, go to both ctest runs. What runs in asan runs
# in dev only where it shows more there (vqgen_test in cmake/layers.cmake), and in dev nothing else is
# built; `cmake --build --preset dev` builds all. The pairwise sweep runs in asan alone, where the race
# checker looks at it too. VQGEN_UNITY=ON compiles the sources of a library together in dev too: half
# the time of a first build, and more after each change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/command.sh
command_help scripts/test.sh "$@"
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

# Undefined behaviour traps in the preset asan; this tells where.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_sigill=1"

part "dependencies"
deps_prepare
status=0
selected=0
# A test that arguments choose may be of one preset alone.
none=error
[ $# -eq 0 ] || none=ignore
for preset in dev asan; do
  part "build $preset"
  unity=() target=() skipped=()
  if [ "$preset" = dev ]; then
    unity=("-DCMAKE_UNITY_BUILD=${VQGEN_UNITY:-OFF}")
    target=(--target plain_tests)
    skipped=(-LE sanitized -E 'Sweep\..*Pairwise|_NOT_BUILT$')
  fi
  command_configure "$preset" "${unity[@]}" "${VQGEN_CMAKE_ARGS[@]}" --log-level=WARNING
  cmake --build --preset "$preset" --parallel "$(nproc)" "${target[@]}"
  part "test $preset"
  [ "$preset" = dev ] || printf '%s\n' "$TIMES"
  ((selected += $(ctest --test-dir "build/$preset" -N "${skipped[@]}" "$@" | sed -n 's/^Total Tests: //p'))) || true
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=$none -j 2 "${skipped[@]}" "$@" ||
    status=$?
done
if [ "$selected" -eq 0 ]; then
  echo "test: no test is called so: $*" >&2
  status=8
fi
exit "$status"
