#!/usr/bin/env bash
# Scripts say what they do before they do anything, and run from a checkout that was moved.
#
#   tests/launchers/help_test.sh SOURCE
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
readonly SOURCE="$1"

# Programs that a script starts leave a word here, and no script may get further.
mkdir -p "$work/bin"
for program in cmake ctest apt-get sudo ninja; do
  printf '#!/bin/sh\necho %s "$@" >>%s\nexit 1\n' "$program" "$work/started" >"$work/bin/$program"
done
chmod +x "$work"/bin/*
readonly USUAL="$PATH"
export PATH="$work/bin:$PATH"
touch "$work/started"
for path in "$SOURCE"/scripts/*.sh; do
  script="$(basename "$path" .sh)"
  for flag in --help -h; do
    status=0
    timeout 20 bash "$SOURCE/scripts/$script.sh" "$flag" >"$work/out" 2>&1 || status=$?
    expect "$script $flag" "$status" 0
    [[ "$(head -n 1 "$work/out")" == [A-Z]?* ]] || fail "$script $flag says: $(head -n 3 "$work/out")"
    grep -q '^#' "$work/out" && fail "$script $flag prints comments"
  done
done
for script in quickstart write_choices; do
  status=0
  timeout 20 bash "$SOURCE/scripts/$script.sh" --fast >"$work/out" 2>&1 || status=$?
  expect "$script --fast" "$status" 2
  grep -q 'takes no arguments, not --fast' "$work/out" || fail "$script --fast: $(cat "$work/out")"
done
expect "what was started" "$(cat "$work/started")" ""

# A checkout of one file, configured in one place and moved to another.
export PATH="$USUAL"
mkdir -p "$work/here"
cd "$work/here"
printf 'cmake_minimum_required(VERSION 3.25)\nproject(moved LANGUAGES NONE)\n' >CMakeLists.txt
cat >CMakePresets.json <<'END'
{"version": 6, "configurePresets": [{"name": "dev", "generator": "Ninja", "binaryDir": "${sourceDir}/build/dev"}]}
END
configure() { bash -c 'source "$0/scripts/lib/command.sh"; command_configure dev' "$SOURCE"; }
configure >"$work/out" 2>&1 || fail "configuring: $(cat "$work/out")"
configure >"$work/out" 2>&1 || fail "configuring again: $(cat "$work/out")"
grep -q 'made anew' "$work/out" && fail "what was not moved is made anew"
mv "$work/here" "$work/there"
cd "$work/there"
configure >"$work/out" 2>&1 || fail "configuring what was moved: $(cat "$work/out")"
grep -q 'made anew' "$work/out" || fail "what was moved: $(cat "$work/out")"
[ "$failures" -eq 0 ]
