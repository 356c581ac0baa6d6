"""RSimVQ by gradients (VQKV, section 3.1): residual stages, each of entries q and a projection W.

An entry stands for W q, so a step that changes W moves all entries of its stage, used or not. Vectors
and entries are held at a root mean square of 1 while they are trained, stage by stage, so that one
learning rate serves all units and stages.
"""

from __future__ import annotations

import typing

import torch

from vqgen._errors import BadInput
from vqgen._kmeans import ELEMENTS, generator_of
from vqgen._nearest import encoded, nearest

_CHECKS = 10  # of the error, in a training
_SAMPLE = 1 << 14  # vectors by which entries are sized and a training is judged,
_JUDGED = 16  # or so many for each entry
_APART = 0.05  # of what vectors are missed by: between an entry and one that is put beside it


class Options(typing.NamedTuple):
    """The options of vqgen.train_rsimvq()."""

    dtype: str
    seed: int
    steps: int
    batch: int
    learning_rate: float
    beta: float
    gamma: float
    train_entries: bool


class Stages(torch.nn.Module):
    """entries: [stages, entries, size], at a root mean square of about 1; projections: [stages, size,
    size], the unit matrix at first; scales: [stages], which give the entries their size and are
    fixed."""

    def __init__(self, entries, scales):
        super().__init__()
        stages, _, size = entries.shape
        self.entries = torch.nn.Parameter(entries)
        self.projections = torch.nn.Parameter(
            torch.eye(size, dtype=entries.dtype, device=entries.device).repeat(stages, 1, 1))
        self.register_buffer("scales", scales)

    def tables(self):
        """What the entries stand for: scale * W q, [stages, entries, size]."""
        return self.scales[:, None, None] * (self.entries @ self.projections.transpose(1, 2))


def gradient(vectors, tables, beta: float, gamma: float):
    """The gradient of the loss of equation 4, summed over channels and stages, a mean over vectors [m, size], by the
    tables.

    Codes are constants of the gradient: it passes the choice of an entry straight through. With r
    the vector that a stage meets and e the entry it takes, the terms are |x - sum of e|^2,
    beta |e - sg(r)|^2 and gamma |r - sg(e)|^2, where r depends on the entries of the stages before.
    (The paper prints the last one without a square, and x for r.) So an entry's gradient is -2 times
    what all stages leave, beta times what its own leaves and gamma times what later ones leave."""
    codes, left = [], [vectors]
    for table in tables:
        codes.append(nearest(left[-1], table))
        left.append(left[-1] - table[codes[-1]])
    sums, later = torch.zeros_like(tables), left[-1].clone()
    for stage in reversed(range(len(tables))):
        sums[stage].index_add_(0, codes[stage], torch.add(later, left[stage + 1], alpha=beta))
        later.add_(left[stage + 1], alpha=gamma)
    return sums * (-2 / len(vectors))


def trained(vectors, options: Options, start, shape, scales, progress=None, judges=None):
    """Tables [units, stages, entries, size] of the element type, and their scales or None.

    vectors: float32 [units, n, size] on the device that trains; shape: of the tables; start: tables
    and scales of k-means, or None for entries drawn at random; scales: whether the format has them;
    judges: as vectors, by which steps are judged, or None for the vectors themselves.
    """
    units, stages = shape[:2]
    tables = torch.empty(shape, dtype=ELEMENTS[options.dtype])
    of_stages = torch.ones(units, stages, dtype=torch.float32)
    for unit in range(units):
        draw = generator_of(options.seed, unit)
        own, size = _normalized(vectors[unit])
        begin = None
        if start is not None:
            begin = start.codebooks[unit].to(own.device, torch.float32)
            if start.scales is not None:
                begin = begin * start.scales[unit].to(own.device)[:, None, None]
            begin = begin / size
        module = _started(own, begin, shape[2], stages, draw)
        if scales:  # those of the start, so that its entries stay what they are
            given = start is not None and start.scales is not None
            of_stages[unit] = start.scales[unit] if given else (module.scales * size).cpu()
        held = _Held(size, of_stages[unit].to(own.device), options.dtype)
        judge = None if judges is None else judges[unit] / size
        best = _fitted(own, module, begin, held, options, draw, unit, progress, judge)
        if not torch.isfinite(best).all():
            raise BadInput(f"an entry does not fit {options.dtype}; take bf16, or a format with "
                           "stage_scales")
        tables[unit] = best.cpu()
    return tables, of_stages if scales else None


class _Held:
    """Tables as kernels hold them: of the element type, divided by the scales of the stages."""

    def __init__(self, size, scales, dtype):
        self.factor, self.dtype = (size / scales)[:, None, None], ELEMENTS[dtype]

    def stored(self, tables):
        return (tables * self.factor).to(self.dtype)

    def read(self, stored):
        return stored.float() / self.factor


