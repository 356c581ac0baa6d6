"""A linear layer whose weights are quantized to 2 bits, beside the layer it came from.

    python3 examples/python/linear.py

The weights of a random layer go to a safetensors file, `vqgen quantize` writes the bundle.
"""
import os
import subprocess
import tempfile

import torch
from safetensors.torch import save_file

import vqgen.torch as vt

device = "cuda" if torch.cuda.is_available() else "cpu"
tool = os.environ.get("VQGEN_TOOL", "vqgen")
layer = torch.nn.Linear(128, 256, bias=True).half()
with tempfile.TemporaryDirectory() as folder:
    save_file({"up.weight": layer.weight.data}, f"{folder}/layer.safetensors")
    subprocess.run([tool, "quantize", "--input", f"{folder}/layer.safetensors", "--weights",
                    "up.weight", "--format", "quip-2", "--out", f"{folder}/bundle"], check=True)
    quantized = vt.VQLinear.from_bundle(f"{folder}/bundle", "up", device=device, bias=layer.bias.data)

x = torch.randn(3, 128, dtype=torch.float16, device=device)
quantized, layer = quantized.to(device), layer.to(device)
with torch.no_grad():
    wanted, got = layer(x).float(), quantized(x).float()
print(f"{quantized.codes.numel() * 32 / layer.weight.numel():.0f} bits per weight, relative error "
      f"{((got - wanted).norm() / wanted.norm()).item():.2f}")
