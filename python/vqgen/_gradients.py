"""Gradients of the ops for PyTorch: x of a linear op gets dy W, x of a rotation is rotated back; whatever else asks for a gradient gets
an error in backward()."""

from __future__ import annotations

import torch

from vqgen._errors import Infeasible
from vqgen._op_configs import has_epilogue, parsed

_NAMES = ("attention", "append", "dequantize", "merge", "linear", "weight_dequantize", "rotate")
_OF_WEIGHTS = ("codes", "codebooks", "scales", "output_scales", "expert_rows")


def register(library) -> None:
    """For the ops that `library` defines."""
    for name in _NAMES:
        library.impl(name, _kernel(name), "Autograd", with_keyset=True)


def without_gradient(name: str, call, *needing):
    """What `call` gives, as a function of the tensors `needing` that raises in backward()."""
    return _Refused.apply(name, call, *needing)


def _kernel(name):
    overload = getattr(torch.ops.vqgen, name).default

    def kernel(keys, *args, **named):
        def call():
            with torch._C._AutoDispatchBelowAutograd():
                return overload.redispatch(keys & torch._C._after_autograd_keyset, *args, **named)

        needing = _needing((*args, *named.values())) if torch.is_grad_enabled() else []
        if not needing:
            return call()
        if name == "linear" and not has_epilogue(args[0]):
            config, x, *weights = args
            return _Product.apply(call, config, x, *weights, named.get("expert_rows"))
        if name == "rotate" and not args[1].requires_grad:
            return _Rotated.apply(call, *args)
        return without_gradient(name, call, *needing)

    return kernel


def _needing(values):
    flat = [each for value in values for each in (value if isinstance(value, (list, tuple)) else (value,))]
    return [each for each in flat if isinstance(each, torch.Tensor) and each.requires_grad]


class _Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, call, *needing):
        ctx.name = name
        return call()

    @staticmethod
    def backward(ctx, *_):
        raise Infeasible(f"vqgen::{ctx.name} has no gradient; call it under torch.no_grad(), or detach() what "
                         "goes in")


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, x, signs, back):
        ctx.back = back
        ctx.save_for_backward(signs)
        return call()

    @staticmethod
    def backward(ctx, grad):
        return None, torch.ops.vqgen.rotate(grad.contiguous(), *ctx.saved_tensors, not ctx.back), None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, config, x, *weights):
        ctx.config = config
        ctx.save_for_backward(*weights)
        return call()

    @staticmethod
    def backward(ctx, grad):
        for name, needs in zip(_OF_WEIGHTS, ctx.needs_input_grad[3:]):
            if needs:
                raise Infeasible(f"vqgen::linear has no gradient of '{name}'; detach() it")
        return None, None, _gradient_of_x(ctx.config, grad, *ctx.saved_tensors), *(None for _ in _OF_WEIGHTS)


def _gradient_of_x(config, grad, codes, codebooks, scales, output_scales, expert_rows):
    """dy W: W in slices of columns, as the op gives them of unit vectors."""
    shape = parsed(config)["shape"]
    columns, most = shape["in_features"], shape["m"]
    rows = [(0, len(grad))]
    if expert_rows is not None:
        most = min(most, shape["total_rows"])
        ends = expert_rows.tolist()
        rows = list(zip(ends, ends[1:]))
    out = grad.new_zeros(len(grad), columns)
    for expert, (first, end) in enumerate(rows):
        if first == end:
            continue
        for column in range(0, columns, most):
            held = min(most, columns - column)
            units = grad.new_zeros(held, columns)
            units.diagonal(column).fill_(1)
            own = None
            if expert_rows is not None:
                own = torch.zeros_like(expert_rows)
                own[expert + 1:] = held
            part = torch.ops.vqgen.linear(config, units, codes, codebooks, scales, output_scales, expert_rows=own)
            out[first:end, column:column + held] = grad[first:end] @ part.T
    return out
