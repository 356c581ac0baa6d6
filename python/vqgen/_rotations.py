"""Rotations of whole rows around rotated weights (templates/vq/layout/rotation.h has the matrices)."""

from __future__ import annotations

import torch

from vqgen import _core
from vqgen._errors import BadInput
from vqgen._rotation_orders import ORDERS, order

_ELEMENTS = {torch.float16: 0, torch.bfloat16: 1}


def _aligned(tensor, to):
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % to == 0 else tensor.clone()


class Rotators:
    """The rotations that are compiled, by what they rotate. runtime: gives a device's."""

    def __init__(self, runtime):
        self._runtime, self._made = runtime, {}

    def drop(self, device: torch.device) -> None:
        """Forget those of a device, whose runtime is another from now on."""
        for key in [key for key in self._made if key[0] == device]:
            del self._made[key]

    def rotate(self, x: torch.Tensor, signs: torch.Tensor, back: bool) -> torch.Tensor:
        """H^T (signs o x) of rows x [n, features], or with `back` signs o H x. In fp32, rounded once to the dtype of x."""
        features = x.shape[1] if x.dim() == 2 else 0
        if not features or not order(features) or x.dtype not in _ELEMENTS:
            raise BadInput(f"x is {x.dtype} {list(x.shape)}; it is rows of {', '.join(map(str, ORDERS))} features, times a power "
                           "of two from 4 on, in float16 or bfloat16")
        if signs.shape != (features,) or signs.dtype != torch.float32 or signs.device != x.device:
            raise BadInput(f"signs are {signs.dtype} {list(signs.shape)} on {signs.device}; they are float32 [{features}] on "
                           f"{x.device}")
        x, signs = _aligned(x, 8), _aligned(signs, 16)
        y = torch.empty_like(x)
        stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
        key = (x.device, x.dtype, features, back)
        if key not in self._made:
            self._made[key] = _core.rotator(self._runtime(x.device)._core, _ELEMENTS[x.dtype], features, back, stream)
        _core.rotate(self._made[key], x.data_ptr(), signs.data_ptr(), y.data_ptr(), len(x), stream)
        return y
