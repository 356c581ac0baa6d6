"""Rows of a step's queries, keys and values as kernels take them: contiguous, and as many as a kernel's batch has."""

from __future__ import annotations

import torch


def first(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` of `rows`, contiguous; undefined from where there are no more."""
    if len(rows) >= count:
        return rows[:count].contiguous()
    out = rows.new_empty(count, *rows.shape[1:])
    out[:len(rows)].copy_(rows)
    return out


class Fused:
    """Takes queries, keys and values apart that are views of one tensor, by one launch instead of one for each.

    count: rows of each part. The places of heads are in device memory from the start: captured graphs read them.
    """

    def __init__(self, count: int, query_heads: int, kv_heads: int, device: torch.device):
        self.count, self.heads = count, (query_heads, kv_heads, kv_heads)
        places, begin = [], 0
        for heads in self.heads:
            places.append(begin + torch.arange(count * heads, dtype=torch.int64, device=device).view(count, heads))
            begin += count * heads
        self._places = torch.cat(places, 1).flatten()  # of each head of each row of the tensor, in the parts

    def parts(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor] | None:
        """The first `count` rows of each, contiguous; undefined from where there are no more. None if they are not what
        one tensor has side by side."""
        given, dim = (query, key, value), query.shape[-1]
        strides, begin = (sum(self.heads) * dim, dim, 1), query.storage_offset()
        for each, heads in zip(given, self.heads):
            if each.stride() != strides or each.storage_offset() != begin:
                return None
            begin += heads * dim
        if len({each.untyped_storage().data_ptr() for each in given}) > 1:
            return None
        units = min(len(query), self.count) * sum(self.heads)
        out = query.new_empty(self.count * sum(self.heads), dim)
        out.index_copy_(0, self._places[:units], query.as_strided((units, dim), (dim, 1)))
        return [each.view(self.count, heads, dim)
                for each, heads in zip(out.split([self.count * heads for heads in self.heads]), self.heads)]
