"""What the ops for PyTorch take, and what their configs say."""

from __future__ import annotations

import functools
import json

from vqgen import _arrays
from vqgen._errors import BadInput
from vqgen._runtime import _CLASSES

SCHEMAS = (
    "attention(str config, Tensor query, Tensor key_codes, Tensor key_codebooks,"
    " Tensor? key_scales, Tensor value_codes, Tensor value_codebooks, Tensor? value_scales,"
    " Tensor lengths, *, Tensor? key_smooth=None, Tensor? raw_keys=None, Tensor? raw_values=None,"
    " Tensor? recent_counts=None, Tensor? sinks=None, int? tokens=None, float softmax_scale=0.0,"
    " Tensor? query_start=None, Tensor? new_keys=None, Tensor? new_values=None,"
    " Tensor? block_table=None)"
    " -> (Tensor, Tensor)",
    "append(str config, Tensor new_keys, Tensor new_values, Tensor positions,"
    " Tensor(a!) key_codes, Tensor key_codebooks, Tensor? key_scales, Tensor(b!) value_codes,"
    " Tensor value_codebooks, Tensor? value_scales, *, Tensor? counts=None,"
    " Tensor? key_smooth=None, Tensor(c!)? raw_keys=None, Tensor(d!)? raw_values=None,"
    " int? tokens=None, Tensor? block_table=None) -> ()",
    "dequantize(str config, Tensor key_codes, Tensor key_codebooks, Tensor? key_scales,"
    " Tensor value_codes, Tensor value_codebooks, Tensor? value_scales, Tensor lengths, *,"
    " int tokens, Tensor? key_smooth=None, Tensor? raw_keys=None, Tensor? raw_values=None,"
    " Tensor? recent_counts=None, Tensor? sinks=None, bool zeroed=True, Tensor? block_table=None)"
    " -> (Tensor, Tensor)",
    "merge(str config, Tensor[] outs, Tensor[] lses) -> (Tensor, Tensor)",
    "linear(str config, Tensor x, Tensor codes, Tensor codebooks, Tensor? scales,"
    " Tensor? output_scales, *, Tensor? expert_rows=None) -> Tensor",
)


@functools.lru_cache(maxsize=None)
def parsed(config: str) -> dict:
    try:
        value = json.loads(config)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the config is no JSON: {error}; see config_text()") from None
    if not isinstance(value, dict) or value.get("op") not in _CLASSES:
        op = value.get("op") if isinstance(value, dict) else None
        raise BadInput(f"the config is of op {op!r}; see docs/reference/config.md")
    return value


def size(config: str, name: str) -> int:
    """Of the config's shape."""
    shape = parsed(config).get("shape")
    if not isinstance(shape, dict) or name not in shape:
        raise BadInput(f"the config has no shape.{name}; see docs/reference/config.md")
    return _arrays.whole(f"shape.{name} of the config", shape[name], 1)


def cache_shape(config):
    return tuple(size(config, name) for name in ("batch", "kv_heads", "head_dim"))
