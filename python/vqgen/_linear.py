"""Linear layers of more rows than a gemm takes: a launch for each part of the rows; or a part of the weights at a time is
dense, for PyTorch's GEMM. The op says which is faster (heuristics/many_rows.h)."""

from __future__ import annotations

import contextlib
import functools
import itertools

import torch

from vqgen._config_text import config_text
from vqgen._errors import BadInput
from vqgen._op_configs import has_epilogue, parsed, size

MOST_ROWS = 256  # of a gemm


def takes_any(config: str) -> bool:
    """True if x may have any number of rows: a gemm of the most rows that there are."""
    config = parsed(config)
    return config["op"] == "gemm" and config["shape"].get("m") == MOST_ROWS and not config["shape"].get("experts")


@functools.lru_cache(maxsize=None)
def dense_config(config: str, part: int) -> str:
    """The op that writes `part` rows of a gemm's weights."""
    config = parsed(config)
    sizes = {name: config["shape"][name] for name in ("out_features", "in_features")}
    return config_text({"op": "weight_dequantize", "dtype": config.get("dtype", "f16"), "shape": {"rows": part, **sizes},
                        "weights": config["weights"]})


def of_many_rows(config, many, launch, dequantize, x, y, residual) -> None:
    """y for more than MOST_ROWS rows of x. many: what the op says of them; launch(x, y, residual): the same for at most
    MOST_ROWS; dequantize(part, out, first_row): rows of W. Dense rows are in memory of PyTorch's allocator, which
    keeps streams and captured graphs apart and gives layers of a stream the same, one after the other."""
    if many is None or len(x) < many["from"]:
        held = itertools.repeat(None) if residual is None else residual.split(MOST_ROWS)
        for each in zip(x.split(MOST_ROWS), y.split(MOST_ROWS), held):
            launch(*each)
        return
    part, outputs = many["part"], size(config, "out_features")
    ends = has_epilogue(config)
    products = x.new_empty(len(x), outputs) if ends else y
    dense = x.new_empty(min(part, outputs), x.shape[1])
    autocast = torch.is_autocast_enabled(x.device.type)
    with torch.autocast(x.device.type, enabled=False) if autocast else contextlib.nullcontext():
        for first in range(0, outputs, part):
            rows = dense[:outputs - first]
            try:
                dequantize(part, rows, first)
            except BadInput:
                # Names x, if that is what is wrong.
                launch(x[:0], y[:0], None if residual is None else residual[:0])
                raise
            torch.mm(x, rows.T, out=products[:, first:first + len(rows)])
        if ends:
            end(parsed(config)["shape"], products, residual, y)


def end(shape: dict, sums, residual, y) -> None:
    """The epilogue of a gemm by PyTorch's ops, which round to the dtype between them. sums: x W^T."""
    if shape.get("gate", "none") != "none":
        pairs = sums.unflatten(1, (-1, 2, shape.get("gate_rows", 1)))
        sums = (torch.nn.functional.silu(pairs[:, :, 0]) * pairs[:, :, 1]).flatten(1)
    factor = shape.get("multiplier", 1)
    if residual is None:
        torch.mul(sums, factor, out=y)
    else:
        torch.add(residual, sums, alpha=factor, out=y)
