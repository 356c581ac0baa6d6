#!/usr/bin/env bash
# Runs the Python tests, or one file, on the package of a build tree.
#
#   run.sh BUILD_DIR SOURCE_DIR PYTHON [plain|torch|oldest [FILE]]
#
# plain: NumPy, pytest and SciPy, installed from PyPI into build/python-tests if PYTHON lacks the first two. Tests
# of PyTorch and of plots are skipped without PyTorch and matplotlib.
# torch: the tests that need PyTorch, with VQGEN_TORCH_PYTHON, PYTHON or build/torch-venv, into
# which PyTorch and transformers are installed from PyPI; fails without them.
# oldest: the tests of vqgen.hf, with the PyTorch of torch and the oldest transformers that
# pyproject.toml allows, installed from PyPI into build/; fails without it.
# VQGEN_TEST_PRELOAD: libraries that Python must load first, such as sanitizers'.
set -euo pipefail
build="$1" source="$2" given="$3" kind="${4:-plain}" file="${5:-}"
say() { printf 'run.sh: %s\n' "$*" >&2; }

# in_venv NAME IMPORTS INSTALL...: makes `python` the virtual environment build/NAME, which INSTALL
# fills unless it has all that IMPORTS names.
in_venv() {
  local venv="$source/build/$1" imports="$2"
  shift 2
  python="$venv/bin/python"
  (
    flock 9  # one of several tests that begin at once
    "$python" -c "import $imports" 2>/dev/null || 
      { "$given" -m venv --system-site-packages --clear "$venv" && "$@"; }
    "$python" -c "import $imports"
  ) 9>"$venv.lock" || { say "$imports cannot be installed into $venv; name a Python that has them by VQGEN_TORCH_PYTHON"; exit 1; }
}
pip() { "$python" -m pip install -q --disable-pip-version-check "$@"; }
oldest="$(sed -n 's/.*"transformers>=\([0-9.]*\)".*/\1/p' "$source/pyproject.toml")"
[ -n "$oldest" ] || { say "pyproject.toml names no oldest transformers"; exit 1; }
# PyTorch links 3 GB of NVIDIA libraries, which it loads on a CPU too.
install_torch() {
  pip 'matplotlib>=3.6' 'numpy>=1.23' 'pytest>=7' "transformers>=$oldest" safetensors scipy torch
}
# in_front: puts the oldest transformers, with what it needs but PyTorch, before the others of `python`.
in_front() {
  local folder="$source/build/transformers-$oldest"
  local check="import transformers; assert (transformers.__version__ + '.').startswith('$oldest.')"
  export PYTHONPATH="$folder:$PYTHONPATH"
  (
    flock 9
    "$python" -c "$check" 2>/dev/null ||
      { rm -rf "$folder" && pip --target "$folder" "transformers==$oldest.*" && "$python" -c "$check"; }
  ) 9>"$folder.lock" || { say "transformers $oldest cannot be installed into $folder"; exit 1; }
}

python="$given"
imports="numpy, pytest, torch, transformers"
if [ "$kind" = plain ]; then
  "$python" -c 'import numpy, pytest' 2>/dev/null ||
    in_venv python-tests "matplotlib, numpy, pytest, scipy" pip 'matplotlib>=3.6' 'numpy>=1.23' 'pytest>=7' scipy
elif [ -n "${VQGEN_TORCH_PYTHON:-}" ]; then
  python="$VQGEN_TORCH_PYTHON"
  "$python" -c "import $imports" || { say "VQGEN_TORCH_PYTHON=$python lacks one of $imports; name another Python, or none"; exit 1; }
elif ! "$python" -c "import $imports" 2>/dev/null; then
  in_venv torch-venv "$imports" install_torch
fi

export PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1
[ "$kind" != oldest ] || in_front
export VQGEN_SOURCE_DIR="$source" VQGEN_TOOL="$build/bin/vqgen"
[ -z "${VQGEN_TEST_PRELOAD:-}" ] ||
  export LD_PRELOAD="$VQGEN_TEST_PRELOAD" ASAN_OPTIONS=detect_leaks=0:handle_sigill=1  # leaks are Python's
case "$kind" in
  plain) tests=("$source/tests/python") ;;
  torch) mapfile -t tests < <(grep -l torch "$source"/tests/python/test_*.py) ;;
  oldest) tests=("$source"/tests/python/test_hf*.py) ;;
esac
case "$file" in
  "") "$python" -m pytest -q -rs -p no:cacheprovider "${tests[@]}" ;;
  *.py) VQGEN="$VQGEN_TOOL" "$python" "$file" ;;
  *) VQGEN="$VQGEN_TOOL" bash "$file" ;;
esac
