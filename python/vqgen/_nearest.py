"""The nearest entries of vectors, by blocks of distances, so that memory is bounded (VQKV, section
3.3)."""

import torch

_MOST_DISTANCES = 1 << 23  # that stand in memory at once, which a GPU's second-level cache holds


def nearest(vectors: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """The number of the nearest of entries [n, size] for each of vectors [m, size]."""
    bias = entries.square().sum(1) / 2
    rows = max(1, _MOST_DISTANCES // len(entries))
    return torch.cat([torch.addmm(bias, part, entries.T, alpha=-1).argmin(1)
                      for part in vectors.split(rows)])


def encoded(vectors: torch.Tensor, tables: torch.Tensor):
    """Greedy residual quantization (VQKV, equations 1 to 3): the nearest entry of the first stage, then
    of the next one for what is left. vectors: [m, size]; tables: [stages, entries, size]. Returns
    codes [m, stages] and the sums of their entries, [m, size]."""
    total, codes = torch.zeros_like(vectors), []
    for table in tables:
        codes.append(nearest(vectors - total, table))
        total += table[codes[-1]]
    return torch.stack(codes, 1), total
