"""What the ops for PyTorch take, and what their configs say."""

from __future__ import annotations

import functools
import json

from vqgen import _arrays
from vqgen._arguments import slots
from vqgen._errors import BadInput
from vqgen._runtime import _CLASSES

# Each op for PyTorch has the op whose arguments it takes, the arguments that it makes, the conditional
# arguments that come by position all the same, further parameters, and results.
_OPS = {
    "attention": ("attention_decode", ("out", "lse"), (), "int? tokens=None, float softmax_scale=0.0",
                  "(Tensor, Tensor)"),
    "append": ("kv_append", (), (), "int? tokens=None", "()"),
    "dequantize": ("kv_dequantize", ("out_keys", "out_values"), (), "int tokens, bool zeroed=True",
                   "(Tensor, Tensor)"),
    "weight_dequantize": ("weight_dequantize", ("out",), ("output_scales",), "int first_row=0, int? rows=None", "Tensor"),
    "linear": ("gemm", ("y",), ("output_scales",), "", "Tensor"),
}


def _torch_name(slot):
    return slot.replace("keys.", "key_").replace("values.", "value_").removeprefix("weights.")


@functools.lru_cache(maxsize=None)
def _named(op):
    """(by position, by keyword), a dict each of the slots of the op for PyTorch by their names there."""
    config_op, made, positional, *_ = _OPS[op]
    both = ({}, {})
    for name, slot in slots(config_op).items():
        if name not in made:
            by_keyword = (slot["conditional"] or slot["optional"]) and not (
                name.endswith(".scales") or name in positional)
            both[by_keyword][_torch_name(name)] = name
    return both


def _schema(op):
    config_op, _, _, more, gives = _OPS[op]
    marks = iter("abcdefgh")
    def words(name, slot, default=""):
        about = slots(config_op)[slot]
        mark = f"({next(marks)}!)" if about["written"] else ""
        return f"Tensor{mark}{'?' if about['conditional'] or about['optional'] else ''} {name}{default}"
    first, rest = _named(op)
    listed = ["str config", *(words(*each) for each in first.items()), "*", *([more] if more else []),
              *(words(*each, "=None") for each in rest.items())]
    return f"{op}({', '.join(listed)}) -> {gives}"


@functools.lru_cache(maxsize=None)
def _places(op: str, prepared: str) -> tuple[tuple[int, ...], dict[str, int], int]:
    """Where a prepared op takes what the op for PyTorch gives: the places of what comes by position, those
    of keywords and of what is made by their names, and their number. BadInput if it lacks one."""
    first, rest = _named(op)
    order = {slot: place for place, slot in enumerate(slots(prepared))}
    made = {slot: slot for slot in _OPS[op][1]}
    for slot in (*first.values(), *rest.values(), *made):
        if slot not in order:
            raise BadInput(f"{prepared} has no '{slot}'")
    return (tuple(order[slot] for slot in first.values()),
            {name: order[slot] for name, slot in (rest | made).items()}, len(order))


def in_order(op: str, prepared: str, positional, named) -> tuple:
    """The arrays of a call of the op for PyTorch, in the order of the prepared op's slots."""
    first, by_name, count = _places(op, prepared)
    arrays = [None] * count
    for place, array in zip(first, positional, strict=True):
        arrays[place] = array
    for name, array in named.items():
        arrays[by_name[name]] = array
    return tuple(arrays)


SCHEMAS = (*map(_schema, _OPS), "merge(str config, Tensor[] outs, Tensor[] lses) -> (Tensor, Tensor)",
           "rotate(Tensor x, Tensor signs, bool back) -> Tensor")


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


def _shape(config: str) -> dict:
    shape = parsed(config).get("shape")
    return shape if isinstance(shape, dict) else {}


def size(config: str, name: str) -> int:
    """The size `name` in the config's shape."""
    shape = _shape(config)
    if name not in shape:
        raise BadInput(f"the config has no shape.{name}; see docs/reference/config.md")
    return _arrays.whole(f"shape.{name} of the config", shape[name], 1)


def cache_shapes(config):
    """Batch, KV heads and channels of the config's keys, and of its values."""
    batch, kv_heads, head_dim = (size(config, name) for name in ("batch", "kv_heads", "head_dim"))
    return (batch, kv_heads, head_dim), (batch, kv_heads, value_dim(config))


def value_dim(config) -> int:
    """The channels of the config's values."""
    return size(config, "value_head_dim" if "value_head_dim" in _shape(config) else "head_dim")


def y_columns(config: str) -> int:
    """The columns of y of a gemv or gemm."""
    return size(config, "out_features") // (1 if _shape(config).get("gate", "none") == "none" else 2)


def has_epilogue(config: str) -> bool:
    """True if y of a gemv or gemm is more than x W^T."""
    shape = _shape(config)
    return shape.get("gate", "none") != "none" or shape.get("multiplier", 1) != 1 or takes_residual(config)


def takes_residual(config: str) -> bool:
    """True if a gemv or gemm adds an argument."""
    return bool(_shape(config).get("residual", False))
