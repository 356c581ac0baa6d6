"""Scales of groups of inputs behind the codes of a row (templates/vq/layout/group_scales.h), cut for a rank."""

from __future__ import annotations

import torch
import torch.nn.functional

_BLOCK = 256  # inputs that share an f16 if groups have packed numbers


def inputs_together(form: dict) -> int:
    """Inputs of which a row has whole numbers."""
    return _BLOCK if form.get("group_scale_bits") else form["group_inputs"]


def cut(form: dict, scales: torch.Tensor, inputs: int, begin: int, count: int) -> torch.Tensor:
    """int32 [rows, words] of the inputs [begin, begin + count), whole inputs_together(). scales: int32 [rows, words], of all
    `inputs`."""
    held = scales.contiguous().view(torch.uint8)
    numbers = 2 if form.get("group_minima") else 1
    packed = lambda of: of // form["group_inputs"] * form.get("group_scale_bits", 0) * numbers // 8  # bytes
    halves = lambda of: of // inputs_together(form) * 2 * numbers
    parts, first = [], 0
    for size, unit in ((packed, 4), (halves, 16)):
        own = held[:, first + size(begin):first + size(begin + count)]
        parts.append(_padded(own, -(sum(each.shape[1] for each in parts) + own.shape[1]) % unit))
        first += -(-size(inputs) // 4) * 4
    return torch.cat(parts, 1).view(torch.int32)


def _padded(held, count):
    return torch.nn.functional.pad(held, (0, count))
