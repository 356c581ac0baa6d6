"""Linear layers of more rows than a gemm takes: a launch for each part of the rows; or a part of the weights at a time is
dense, for PyTorch's GEMM. The op says which is faster (heuristics/many_rows.h)."""

from __future__ import annotations

import contextlib
import functools
import itertools

import torch

from vqgen._config_text import config_text
from vqgen._errors import BadInput
from vqgen._op_configs import parsed, size, takes_residual

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
    _require_residual(config, y, residual)
    if many is None or len(x) < many["from"]:
        held = itertools.repeat(None) if residual is None else residual.split(MOST_ROWS)
        for each in zip(x.split(MOST_ROWS), y.split(MOST_ROWS), held):
            launch(*each)
        return
    part, outputs = many["part"], size(config, "out_features")
    shape = parsed(config)["shape"]
    gated, factor = shape.get("gate", "none") != "none", shape.get("multiplier", 1)
    products = x.new_empty(len(x), outputs) if gated else None
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
            columns = slice(first, first + len(rows))
            if gated:
                torch.mm(x, rows.T, out=products[:, columns])
            elif residual is None:
                torch.addmm(y[:, columns], x, rows.T, beta=0, alpha=factor, out=y[:, columns])
            else:
                torch.addmm(residual[:, columns], x, rows.T, alpha=factor, out=y[:, columns])
        if gated:
            _gate(shape, products, residual, y)


def _gate(shape: dict, sums, residual, y) -> None:
    """The epilogue with a gate by PyTorch's ops, which round to the dtype between them. sums: x W^T."""
    pairs = sums.unflatten(1, (-1, 2, shape.get("gate_rows", 1)))
    products = (torch.nn.functional.silu(pairs[:, :, 0]) * pairs[:, :, 1]).flatten(1)
    factor = shape.get("multiplier", 1)
    if residual is None:
        torch.mul(products, factor, out=y)
    else:
        torch.add(residual, products, alpha=factor, out=y)


def _require_residual(config, y, residual) -> None:
    """What one launch would judge: each part of the rows would pass alone."""
    if (residual is not None) != takes_residual(config):
        raise BadInput(f"'residual' is {'missing' if residual is None else 'given'}, and the config "
                       f"{'has' if residual is None else 'lacks'} shape.residual; change one of the two")
    if residual is not None and (residual.shape, residual.dtype, residual.device) != (y.shape, y.dtype, y.device):
        raise BadInput(f"'residual' is {list(residual.shape)} of {residual.dtype} on {residual.device}, and y {list(y.shape)} "
                       f"of {y.dtype} on {y.device}; make them alike")
