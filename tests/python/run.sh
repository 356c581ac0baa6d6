#!/usr/bin/env bash
# Runs the Python tests on the package of a build tree. What they import and this machine's Python
# lacks comes from PyPI into build/python-tests; PyTorch does not: its tests are skipped without it. So
# are those of pictures where the machine has NumPy and pytest of its own, and no matplotlib.
#   run.sh BUILD_DIR SOURCE_DIR PYTHON [preloaded libraries]
set -euo pipefail
build="$1" source="$2" python="$3" preloaded="${4:-}"

if ! "$python" -c 'import numpy, pytest' 2>/dev/null; then
  venv="$source/build/python-tests"
  (
    flock 9  # one of two builds that test at once
    if ! "$venv/bin/python" -c 'import matplotlib, numpy, pytest' 2>/dev/null; then
      "$python" -m venv --system-site-packages --clear "$venv"
      "$venv/bin/pip" install -q --disable-pip-version-check 'matplotlib>=3.6' 'numpy>=1.23' 'pytest>=7'
    fi
  ) 9>"$source/build/python-tests.lock"
  python="$venv/bin/python"
fi
export PYTHONPATH="$build/python" PYTHONDONTWRITEBYTECODE=1
export VQGEN_SOURCE_DIR="$source" VQGEN_TOOL="$build/bin/vqgen"
[ -z "$preloaded" ] || export LD_PRELOAD="$preloaded" ASAN_OPTIONS=detect_leaks=0:handle_sigill=1  # leaks are Python's
"$python" -m pytest -q -rs -p no:cacheprovider "$source/tests/python"
