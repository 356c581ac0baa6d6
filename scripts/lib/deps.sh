# shellcheck shell=bash
# What a build of vqgen needs, found or installed. Source it from bash and call `deps_prepare`:
#
#   source scripts/lib/deps.sh
#   deps_prepare                       # fast and offline when nothing is missing
#   cmake --preset release "${VQGEN_CMAKE_ARGS[@]}"
#
# Compiler, CMake, Ninja and libraries come from Debian's or Ubuntu's packages (Debian 12, Ubuntu
# 24.04 or newer). cuda.h and NVRTC come from a CUDA toolkit of 12.4 or newer, or else from NVIDIA's
# Python wheels, which go into the virtual environment build/venv.

DEPS_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
readonly DEPS_ROOT
readonly DEPS_LOG="$DEPS_ROOT/build/deps.log"
readonly DEPS_CUDA_MINIMUM=12040  # CUDA_VERSION of cuda.h: 1000 * major + 10 * minor
# NVRTC 12.9 knows every architecture in profiles/gpus, and what it compiles loads with drivers of
# CUDA 12 and of CUDA 13.
readonly DEPS_WHEELS=("nvidia-cuda-nvrtc-cu12==12.9.*" "nvidia-cuda-runtime-cu12==12.9.*")
readonly DEPS_LIBRARIES=(nlohmann-json3-dev libcli11-dev libfmt-dev libboost-context-dev libssl-dev
                         libfaiss-dev libopenblas-dev libgtest-dev libgmock-dev libbenchmark-dev)

VQGEN_CMAKE_ARGS=()

deps_say() { printf 'deps: %s\n' "$*" >&2; }
deps_fail() {
  printf 'deps: error: %s\n' "$*" >&2
  exit 5
}

# deps_at_least HAVE WANT: whether version HAVE is WANT or newer.
deps_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | sed -n 1p)" = "$2" ]; }

# Runs a command with its output in the log, and shows the log's end where it fails.
deps_logged() {
  mkdir -p "$(dirname "$DEPS_LOG")"
  if ! "$@" >>"$DEPS_LOG" 2>&1; then
    tail -n 15 "$DEPS_LOG" >&2
    deps_fail "'$*' failed; all of its output is in $DEPS_LOG"
  fi
}

# The packages among the arguments that are not installed.
deps_missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      printf '%s\n' "$package"
  done
}

deps_install_packages() {
  local as_root=()
  command -v apt-get >/dev/null ||
    deps_fail "missing: $*; this script installs with apt-get only, so install them by hand"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      deps_fail "missing packages: $*; become root, or have root run: apt-get install $*"
    as_root=(sudo)
  fi
  deps_say "installing packages: $*"
  deps_logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update
  deps_logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "$@"
}

# True if the first python3 on the PATH has headers and ensurepip.
deps_has_python_headers() {
  python3 -c 'import ensurepip, os, sysconfig
os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null
}

# Compiler and tools by their commands, which may come from elsewhere; libraries by their packages.
deps_packages() {
  local wanted=() missing
  command -v g++ >/dev/null || wanted+=(g++)
  command -v cmake >/dev/null || wanted+=(cmake)
  command -v ninja >/dev/null || wanted+=(ninja-build)
  command -v python3 >/dev/null || wanted+=(python3)
  deps_has_python_headers || wanted+=(python3-dev python3-venv)
  command -v pkg-config >/dev/null || wanted+=(pkg-config)
  if command -v dpkg-query >/dev/null; then
    missing="$(deps_missing_packages "${DEPS_LIBRARIES[@]}")"
    [ -z "$missing" ] || mapfile -t -O "${#wanted[@]}" wanted <<<"$missing"
  else
    deps_say "no dpkg here: taking for granted that these are installed: ${DEPS_LIBRARIES[*]}"
  fi
  [ "${#wanted[@]}" -eq 0 ] || deps_install_packages "${wanted[@]}"

  deps_at_least "$(g++ -dumpversion)" 12 ||
    deps_fail "g++ $(g++ -dumpversion) is too old for C++20 as used here; 12 or newer is needed"
  local cmake_version
  cmake_version="$(cmake --version | sed -n 's/^cmake version //p')"
  deps_at_least "$cmake_version" 3.25 ||
    deps_fail "cmake $cmake_version is too old; 3.25 or newer is needed"
}

# CUDA_VERSION of the cuda.h in a directory, or nothing.
deps_cuda_version() {
  sed -n 's/^#define CUDA_VERSION[[:space:]]\{1,\}\([0-9]\{1,\}\).*/\1/p' "$1/cuda.h" 2>/dev/null |
    head -n 1
}

