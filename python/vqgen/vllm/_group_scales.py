"""Scales of groups of inputs behind the codes of a row (templates/vq/layout/group_scales.h), cut for a rank."""

from __future__ import annotations

import math

import torch
import torch.nn.functional

_BLOCK = 256  # inputs that share an f16 if groups have packed numbers


def inputs_together(form: dict) -> int:
    """Inputs of which a row has whole scales, and of packed ones whole bytes."""
    if not form.get("group_scale_bits"):
        return form["group_inputs"]
    return _BLOCK * 8 // math.gcd(8, _packed_bits(form, _BLOCK))


def _packed_bits(form, inputs):
    return inputs // form["group_inputs"] * form["group_scale_bits"] * (2 if form.get("group_minima") else 1)


def cut(form: dict, scales: torch.Tensor, inputs: int, begin: int, count: int) -> torch.Tensor:
    """int32 [rows, words] of the inputs [begin, begin + count), whole inputs_together(). scales: int32 [rows, words], of all
    `inputs`."""
    held = scales.contiguous().view(torch.uint8)
    numbers = 2 if form.get("group_minima") else 1
    bits = form.get("group_scale_bits", 0)
    packed = lambda of: -(-_packed_bits(form, of) // 8) if bits else 0  # bytes
    halves = lambda of: of // (_BLOCK if bits else form["group_inputs"]) * 2 * numbers
    parts, first = [], 0
    for size, unit in ((packed, 4), (halves, 16)):
        own = held[:, first + size(begin):first + size(begin + count)]
        parts.append(_padded(own, -(sum(each.shape[1] for each in parts) + own.shape[1]) % unit))
        first += -(-size(inputs) // 4) * 4
    return torch.cat(parts, 1).view(torch.int32)


def _padded(held, count):
    return torch.nn.functional.pad(held, (0, count))
