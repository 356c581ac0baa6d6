#!/usr/bin/env bash
# Builds and tests without a GPU. Fails if any part fails or no test ran.
#
#   scripts/test.sh [--third N] [CTEST ARGUMENTS]   the preset dev; the goal: 15 minutes on 2 cores, 8 again
#   scripts/test.sh --all [CTEST ARGUMENTS]         all tests in dev, then in asan (AddressSanitizer, UBSan)
#
# The short run leaves out tests with the label `long` (`ctest --test-dir build/dev -L long -N` lists
# them), and takes a third of each sweep: by the commit and by what differs from it, or number N of 1 to
# 3. Tests with PyTorch run if VQGEN_TORCH_PYTHON names a Python that has it; --all installs it into
# build/torch-venv and fails without it. The short run compiles a library's sources together, --all each
# by itself in dev, so that a missing include shows; VQGEN_UNITY=ON or OFF chooses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/command.sh
command_help scripts/test.sh "$@"
source scripts/lib/deps.sh

presets=(dev)
third=""
while [ $# -gt 0 ]; do
  case "$1" in
    --all) presets=(dev asan) ;;
    --third)
      third="${2:-}"
      shift
      [[ "$third" =~ ^[123]$ ]] || { echo "test: --third '$third' is no third; give 1, 2 or 3" >&2; exit 2; }
      ;;
    *) break ;;
  esac
  shift
done

# A third by the sources as they are: the commit, and what is changed or new beside it.
third_of_sources() {
  local sum
  sum="$({ git rev-parse HEAD && git diff HEAD && git ls-files -z --others --exclude-standard | xargs -0r cat; } \
    2>/dev/null | cksum)"
  echo $((${sum%% *} % 3 + 1))
}

# Sets CPU to the seconds, user and system, that processes of this shell have taken; a subshell has others.
count_cpu() {
  times >build/times
  CPU="$(awk -F '[ms ]+' 'NR == 2 { printf "%d", 60 * ($1 + $3) + $2 + $4 }' build/times)"
}

PARTS=""
# part NAME opens a part of the run, and notes how long the one before took.
part() {
  count_cpu
  if [ -n "${PART:-}" ]; then
    PARTS+="$(printf '%6d s, %6d s of CPU  %s' "$((SECONDS - PART_START))" "$((CPU - PART_CPU))" "$PART")"$'\n'
  fi
  PART="$1"
  PART_START=$SECONDS
  PART_CPU=$CPU
  [ -z "$PART" ] || printf '\n== %s\n' "$PART"
}

# Undefined behaviour traps in the preset asan; this tells where.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_sigill=1"

skipped=()
unity="${VQGEN_UNITY:-OFF}"
if [ "${presets[*]}" = dev ]; then
  unity="${VQGEN_UNITY:-ON}"
  # Labels of tests with PyTorch are long_torch.
  skipped=(-LE long)
  if [ -n "${VQGEN_TORCH_PYTHON:-}" ]; then skipped=(-LE '^long$'); fi
  export VQGEN_SWEEP_THIRD="${third:-$(third_of_sources)}" VQGEN_FUZZ_SECONDS="${VQGEN_FUZZ_SECONDS:-3}"
  echo "third $VQGEN_SWEEP_THIRD of 3 of each sweep; --third $VQGEN_SWEEP_THIRD repeats it, --all runs all"
elif [ -n "$third" ]; then
  echo "test: --third $third goes with the short run alone; leave out --all or --third" >&2
  exit 2
else
  unset VQGEN_SWEEP_THIRD
fi
mkdir -p build
part "dependencies"
deps_prepare
status=0
selected=0
for preset in "${presets[@]}"; do
  part "build $preset"
  options=("${VQGEN_CMAKE_ARGS[@]}")
  [ "$preset" != dev ] || options+=("-DCMAKE_UNITY_BUILD=$unity")
  command_configure "$preset" "${options[@]}" --log-level=WARNING
  cmake --build --preset "$preset" --parallel "$(nproc)"
  part "test $preset"
  # One more than there are cores: some tests wait for others' processes.
  # A test that arguments choose may be of one preset alone.
  count="$(ctest --test-dir "build/$preset" -N "${skipped[@]}" "$@" | sed -n 's/^Total Tests: //p')"
  selected=$((selected + count))
  [ "$count" -gt 0 ] || continue
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(($(nproc) + 1))" "${skipped[@]}" "$@" |
    tee "build/$preset/test.log" || status=$?
  printf '\nthe slowest:\n'
  sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .* \([0-9.]*\) sec.*/\2 s  \1/p' "build/$preset/test.log" |
    sort -rn | sed -n 1,20p
done
if [ "$selected" -eq 0 ]; then
  echo "test: no test is selected by: ${skipped[*]} $*; see ctest --test-dir build/dev -N" >&2
  status=8
fi
part ""
printf '\n%s' "$PARTS"
if [ "$status" -eq 0 ]; then
  echo "test: $selected tests passed or said why they were skipped, in $SECONDS s"
else
  echo "test: failed, exit status $status; $selected tests were selected, in $SECONDS s" >&2
fi
exit "$status"
