#!/usr/bin/env bash
# Installs libvqgen to a fresh prefix, moves the prefix, and builds and runs both examples from
# there with CMake and pkg-config on the host backend. Then checks that the library exports only the
# C functions.
#
#   install_test.sh BUILD_DIR SOURCE_DIR SHARED(ON|OFF)
set -euo pipefail
build="$1" source="$2" shared="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export VQGEN_CACHE_DIR="$work/cache"
say() { printf '== %s\n' "$*"; }

say "install"
cmake --install "$build" --prefix "$work/first" --component library >"$work/log"
mv "$work/first" "$work/moved"
prefix="$work/moved"
libraries="$(dirname "$(find "$prefix" -name 'libvqgen.*' -print -quit)")"
if grep -rlF -e "$source" "$prefix/include" "$libraries/cmake" "$libraries/pkgconfig"; then
  say "an installed file names the source tree"
  exit 1
fi

say "the tool, moved, and the helper of both"
cmake --install "$build" --prefix "$work/tool-first" >"$work/log"
mv "$work/tool-first" "$work/tool"
helper="$(find "$work/tool" -path '*/vqgen/vqgen-nvrtc')"
test -x "$helper"
test -x "$(find "$prefix" -path '*/vqgen/vqgen-nvrtc')"
probe() { (cd / && "$work/tool/bin/vqgen" compile "$source/examples/configs/tinycode-projection.json" --gpu h200); }
"$work/tool/bin/vqgen" doctor >"$work/out"
if grep -q '^NVRTC *ok' "$work/out"; then
  VQGEN_CACHE_DIR="$work/tool-cache" probe | grep miss
  mv "$helper" "$helper.gone"
  status=0
  VQGEN_CACHE_DIR="$work/tool-cache2" probe >"$work/out" 2>"$work/err" || status=$?
  cat "$work/err"
  [ "$status" -eq 5 ] && grep -q "tried .*$helper.*VQGEN_NVRTC_HELPER" "$work/err"
  mv "$helper.gone" "$helper"
else
  say "no NVRTC here: nothing is compiled"
fi
status=0
VQGEN_NVRTC=/nonexistent VQGEN_CACHE_DIR="$work/tool-cache3" probe >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 5 ] && grep -q 'tried /nonexistent.*VQGEN_NVRTC' "$work/err" || { cat "$work/err"; exit 1; }

say "CMake"
cmake -S "$source/examples/embed" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_FLAGS="-Wall -Wextra -Wpedantic -Werror" \
  -DCMAKE_CXX_FLAGS="-Wall -Wextra -Wpedantic -Wconversion -Werror" >"$work/log"
cmake --build "$work/cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/cmake/attention" --backend host
"$work/cmake/attention_cpp" --backend host

say "pkg-config"
export PKG_CONFIG_PATH="$libraries/pkgconfig" LD_LIBRARY_PATH="$libraries"
static=()
[ "$shared" = ON ] || static=(--static)
read -ra flags <<<"$(pkg-config --cflags --libs "${static[@]}" vqgen)"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$source/examples/embed/attention.c" "${flags[@]}" -lm -ldl \
  -o "$work/attention"
c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "$source/examples/embed/attention.cpp" "${flags[@]}" -ldl \
  -o "$work/attention_cpp"
"$work/attention" --backend host
"$work/attention_cpp" --backend host

printf '%s\n' '#include <vqgen/bundle.h>' \
  'int main(int, char** a) { return vqgen::BundleFile(a[1]).tensor("layer0", "kv_append", "keys.codes").empty(); }' \
  >"$work/bundle.cpp"
c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "$work/bundle.cpp" "${flags[@]}" -ldl -o "$work/bundle"

say "faults"
if "$work/bundle" "$work/none" 2>"$work/err"; then exit 1; fi
grep -q "$work/none" "$work/err" || { cat "$work/err"; exit 1; }
if "$work/attention" --backend nonsense 2>/dev/null; then exit 1; fi
if CUDA_VISIBLE_DEVICES=none "$work/attention" --backend cuda 2>"$work/err"; then exit 1; fi
cat "$work/err"
grep -q '^attention: device: ' "$work/err"
for example in attention attention_cpp; do  # which know no graph without a driver
  status=0
  "$work/$example" --backend host --graph 2>"$work/err" || status=$?
  [ "$status" -eq 2 ] && grep -q -e "^$example: --graph" "$work/err" || { cat "$work/err"; exit 1; }
done

if [ "$shared" = ON ]; then
  say "symbols"
  others="$(nm -D --defined-only "$libraries/libvqgen.so" | awk '{print $3}' | grep -v '^vqgen_' || true)"
  [ -z "$others" ] || { printf 'exported beside the C functions: %s\n' "$others"; exit 1; }
  declared="$(grep -o 'vqgen_[a-z_]*(' -h "$prefix"/include/vqgen/{vqgen,launch}.h | tr -d '(' | sort -u)"
  exported="$(nm -D --defined-only "$libraries/libvqgen.so" | awk '{print $3}' | sort -u)"
  for name in $exported; do
    grep -qx "$name" <<<"$declared" || { say "$name is exported but not declared"; exit 1; }
  done
fi
say "ok"
