#!/usr/bin/env bash
# Builds a wheel from the checkout as `pip install .` does, installs it into a fresh virtual
# environment, uses it far from the checkout, and removes it. Only packaging is tested, so objects
# come from the build tree (take_object.py) and the rest is compiled without optimisation.
#
#   wheel_test.sh BUILD_DIR SOURCE_DIR PYTHON
set -euo pipefail
build="$1" source="$2" python="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export VQGEN_CACHE_DIR="$work/cache"
say() { printf '== %s\n' "$*"; }

say "build"
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$work" \
  -C build-dir="$work/build" -C cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0 \
  -C cmake.define.CMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER="$source/tests/python/take_object.py;$build" "$source"
wheel="$(echo "$work"/vqgen-*-cp311-abi3-*.whl)"
say "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
"$work/venv/bin/pip" install -q --disable-pip-version-check "$wheel" 'numpy>=1.23'
rm -rf "$work/build"

say "use"
cp "$source/examples/python/quickstart.py" "$source/examples/configs/tinycode-projection.json" "$work"
cd "$work"
venv/bin/python quickstart.py
venv/bin/vqgen list formats >formats
grep -q vecinfer-d4b8 formats
(venv/bin/vqgen list formats || true) 2>words | true  # a closed pipe ends it without a word
test ! -s words
venv/bin/vqgen version
package="$(venv/bin/python -c 'import os, vqgen; print(os.path.dirname(vqgen.__file__))')"
test -f "$package/include/vqgen/vqgen.h"
test -x "$package/libexec/vqgen/vqgen-nvrtc"
venv/bin/python -c '
from importlib.metadata import entry_points
each, = entry_points(group="vllm.general_plugins")
assert each.load().__module__ == "vqgen.vllm"'
venv/bin/vqgen doctor >report || true  # which fails where NVRTC is missing
if grep -q '^NVRTC *ok' report; then
  venv/bin/vqgen compile tinycode-projection.json --gpu h200
fi
venv/bin/python -m vqgen.plots accuracy none.json --out none.svg 2>words && exit 1
grep -qxF "vqgen.plots: needs matplotlib; pip install matplotlib" words || { cat words; exit 1; }
if grep -rlF -e "$source" "$package" --include='*.py' --include='*.cmake' --include='*.pc'; then
  say "an installed file names the checkout"
  exit 1
fi

say "remove"
venv/bin/pip uninstall -q -y vqgen
test ! -e "$package"
