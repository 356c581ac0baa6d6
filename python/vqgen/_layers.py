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

    input_signs, output_signs: float32 [in_features] and [out_features] of rotated weights, both or none; y is then
    output_signs o H (W H^T (input_signs o x)) + bias (docs/reference/file-formats.md).

    gate, gate_rows, multiplier, residual: the epilogue, as of a config's shape; with residual, forward() takes one. It goes
    without rotated weights, and a gate or a multiplier without bias.
    """

    def __init__(self, weights: vqgen.Quantized, format, out_features: int, in_features: int, *,
                 output_scales=None, bias=None, dtype=torch.float16, input_signs=None, output_signs=None,
                 gate: str | None = None, gate_rows: int = 1, multiplier: float = 1.0, residual: bool = False):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.format, self.takes_residual = format, residual
        gate = None if gate == "none" else gate
        epilogue = {"gate": (gate, None), "gate_rows": (gate_rows, 1), "multiplier": (multiplier, 1), "residual": (residual, False)}
        epilogue = {name: given for name, (given, default) in epilogue.items() if given != default}
        if epilogue and input_signs is not None:
            raise vqgen.BadInput(f"{next(iter(epilogue))} goes without input_signs and output_signs, which come after it; "
                                 "leave it out")
        if bias is not None and (gate is not None or multiplier != 1):
            raise vqgen.BadInput(f"bias goes without {'multiplier' if gate is None else 'gate'}, which comes after it; leave "
                                 "one of them out")
        shape = {"m": MOST_ROWS, "out_features": out_features, "in_features": in_features, **epilogue}
        self.config = config_text({"op": "gemm", "dtype": DTYPES[dtype], "shape": shape,
                                   "weights": format})
        if (input_signs is None) != (output_signs is None):
            raise vqgen.BadInput("input_signs and output_signs: one of them is given; give both, or none")
        tensors = {"codes": weights.codes, "codebooks": weights.codebooks, "stage_scales": weights.scales,
                   "output_scales": output_scales, "input_signs": input_signs,
                   "output_signs": output_signs}  # by the names of a model folder
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

    def forward(self, x, residual=None):
        """residual: as the result, is added; of a layer with `residual` alone."""
        if (residual is not None) != self.takes_residual:
            raise vqgen.BadInput(f"residual is {'missing' if residual is None else 'given'}, and the layer was made "
                                 f"{'with' if self.takes_residual else 'without'} residual=True; change one of the two")
        if x.dtype != self.codebooks.dtype:
            raise vqgen.BadInput(f"x is {x.dtype}, and the layer's weights are {self.codebooks.dtype}; pass "
                                 f"x.to({self.codebooks.dtype}), or quantize with the dtype of the model")
        rows = x.reshape(-1, self.in_features).contiguous()
        if self.input_signs is not None:
            rows = torch.ops.vqgen.rotate(rows, self.input_signs, False)
        if residual is not None:
            residual = residual.reshape(-1, residual.shape[-1]).contiguous()
        y = torch.ops.vqgen.linear(self.config, rows, self.codes, self.codebooks, self.stage_scales, self.output_scales,
                                   residual=residual)
        if self.output_signs is not None:
            y = torch.ops.vqgen.rotate(y, self.output_signs, True)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if self.bias is None else y + self.bias

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}"


class VQJoined:
    """A VQLinear whose outputs are those of several linear layers, which are called with the same x: the first call computes
    all outputs, and the others take theirs. parts: the rows of each."""

    def __init__(self, linear: VQLinear, parts: list[int]):
        self._linear, self._parts = linear, parts
        self._x, self._version, self._outputs = None, 0, {}

    def output(self, number: int, x):
        # The version tells whether x was changed in place since; a compiled graph changes none.
        version = 0 if torch.compiler.is_compiling() or x.is_inference() else x._version
        if x is not self._x or version != self._version or number not in self._outputs:
            self._x, self._version = x, version
            self._outputs = dict(enumerate(self._linear(x).split(self._parts, -1)))
        out = self._outputs.pop(number)
        if not self._outputs:
            self._x = None
        return out


class VQPart(torch.nn.Module):
    """One of the linear layers of a VQJoined, whose tensors it has not."""

    def __init__(self, joined: VQJoined, number: int, out_features: int, in_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._joined, self._number = joined, number

    def forward(self, x):
        return self._joined.output(self._number, x)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}"
