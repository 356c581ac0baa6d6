#!/usr/bin/env bash
# Writes tests/golden/choices.txt anew: what choose() takes for the problems of problems.jsonl beside
# it, on every GPU that ships. Builds first. The diff shows every plan that a change moves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/command.sh
command_without_arguments scripts/write_choices.sh "$@"
source scripts/lib/deps.sh
deps_prepare
command_configure dev "${VQGEN_CMAKE_ARGS[@]}" --log-level=WARNING
cmake --build --preset dev --parallel "$(nproc)" --target golden_test
build/dev/bin/golden_test --write
git diff --stat -- tests/golden
