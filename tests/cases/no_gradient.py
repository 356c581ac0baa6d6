"""LoRA beside quantized layers: the gradient passes through VQLinear to the layers below, or there is an
error."""

import torch

import vqgen
from hfkit import end
from layers import linear

below = torch.nn.Linear(128, 128).half()
try:
    linear()(below(torch.randn(3, 128).half())).float().square().sum().backward()
except (vqgen.Error, RuntimeError) as error:
    print(error)
    end(True)
print("backward() ran; gradient of the layer below:", below.weight.grad)
end(below.weight.grad is not None)
