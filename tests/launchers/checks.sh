# shellcheck shell=bash
# Shared by tests of launchers: a temporary folder, a stub for vqgen, and checks that count.

work="$(mktemp -d)"
failures=0
# Ends processes before the folder is removed; a test that starts some replaces it.
cleanup() { :; }
trap 'cleanup; rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# expect WHAT IS SHOULD_BE
expect() { [ "$2" = "$3" ] || fail "$1: is '$2', should be '$3'"; }

# Puts the stub into PATH as vqgen.
prepare_stub() {
  mkdir -p "$work/bin"
  cp "$(dirname "${BASH_SOURCE[0]}")/stub_vqgen.sh" "$work/bin/vqgen"
  export PATH="$work/bin:$PATH" RECORDS FAILS="$work/fails"
  unset VQGEN GPU_REQUEST
  fresh_records
}
fresh_records() {
  RECORDS="$(mktemp -d "$work/records.XXXXXX")"
}
# Files of the calls so far.
records() { find "$RECORDS" -type f; }

finish() {
  echo "$((failures)) failures"
  [ "$failures" -eq 0 ]
}
