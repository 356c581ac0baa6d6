"""New tokens of a cache as kv_append takes them: by powers of two, up to 65,536 at once."""

from __future__ import annotations

import torch

MOST = 65536  # new_tokens of a config (docs/reference/config.md)


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def sizes(tokens: int) -> set[int]:
    """The new_tokens of the kernels that parts() of `tokens` are for."""
    return {power_of_two(min(tokens - first, MOST)) for first in range(0, tokens, MOST)}


def parts(new_keys, new_values, positions, counts):
    """(new_keys, new_values, positions, counts) as of vqgen.torch.VQCache.write(), one after the other, each
    padded to a power of two. A sequence whose position is negative is left alone by all."""
    tokens = new_keys.shape[1]
    for first in range(0, tokens, MOST):
        keys, values = (each[:, first:first + MOST] for each in (new_keys, new_values))
        real, held, at, count = keys.shape[1], power_of_two(keys.shape[1]), positions, counts
        if first:
            at = torch.where(positions < 0, positions, positions + first)
        if counts is not None and tokens > MOST:
            count = (counts - first).clamp(0, real)
        if held != real:
            if count is None:
                count = torch.full_like(positions, real)
            keys, values = (torch.nn.functional.pad(each, (0, 0, 0, 0, 0, held - real)) for each in (keys, values))
        yield keys.contiguous(), values.contiguous(), at, count