def _normalized(vectors):
    """At a root mean square of 1, and what it was."""
    size = vectors.double().square().mean().sqrt().float()
    size = size if size > 0 else torch.ones_like(size)
    return vectors / size, size


def _started(vectors, begin, entries: int, stages: int, draw):
    """Stages of the tables `begin`, at the size of the entries that vectors take; or drawn at random. A
    random code is best if its entries have the variance 1 - 2^(-2 R) of what they meet, R being its
    bits a channel; so large they are drawn, stage by stage."""
    count, size = vectors.shape
    left = vectors[torch.randperm(count, generator=draw)[:_SAMPLE].to(vectors.device)]
    if begin is not None:
        codes, _ = encoded(left, begin)
        scales = torch.stack([table[taken].square().mean().sqrt() for table, taken in zip(begin, codes.T)])
        scales = torch.where(scales > 0, scales, torch.ones_like(scales))
        return Stages(begin / scales[:, None, None], scales)
    drawn = torch.randn(stages, entries, size, generator=draw, dtype=torch.float32).to(vectors.device)
    share = (1 - entries**(-2 / size))**0.5
    scales = []
    for table in drawn:
        scales.append(left.square().mean().sqrt() * share)
        left = left - (table * scales[-1])[nearest(left, table * scales[-1])]
    return Stages(drawn, torch.stack(scales).clamp_min(1e-20))


@torch.no_grad()
def _error(vectors, tables):
    """The mean squared error a channel of the vectors, and the codes."""
    codes, total = encoded(vectors, tables)
    return float((vectors - total).double().square().mean()), codes


def _fitted(vectors, module, begin, held, options, draw, unit, progress, judge):
    """The stored tables of the least error among those of the start and of some steps of the training, as a
    sample of the vectors tells; the start's, where it was given and all vectors prefer it. With `judge`,
    vectors of another text, these tell instead, and alone."""
    judged = max(_SAMPLE, _JUDGED * module.entries.shape[1])
    sample = vectors
    if judged < len(vectors):
        sample = vectors[torch.randperm(len(vectors), generator=draw)[:judged].to(vectors.device)]
    best, least = None, float("inf")

    def check(step, tables):
        nonlocal best, least
        stored = held.stored(tables)
        error, codes = _error(sample if judge is None else judge, held.read(stored))
        if best is None or error < least:
            best, least = stored, error
        if progress is not None:
            progress(unit, step, error)
        return codes

    check(0, module.tables().detach() if begin is None else begin)
    first = best
    parameters = [module.projections] + [module.entries] * options.train_entries
    optimizer = torch.optim.Adam(parameters, lr=options.learning_rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(options.steps, 1))
    order, every = torch.empty(0, dtype=torch.long), max(1, options.steps // _CHECKS)
    for step in range(1, options.steps + 1):
        if len(order) < min(options.batch, len(vectors)):
            order = torch.randperm(len(vectors), generator=draw)
        rows, order = order[:options.batch], order[options.batch:]
        tables = module.tables()
        optimizer.zero_grad()
        tables.backward(gradient(vectors[rows.to(vectors.device)], tables.detach(), options.beta, options.gamma))
        optimizer.step()
        decay.step()
        if step % every == 0 or step == options.steps:
            codes = check(step, module.tables().detach())
            if options.train_entries and step < options.steps:
                if judge is not None:
                    codes = _error(sample, module.tables())[1]
                _revive(sample, module, codes, draw)
    if begin is None or best is first or sample is vectors or judge is not None:
        return best
    return min(first, best, key=lambda stored: _error(vectors, held.read(stored))[0])


@torch.no_grad()
def _revive(vectors, module, codes, draw) -> None:
    """Entries that no vector takes go beside those whose vectors miss them by the largest sums of
    squares, as in k-means (docs/guides/quantize.md)."""
    left, tables = vectors, module.tables()
    for stage, table in enumerate(tables):
        own = codes[:, stage]
        left = left - table[own]
        uses = torch.bincount(own, minlength=len(table))
        dead = (uses == 0).nonzero()[:, 0]
        if len(dead) == 0:
            continue
        missed = torch.zeros(len(table), dtype=left.dtype, device=left.device).index_add_(0, own, left.square().sum(1))
        beside = missed.topk(min(len(dead), int((uses > 0).sum()))).indices
        dead = dead[:len(beside)]
        apart = torch.randn(len(dead), table.shape[1], generator=draw, dtype=torch.float32).to(left.device)
        apart *= _APART * left.square().mean().sqrt() / module.scales[stage]
        module.entries[stage, dead] = module.entries[stage, beside] + apart
