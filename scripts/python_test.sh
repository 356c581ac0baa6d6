#!/usr/bin/env bash
# All Python tests in one command, on a GPU where there is one. Tests of PyTorch are skipped where it
# is not installed, those that need a GPU where there is none; each says so.
#
#   scripts/python_test.sh             builds the dev preset first
#   scripts/python_test.sh BUILD_DIR   takes the package in BUILD_DIR/python, built elsewhere
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
  cmake --build --preset dev --parallel "$(nproc)" --target vqgen vqgen_python
  build="$PWD/build/dev"
fi
mkdir -p build
exec bash tests/python/run.sh "$build" "$PWD" python3
