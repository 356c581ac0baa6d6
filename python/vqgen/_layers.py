"""Modules over the ops for PyTorch."""

from __future__ import annotations

import torch

import vqgen
from vqgen._bundles import bundle_tensors, read_bundle
from vqgen._config_text import config_text
from vqgen._linear import MOST_ROWS

DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}
_WEIGHTS = [f"weights.{name}" for name in ("codes", "codebooks", "stage_scales", "output_scales")]


class VQLinear(torch.nn.Module):
    """y = x W^T + bias with quantized weights; x is [..., in_features].

    weights: Quantized, with output_scales float32 [out_features] where `format` has them. `format` is
    the format, as of a config. More than 256 rows are taken 256 at a time, or a part of the weights at a time is dense
    (docs/guides/pytorch.md). model.to(dtype) leaves the weights as they are; `dtype` is that of x. The gradient of x is
    dy W, weights have none.
    """

    def __init__(self, weights: vqgen.Quantized, format, out_features: int, in_features: int, *,
                 output_scales=None, bias=None, dtype=torch.float16):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape = {"m": MOST_ROWS, "out_features": out_features, "in_features": in_features}
        self.config = config_text({"op": "gemm", "dtype": DTYPES[dtype], "shape": shape,
                                   "weights": format})
        tensors = {"codes": weights.codes, "codebooks": weights.codebooks, "stage_scales": weights.scales,
                   "output_scales": output_scales}  # by the names of a model folder
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def _apply(self, fn, recurse=True):
        """Apply .to(), .half() and others: codes, codebooks and scales follow to a device, and to no dtype."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, now in self._buffers.items():
            if now is not None and now.dtype != before[name].dtype:
                self._buffers[name] = before[name].to(now.device)
        return self

    @classmethod
    def from_bundle(cls, path, name: str, *, device="cpu", bias=None) -> VQLinear:
        """Make a layer of the weights `name` in a bundle that `vqgen quantize` wrote (docs/guides/quantize.md)."""
        items = {item["name"]: item for item in read_bundle(path) if item["kind"] == "weights"}
        if name not in items:
            raise vqgen.BadInput(f"{path} has no weights '{name}'; it has "
                                 f"{', '.join(items) or 'none'}")
        item = items[name]
        # Copied, since a file's tensors are aligned to eight bytes, and kernels read sixteen.
        with torch.inference_mode(False):
            codes, codebooks, scales, output_scales = (
                None if tensor is None else tensor.to(device, copy=True)
                for tensor in map(bundle_tensors(path, name, _WEIGHTS).get, _WEIGHTS))
        return cls(vqgen.Quantized(codes[0, 0], codebooks, scales), item["weights"],
                   item["out_features"], item["in_features"], output_scales=output_scales,
                   bias=bias, dtype=codebooks.dtype)

    def forward(self, x):
        if x.dtype != self.codebooks.dtype:
            raise vqgen.BadInput(f"x is {x.dtype}, and the layer's weights are {self.codebooks.dtype}; pass "
                                 f"x.to({self.codebooks.dtype}), or quantize with the dtype of the model")
        y = torch.ops.vqgen.linear(self.config, x.reshape(-1, self.in_features).contiguous(), self.codes, self.codebooks,
                                   self.stage_scales, self.output_scales).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}"
