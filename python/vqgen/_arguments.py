"""What ops take, by name, as the library declares it (vqgen_arguments())."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

from vqgen import _core
from vqgen._errors import BadInput


class Quantized(NamedTuple):
    """A quantized tensor: packed codes, the codebooks that they index, and scales of the stages.

    codes: uint32 (or int32), of a cache [batch, kv_heads, tokens, words], of one in pages
        [pages, kv_heads, page_tokens, words], of weights [out_features, words], of experts
        [experts, out_features, words]. Sequences, heads and pages of a cache may lie apart, and
        tokens of one in pages, so that views of engines' tensors are taken; all else is contiguous.
    codebooks: [units, stages, entries, vector_size] in the op's dtype; of keys in parts one axis.
    scales: float32 [units, stages], where the format has stage_scales.
    """

    codes: Any
    codebooks: Any
    scales: Any = None


class Argument(NamedTuple):
    """An argument of an op: its shape at the largest size that the op was prepared for; 0 where a
    caller chooses, as for pages."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@functools.lru_cache(maxsize=None)
def slots(op: str) -> dict[str, dict]:
    """The arguments that an op may take by name, in the order of calls (vqgen_arguments())."""
    return {each["name"]: each for each in json.loads(_core.arguments(op))}


@functools.lru_cache(maxsize=None)
def _part_names(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{part}" for part in Quantized._fields)


def parts_of(name: str, tensor: Quantized) -> dict[str, Any]:
    return dict(zip(_part_names(name), tensor))


def quantized(name: str, tensor) -> Quantized:
    if not isinstance(tensor, Quantized):
        raise BadInput(f"'{name}' is of type {type(tensor).__name__}; it has to be "
                       "vqgen.Quantized(codes, codebooks[, scales])")
    return tensor


def cache_arguments(keys, values):
    return parts_of("keys", quantized("keys", keys)) | parts_of("values", quantized("values", values))


def parts_list(name, given, parts):
    try:
        given = list(given)
    except TypeError:
        raise BadInput(f"'{name}' is of type {type(given).__name__}, and no list of arrays") from None
    if len(given) != parts:
        raise BadInput(f"'{name}' has {len(given)} arrays, and the config {parts} parts")
    return given


def merge_arguments(out, lse, outs, lses):
    return {"out": out, "lse": lse, **{f"outs.{i}": each for i, each in enumerate(outs)},
            **{f"lses.{i}": each for i, each in enumerate(lses)}}
