#!/usr/bin/env bash
# TMPDIR is on a file system that is mounted noexec, as on hardened hosts. The host backend loads
# its kernel from elsewhere, or says that TMPDIR is mounted noexec and to set another. Needs root
# for a mount namespace; exits with 77 without it.
tool="${VQGEN:-vqgen}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
mkdir t
unshare -m mount -t tmpfs -o noexec tmpfs t 2>/dev/null || { echo "skipped: a mount needs root"; exit 77; }
echo '{"op": "gemv", "shape": {"m": 1, "out_features": 64, "in_features": 128}, "weights": "gptvq-2"}' >c.json
said="$(unshare -m bash -c "mount -t tmpfs -o noexec,size=64m tmpfs t &&
  VQGEN_CACHE_DIR='$work/c' TMPDIR='$work/t' '$tool' run c.json --gpu h200 --backend host" 2>&1)"
status=$?
tail -n 1 <<<"$said"
if [ "$status" -eq 0 ] || grep -qi 'noexec' <<<"$said"; then
  echo RIGHT
else
  echo FAIL
  exit 1
fi
