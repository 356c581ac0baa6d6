"""GEMMs of more rows than a kernel takes: a slice of the weights at a time becomes dense, for PyTorch's own GEMM."""

from __future__ import annotations

import functools

import torch

import vqgen
from vqgen._bundles import in_rows, unpacked
from vqgen._op_configs import parsed
from vqgen._weight_books import Books, decoded

MOST_ROWS = 256  # of a gemm
_DENSE = 1 << 25  # bytes of weights that are dense at once


@functools.lru_cache(maxsize=None)
def format_of(config: str) -> dict:
    """The format of the weights, with all its fields."""
    return vqgen.format_fields(parsed(config)["weights"])


@functools.lru_cache(maxsize=None)
def is_decoded(config: str) -> bool:
    """True if PyTorch decodes the weights: codes in plain rows, of a table or a lattice, where a row has one codebook."""
    form, columns = format_of(config), parsed(config)["shape"]["in_features"]
    return in_rows(form) and form["decoder"] in ("table", "e8p") and not form["hadamard"] and (
        form["scope"] == "tensor" or form["scope"] == "tile" and form["tile_columns"] >= columns)


def with_dense(config: str, launch, x, codes, codebooks, scales, output_scales):
    """y = x W^T for more than MOST_ROWS rows of x. launch(x): that of at most as many, which serves, part by part, weights
    that PyTorch does not decode. It takes no more memory than some slices of the weights; nothing waits for the device."""
    if not is_decoded(config):
        return torch.cat([launch(part) for part in x.split(MOST_ROWS)])
    launch(x[:0])  # which judges the arrays
    rows = parsed(config)["shape"]["out_features"]
    form = format_of(config)
    tile = rows if form["scope"] == "tensor" else form["tile_rows"]
    step = max(1, _DENSE // (x.shape[1] * x.element_size()))
    y = x.new_empty(len(x), rows)
    for unit in range(-(-rows // tile)):
        entries = _entries(form, codebooks[unit], None if scales is None else scales[unit])
        end = min((unit + 1) * tile, rows)
        for first in range(unit * tile, end, step):
            own = slice(first, min(first + step, end))
            weights = _dense(form, x.shape[1], codes[own], entries)
            if output_scales is not None:
                weights.mul_(output_scales[own, None])
            torch.mm(x, weights.T, out=y[:, own])
    return y


def _entries(form, codebooks, scales):
    """What codes of each stage stand for, [stages, codes, size], in the dtype of x."""
    ones = torch.ones(len(codebooks), dtype=torch.float32, device=codebooks.device)
    books = Books(codebooks.float(), ones if scales is None else scales, form, codebooks.dtype)
    return books.entries().to(codebooks.dtype)


def _dense(form, columns, codes, entries):
    groups, stages = columns // form["vector_size"], form["num_codebooks"]
    codes = unpacked(codes.view(torch.int32), form["index_bits"], groups * stages)
    return decoded(codes.unflatten(1, (groups, stages)), entries)
