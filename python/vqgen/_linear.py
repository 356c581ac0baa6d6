"""GEMMs of more rows than a kernel takes: some launches, or for many rows PyTorch's own GEMM, for which a slice of the
weights at a time becomes dense."""

from __future__ import annotations

import functools

import torch

import vqgen
from vqgen._bundles import in_rows, unpacked
from vqgen._op_configs import parsed
from vqgen._weight_books import Books, decoded

MOST_ROWS = 256  # of a gemm
_LAUNCHED = 2048  # rows up to which launches are the faster way
_DENSE = 1 << 25  # bytes of weights that are dense at once
_TOGETHER = 16  # bits of codes that one table decodes


@functools.lru_cache(maxsize=None)
def format_of(config: str) -> dict:
    """The format of the weights, with all its fields."""
    return vqgen.format_fields(parsed(config)["weights"])


@functools.lru_cache(maxsize=None)
def is_decoded(config: str) -> bool:
    """True if PyTorch decodes the weights: codes in plain rows, of a table or a lattice, where a row has one codebook."""
    form, columns = format_of(config), parsed(config)["shape"]["in_features"]
    return in_rows(form) and form["decoder"] in ("table", "e8p") and not form["hadamard"] and not form.get("group_inputs") and (
        form["scope"] == "tensor" or form["scope"] == "tile" and form["tile_columns"] >= columns)


def of_many_rows(config: str, launch, x, y, codes, codebooks, scales, output_scales) -> None:
    """y = x W^T for more than MOST_ROWS rows of x. launch(x, y): the same for at most as many. It takes no more memory than
    some slices of the weights, and nothing waits for the device."""
    if len(x) <= _LAUNCHED or not is_decoded(config):
        for rows, out in zip(x.split(MOST_ROWS), y.split(MOST_ROWS)):
            launch(rows, out)
        return
    launch(x[:0], y[:0])  # which judges the arrays
    form = format_of(config)
    tile = y.shape[1] if form["scope"] == "tensor" else form["tile_rows"]
    step = max(1, _DENSE // (x.shape[1] * x.element_size()))
    for first_of_tile in range(0, y.shape[1], tile):
        unit, end = first_of_tile // tile, min(first_of_tile + tile, y.shape[1])
        tables = _tables(form, codebooks[unit], None if scales is None else scales[unit])
        for first in range(first_of_tile, end, step):
            own = slice(first, min(first + step, end))
            weights = _dense(form, x.shape[1], codes[own], tables)
            if output_scales is not None:
                weights.mul_(output_scales[own, None])
            torch.mm(x, weights.T, out=y[:, own])


def _tables(form, codebooks, scales):
    """What codes stand for, [stages, codes, size], in the dtype of x; the codes of all stages are one if they are short."""
    ones = torch.ones(len(codebooks), dtype=torch.float32, device=codebooks.device)
    entries = Books(codebooks.float(), ones if scales is None else scales, form, codebooks.dtype).entries()
    if len(entries) * form["index_bits"] <= _TOGETHER:
        sums = entries[0]
        for stage in entries[1:]:
            sums = (stage[:, None] + sums).flatten(0, 1)  # the first stage has the lowest bits
        entries = sums[None]
    return entries.to(codebooks.dtype)


def _dense(form, columns, codes, tables):
    groups = columns // form["vector_size"]
    bits = form["num_codebooks"] * form["index_bits"] // len(tables)
    codes = unpacked(codes.view(torch.int32), bits, groups * len(tables))
    return decoded(codes.unflatten(1, (groups, len(tables))), tables)
