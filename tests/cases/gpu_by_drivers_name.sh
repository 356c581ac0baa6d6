#!/usr/bin/env bash
# --gpu accepts the name that nvidia-smi, tuned tables, `vqgen list gpus` and the tool's own output
# print, as it accepts the short name.
tool="${VQGEN:-vqgen}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
echo '{"op": "gemv", "shape": {"m": 1, "out_features": 64, "in_features": 128}, "weights": "gptvq-2"}' >c.json
verdict=RIGHT
for gpu in "NVIDIA H200" "NVIDIA H100 80GB HBM3" "NVIDIA A100-SXM4-40GB" "Tesla T4" "NVIDIA GH200 480GB"; do
  said="$("$tool" explain c.json --gpu "$gpu" 2>&1)" || verdict=FAIL
  echo "$gpu: $(head -n 1 <<<"$said" | cut -c1-70)"
done
echo "$verdict"
[ "$verdict" = RIGHT ]
