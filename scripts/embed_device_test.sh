#!/usr/bin/env bash
# Both examples of examples/embed against an installed libvqgen, on a GPU: launched, and captured into
# CUDA graphs; and on the host backend where there is a C++ compiler.
#
#   scripts/embed_device_test.sh PREFIX [EXAMPLES]
#
# EXAMPLES (PREFIX/examples) takes the programs, each built by CMake and by pkg-config. Those that are
# there are run as they are: build here, and carry PREFIX to a machine that has a GPU and no compiler.
# docs/internals/testing.md says how to make a PREFIX that runs there. Without a GPU its part is skipped, and that
# is said.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/command.sh"
command_help "${BASH_SOURCE[0]}" "$@"
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  (command_help "${BASH_SOURCE[0]}" --help) >&2
  exit 2
fi
source="$(cd "$(dirname "${BASH_SOURCE[0]}")/../examples/embed" && pwd)"
prefix="$(realpath "$1")"
examples="${2:-$prefix/examples}"
library="$(find "$prefix" -name 'libvqgen.so' -print -quit)"
if [ -z "$library" ]; then
  echo "embed_device_test: no libvqgen.so below $prefix; install a build with -DBUILD_SHARED_LIBS=ON there" >&2
  exit 2
fi
libraries="$(dirname "$library")"
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$examples"
examples="$(realpath "$examples")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export VQGEN_CACHE_DIR="$work/cache"

if [ ! -x "$examples/attention" ] || [ ! -x "$examples/attention_cpp" ]; then
  cmake -S "$source" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$work/log"
  cmake --build "$work/cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  cp "$work/cmake/attention" "$work/cmake/attention_cpp" "$examples"
fi
if [ ! -x "$examples/attention_pkgconfig" ] || [ ! -x "$examples/attention_cpp_pkgconfig" ]; then
  read -ra flags <<<"$(PKG_CONFIG_PATH="$libraries/pkgconfig" pkg-config --cflags --libs vqgen)"
  cc -std=c11 -O2 "$source/attention.c" "${flags[@]}" -lm -ldl -o "$examples/attention_pkgconfig"
  c++ -std=c++20 -O2 "$source/attention.cpp" "${flags[@]}" -ldl \
    -o "$examples/attention_cpp_pkgconfig"
fi

status=0
# part NAME COMMAND...: its result lines, or all that it said where it fails.
part() {
  local name="$1"
  shift
  if "$@" >"$work/log" 2>&1 && [ "$(grep -c ', ok$' "$work/log")" -eq 2 ]; then
    printf 'ok      %s\n' "$name"
    grep ', ok$' "$work/log" | sed 's/^/          /'
  else
    printf 'FAILED  %s\n' "$name"
    cat "$work/log"
    status=1
  fi
}

gpu=0
if nvidia-smi -L >"$work/log" 2>&1; then gpu=1; fi
for example in attention attention_cpp attention_pkgconfig attention_cpp_pkgconfig; do
  if command -v "${VQGEN_CXX:-g++}" >/dev/null; then
    part "$example, host backend" "$examples/$example" --backend host
  else
    echo "skipped $example, host backend: no C++ compiler"
  fi
  if [ "$gpu" -eq 1 ]; then
    part "$example, GPU" "$examples/$example" --backend cuda
    part "$example, GPU, captured" "$examples/$example" --backend cuda --graph
  else
    echo "skipped $example, GPU: none here, nothing was tested"
  fi
done
exit "$status"
