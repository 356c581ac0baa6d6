"""Codes of weights in the metric of their inputs: GPTQ's error feedback for groups of columns, and passes over the
groups with all others fixed."""

from __future__ import annotations

import torch

_MOST = 1 << 23  # distances that stand in memory at once
_COLUMNS = 128  # whose errors are spread at once


def damped(hessian, share: float):
    """H with `share` of its mean diagonal added, float32; columns whose inputs are always zero get 1."""
    diagonal = hessian.diagonal()
    whole = hessian.clone()
    dead = diagonal == 0
    whole.diagonal()[dead] = diagonal[~dead].mean() if (~dead).any() else 1.0
    whole.diagonal().add_(share * diagonal.mean())
    return whole


def searched(vectors, tables, beam: int):
    """The codes [m, stages] of sums of entries nearest to vectors [m, size], by a beam over the stages of
    tables [stages, codes, size]."""
    stages, count, size = tables.shape
    rows = max(1, _MOST // (count * (min(beam, count) if stages > 1 else 1)))
    halves = tables.square().sum(2) / 2
    out = []
    for part in vectors.split(rows):
        left, codes = part[:, None], None
        for stage in range(stages):
            table = tables[stage]
            costs = torch.addmm(halves[stage], left.flatten(0, 1), table.T, alpha=-1).view(len(part), -1, count)
            if stage:  # what is left of each beam counts too
                costs = costs + left.square().sum(2, keepdim=True) / 2
            width = 1 if stage == stages - 1 else min(beam, costs.shape[1] * count)
            flat = costs.flatten(1)
            chosen = flat.argmin(1, keepdim=True) if width == 1 else flat.topk(width, 1, largest=False).indices
            parents, own = chosen // count, chosen % count
            left = left.gather(1, parents[:, :, None].expand(-1, -1, size)) - table[own]
            codes = own[:, :, None] if codes is None else torch.cat(
                [codes.gather(1, parents[:, :, None].expand(-1, -1, stage)), own[:, :, None]], 2)
        out.append(codes[:, 0])
    return torch.cat(out)


def summed(codes, tables):
    """The vectors [m, size] that codes [m, stages] stand for."""
    first, *others = (tables[stage][codes[:, stage]] for stage in range(len(tables)))
    return sum(others, start=first)


def fed_back(weights, hessian, tables, beam: int, by_activity: bool = True):
    """Codes [out, groups, stages] by GPTQ (Frantar et al., 2022, section 3.3) over groups of columns: a group is
    quantized for all rows, and its error is spread over the groups to come.

    weights: float32 [out, in]; hessian: damped(); tables: scaled entries [stages, codes, size]. With H^-1 = U^T U
    an error e of a group costs |e U_gg^-1|^2, in which the nearest entries are searched, and moves the columns
    behind it by e U_gg^-1 U_g,behind."""
    stages, _, size = tables.shape
    rows, columns = weights.shape
    groups = columns // size
    order = torch.arange(groups, device=weights.device)
    if by_activity:
        order = hessian.diagonal().view(groups, size).mean(1).sort(descending=True, stable=True).indices
    index = (order[:, None] * size + torch.arange(size, device=weights.device)).flatten()
    left = weights[:, index].clone()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian[index][:, index]))
    upper = torch.linalg.cholesky(inverse, upper=True)
    del inverse
    factors = torch.linalg.inv(_blocks(upper, size))
    codes = torch.empty(rows, groups, stages, dtype=torch.long, device=weights.device)
    order = order.tolist()
    step = max(1, _COLUMNS // size) * size
    for first in range(0, columns, step):
        last = min(first + step, columns)
        errors = torch.empty(rows, last - first, device=weights.device, dtype=torch.float32)
        for at in range(first, last, size):
            here = slice(at, at + size)
            factor, own = factors[at // size], left[:, here]
            found = searched(own @ factor, tables @ factor, beam)
            codes[:, order[at // size]] = found
            error = (own - summed(found, tables)) @ factor
            errors[:, at - first:at - first + size] = error
            left[:, at + size:last] -= error @ upper[here, at + size:last]
        left[:, last:] -= errors @ upper[first:last, last:]
    return codes


def improved(weights, hessian, tables, codes, beam: int):
    """Codes after a pass over the groups of columns, each by the least loss with all others fixed (AQLM, section 3.2).
    Arguments are those of fed_back(); `codes` are changed."""
    stages, _, size = tables.shape
    rows, columns = weights.shape
    step = max(1, _COLUMNS // size) * size
    blocks = _blocks(hessian, size)
    factors, inverses = torch.linalg.cholesky(blocks), torch.linalg.inv(blocks)
    error = weights - summed(codes.flatten(0, 1), tables).view(rows, columns)
    for first in range(0, columns, step):
        last = min(first + step, columns)
        pull = error @ hessian[:, first:last]  # E H, kept up to date inside the block
        for at in range(first, last, size):
            here, local = slice(at, at + size), slice(at - first, at - first + size)
            factor, own = factors[at // size], error[:, here]
            # The others ask for the error e - E H_:g H_gg^-1 in this group.
            target = weights[:, here] - own + pull[:, local] @ inverses[at // size]
            found = searched(target @ factor, tables @ factor, beam)
            now = weights[:, here] - summed(found, tables)
            pull += (now - own) @ hessian[here, first:last]
            error[:, here] = now
            codes[:, at // size] = found
    return codes


def _blocks(matrix, size: int):
    """The diagonal blocks of a square matrix, [groups, size, size]."""
    return matrix.unflatten(0, (-1, size)).unflatten(2, (-1, size)).diagonal(dim1=0, dim2=2).movedim(2, 0)


def loss_of(error, hessian) -> float:
    """tr(E H E^T) of errors [out, in]: the squares of what the outputs lose, per token."""
    return float(((error @ hessian) * error).sum(dtype=torch.double))
