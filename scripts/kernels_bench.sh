#!/usr/bin/env bash
# The kernels of the example configs, or of the configs named, under Google Benchmark on this
# machine's GPU. Installs what is missing and builds first. Arguments go to kernels_bench:
#
#   scripts/kernels_bench.sh [--backend=host] [--benchmark_...] [CONFIG.json...]
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$ROOT/scripts/lib/command.sh"
command_help "${BASH_SOURCE[0]}" "$@"
source "$ROOT/scripts/lib/deps.sh"
deps_prepare
(
  cd "$ROOT"
  command_configure release "${VQGEN_CMAKE_ARGS[@]}" --log-level=WARNING
  cmake --build --preset release --parallel "$(nproc)" --target kernels_bench
) >&2
exec "$ROOT/build/release/bin/kernels_bench" "$@"