# Sets VQGEN_CMAKE_ARGS from directories of cuda.h, nvrtc.h and libnvrtc.so.
deps_use_cuda() {
  local include="$1"
  [ "$2" = "$1" ] || include="$1;$2"
  VQGEN_CMAKE_ARGS=("-DVQGEN_CUDA_INCLUDE_DIRS=$include" "-DVQGEN_NVRTC_HINT=$3")
  deps_say "CUDA headers in $1, NVRTC in $3"
}

# The first existing directory that has a libnvrtc.so under its name or a version of it.
deps_nvrtc_directory() {
  local directory
  for directory in "$@"; do
    if compgen -G "$directory/libnvrtc.so*" >/dev/null; then
      printf '%s\n' "$directory"
      return
    fi
  done
}

# Uses the toolkit under $1 if it is complete and new enough.
deps_try_toolkit() {
  local root="$1" version library
  version="$(deps_cuda_version "$root/include")"
  [ -n "$version" ] || return 1
  if [ "$version" -lt "$DEPS_CUDA_MINIMUM" ]; then
    deps_say "passing over CUDA $((version / 1000)).$((version % 1000 / 10)) in $root: too old"
    return 1
  fi
  library="$(deps_nvrtc_directory "$root/lib64" "$root/lib" "$root"/targets/*/lib \
                                  "$root/lib/$(uname -m)-linux-gnu")"
  [ -n "$library" ] && [ -f "$root/include/nvrtc.h" ] || return 1
  deps_use_cuda "$root/include" "$root/include" "$library"
}

# Uses the wheels in build/venv, if they are there.
deps_try_wheels() {
  local packages header nvrtc_header library
  for packages in "$DEPS_ROOT"/build/venv/lib/python3*/site-packages/nvidia; do
    header="$packages/cuda_runtime/include"
    nvrtc_header="$packages/cuda_nvrtc/include"
    library="$(deps_nvrtc_directory "$packages/cuda_nvrtc/lib")"
    if [ -f "$header/cuda.h" ] && [ -f "$nvrtc_header/nvrtc.h" ] && [ -n "$library" ]; then
      deps_use_cuda "$header" "$nvrtc_header" "$library"
      return 0
    fi
  done
  return 1
}

deps_install_wheels() {
  local wanted=()
  python3 -c 'import venv, ensurepip' 2>/dev/null || wanted+=(python3-venv)
  if command -v dpkg-query >/dev/null; then
    [ -z "$(deps_missing_packages ca-certificates)" ] || wanted+=(ca-certificates)
  fi
  [ "${#wanted[@]}" -eq 0 ] || deps_install_packages "${wanted[@]}"
  deps_say "no CUDA toolkit of 12.4 or newer: installing NVIDIA's wheels into build/venv"
  deps_logged python3 -m venv --clear "$DEPS_ROOT/build/venv"
  deps_logged "$DEPS_ROOT/build/venv/bin/pip" install --disable-pip-version-check --no-deps \
    "${DEPS_WHEELS[@]}"
}

deps_cuda() {
  local candidate nvcc
  nvcc="$(command -v nvcc || true)"
  [ -z "$nvcc" ] || nvcc="$(dirname "$(dirname "$(readlink -f "$nvcc")")")"
  while IFS= read -r candidate; do
    [ -n "$candidate" ] || continue
    if deps_try_toolkit "$candidate"; then return; fi
  done < <(printf '%s\n' "${CUDA_HOME:-}" "$nvcc" /usr/local/cuda
           compgen -G '/usr/local/cuda-*' | sort -rV || true)
  if deps_try_wheels; then return; fi
  deps_install_wheels
  deps_try_wheels || deps_fail "NVIDIA's wheels were installed, yet cuda.h or NVRTC is not in them"
}

# All of it.
deps_prepare() {
  deps_packages
  deps_cuda
  if command -v ccache >/dev/null; then
    # Relative paths, so that another checkout of the same sources hits too; what ccache asks for
    # where headers are precompiled.
    export CCACHE_BASEDIR="$DEPS_ROOT" CCACHE_NOHASHDIR=1
    export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:+$CCACHE_SLOPPINESS,}pch_defines,time_macros"
    VQGEN_CMAKE_ARGS+=("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
                       "-DCMAKE_CXX_FLAGS=${CXXFLAGS:+$CXXFLAGS }-fpch-preprocess")
  fi
}
