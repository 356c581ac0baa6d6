"""K-means through PyTorch, for sub-vectors wider than those that kernels train (docs/guides/quantize.md): the
steps are the same, sums are added up in another way."""

from __future__ import annotations

import heapq

import torch

from vqgen._errors import BadInput
from vqgen._nearest import encoded, nearest
from vqgen._training import tables_shape

ELEMENTS = {"f16": torch.float16, "bf16": torch.bfloat16}
SIZES = (2, 4, 8, 16)  # of sub-vectors that kernels train
_AT_ONCE = 1 << 15  # vectors
_SLICES = 32
_MOST = 1 << 20  # that train a unit, or so many for each entry:
_OF_AN_ENTRY = 256
_STEP = 0.1  # of the deviation of an element


def takes(fields: dict) -> bool:
    """True if a format's entries are trained here when its vectors are on a GPU."""
    return (fields.get("decoder") == "table" and fields["entry_type"] == "element"
            and fields["vector_size"] not in SIZES)


def generator_of(seed: int, unit: int) -> torch.Generator:
    """What a unit's training draws from: a sequence of its own."""
    return torch.Generator().manual_seed((seed * 1_000_003 + unit) % (1 << 63))


@torch.no_grad()
def trained(vectors, fields: dict, dtype: torch.dtype, seed: int, iterations: int = 30):
    """Codebooks [units, stages, entries, size] and the scales of their stages [units, stages] or None, on
    the device of `vectors`, float32 [units, rows, columns]. The same vectors and seed give the same bits on
    one machine, as far as PyTorch's matmul does."""
    shape = units, stages, entries, size = tables_shape(vectors, fields)
    books = torch.empty(shape, dtype=dtype, device=vectors.device)
    scales = torch.ones(units, stages, dtype=torch.float32, device=vectors.device)
    for unit, own in enumerate(vectors.reshape(units, -1, size)):
        draw = generator_of(seed, unit)
        left = sample(own, entries, draw).clone()
        for stage in range(stages):
            if fields["stage_scales"]:
                scale = left.double().square().mean().sqrt().float()
                scales[unit, stage] = scale if scale > 0 else 1
            books[unit, stage] = stage_of(left / scales[unit, stage], entries, draw, iterations)
            table = books[unit, stage].float() * scales[unit, stage]
            left -= encoded(left, table[None])[1]
    if not torch.isfinite(books).all():
        raise BadInput(f"an entry does not fit {dtype}; take bfloat16, or a format with stage_scales")
    return books, scales if fields["stage_scales"] else None


def sample(vectors, entries: int, draw):
    """The vectors that train, in order: all, or an even sample."""
    most = max(_MOST, _OF_AN_ENTRY * entries)
    if len(vectors) <= most:
        return vectors
    return vectors[torch.randperm(len(vectors), generator=draw)[:most].sort().values.to(vectors.device)]


def stage_of(vectors, entries: int, draw, iterations: int, weights=None):
    """Entries, float32 [entries, size]. weights: float32 [vectors], what an error of each counts; 1 without them."""
    table = vectors[torch.randperm(len(vectors), generator=draw)[:entries].to(vectors.device)]
    for _ in range(iterations):
        before = table
        sums = torch.zeros(table.shape, dtype=torch.double, device=table.device)
        counts = torch.zeros(entries, dtype=torch.double, device=table.device)
        for first in range(0, len(vectors), _AT_ONCE):
            part = vectors[first:first + _AT_ONCE]
            codes = nearest(part, table)
            own = None if weights is None else weights[first:first + _AT_ONCE]
            counts.index_add_(0, codes, counts.new_ones(len(codes)) if own is None else own.double())
            sums += _sums(part if own is None else part * own[:, None], codes, entries)
        table = torch.where(counts[:, None] > 0, sums / counts.where(counts > 0, 1)[:, None], before.double()).float()
        if (counts == 0).any():
            _split(table, before, vectors, counts, weights)
        if torch.equal(table, before):
            break
    return table


def _sums(vectors, codes, entries: int):
    """The sum of each entry's vectors, double, by matmul, which adds in one order; in slices, since one
    matmul with so few results leaves most of a GPU idle."""
    whole = len(vectors) // _SLICES * _SLICES
    out = 0.0
    for rows, numbers in ((vectors[:whole], codes[:whole]), (vectors[whole:], codes[whole:])):
        if len(rows):
            chosen = torch.zeros(len(rows), entries, dtype=rows.dtype, device=rows.device).scatter_(1, numbers[:, None], 1.0)
            slices = _SLICES if len(rows) == whole else 1
            out = out + torch.bmm(chosen.view(slices, -1, entries).mT,
                                  rows.view(slices, -1, rows.shape[1])).double().sum(0)
    return out


def _split(table, before, vectors, counts, weights) -> None:
    """Entries that no vector takes go beside those whose vectors missed them by the largest sums of squares,
    each of which is halved by it."""
    missed = torch.zeros(len(table), dtype=torch.double, device=table.device)
    for first in range(0, len(vectors), _AT_ONCE):
        part = vectors[first:first + _AT_ONCE]
        codes = nearest(part, before)
        squares = (part - before[codes]).double().square().sum(1)
        missed.index_add_(0, codes, squares if weights is None else squares * weights[first:first + _AT_ONCE])
    size = table.shape[1]
    missed, uses = missed.tolist(), counts.tolist()
    heap = [(-squares, entry, _STEP * (squares / (uses[entry] * size))**0.5)
            for entry, squares in enumerate(missed) if squares > 0 and uses[entry]]
    heapq.heapify(heap)
    signs = torch.where(torch.arange(size, device=table.device) % 2 == 0, 1.0, -1.0)
    for entry in (number for number, count in enumerate(uses) if not count):
        if not heap:
            return
        squares, whole, step = heapq.heappop(heap)
        table[entry] = table[whole] + signs * step
        table[whole] -= signs * step
        heapq.heappush(heap, (squares / 2, whole, step / 2))
        heapq.heappush(heap, (squares / 2, entry, step / 2))
