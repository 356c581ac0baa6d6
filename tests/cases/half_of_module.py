"""model.half() or .to(dtype) changes nothing in VQLinear layers that have this dtype, including fp32
output_scales."""

import torch

import vqgen.torch
from hfkit import end, path
from kit import save, vqgen as tool

save("w.safetensors", {"p.weight": torch.randn(96, 128).half().numpy()})
right = True
for dtype, name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
    tool("quantize", "--input", "w.safetensors", "--weights", "*.weight", "--dtype", name, "--format",
         '{"vector_size":4,"index_bits":8,"output_scales":true}', "--out", name, check=True)
    model = torch.nn.Sequential(torch.nn.LayerNorm(128), vqgen.torch.VQLinear.from_bundle(path(name), "p"))
    x = torch.randn(3, 128).to(dtype)
    want = model[1](x)
    try:
        right = torch.equal(model.to(dtype)[1](x), want) and right
    except Exception as error:  # pylint: disable=broad-except
        print(f"{name} {type(error).__name__}: {error}")
        right = False
end(right)
