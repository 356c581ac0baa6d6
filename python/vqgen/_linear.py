"""Linear layers of more rows than a gemm takes: a launch for each part of the rows; or a part of the weights at a time is
dense, for PyTorch's GEMM. The op says which is faster (heuristics/many_rows.h)."""

from __future__ import annotations

import contextlib
import functools

import torch

from vqgen._config_text import config_text
from vqgen._errors import BadInput
from vqgen._op_configs import parsed

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


def of_many_rows(many, launch, dequantize, x, y) -> None:
    """y = x W^T for more than MOST_ROWS rows of x. many: what the op says of them; launch(x, y): the same for at most
    MOST_ROWS; dequantize(part, out, first_row): rows of W. Dense rows are in memory of PyTorch's allocator, which
    keeps streams and captured graphs apart and gives layers of a stream the same, one after the other."""
    if many is None or len(x) < many["from"]:
        for rows, out in zip(x.split(MOST_ROWS), y.split(MOST_ROWS)):
            launch(rows, out)
        return
    part, outputs = many["part"], y.shape[1]
    dense = x.new_empty(min(part, outputs), x.shape[1])
    autocast = torch.is_autocast_enabled(x.device.type)
    with torch.autocast(x.device.type, enabled=False) if autocast else contextlib.nullcontext():
        for first in range(0, outputs, part):
            rows = dense[:outputs - first]
            try:
                dequantize(part, rows, first)
            except BadInput:
                launch(x[:0], y[:0])  # which names x, if that is what is wrong
                raise
            torch.mm(x, rows.T, out=y[:, first:first + len(rows)])
