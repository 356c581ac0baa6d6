"""What a cache has beside codebooks: the gain of its keys, and the basis that rows are stored in."""

from __future__ import annotations

import math

import torch

import vqgen


def parts_of(form: dict, head_dim: int) -> list:
    """The parts of a format, or the format itself as one with all channels."""
    return form.get("parts") or [{**form, "channels": list(range(head_dim))}]


def groups_of(part: dict) -> int:
    """The channel groups that a part's channels have."""
    return len(part["channels"]) // (part.get("group_channels") or part["vector_size"])


def units_of(part: dict, heads: int) -> int:
    """The codebook sets of a part."""
    scopes = {"tensor": 1, "head": heads, "channel_group": heads * groups_of(part)}
    return scopes[part.get("scope", "tensor")]


def row_words(form: dict, head_dim: int) -> int:
    """32-bit words of a token's codes in one head, without the padding of a layout."""
    codes = lambda part: len(part["channels"]) // part["vector_size"] * part.get("num_codebooks", 1) * part["index_bits"]
    scales = head_dim // (form.get("group_channels") or head_dim) if form.get("token_scales") else 0
    return scales + sum(math.ceil(codes(part) / 32) for part in parts_of(form, head_dim))


def _books_shape(part: dict, heads: int) -> tuple:
    return units_of(part, heads), part.get("num_codebooks", 1), 1 << part["index_bits"], part["vector_size"]


def books_of_parts(parts: list, codebooks, heads: int):
    """(part, codebooks) of each; they are in one array, those of the first part, then those of the
    next."""
    first = 0
    for part in parts:
        shape = _books_shape(part, heads)
        count = math.prod(shape)
        yield part, codebooks.flatten()[first:first + count].view(shape)
        first += count


def scales_of_parts(parts: list, scales, heads: int) -> list:
    """The stage scales [units, stages] of each part, which are in one array as the codebooks are, or Nones."""
    if scales is None:
        return [None] * len(parts)
    shapes = [_books_shape(part, heads)[:2] for part in parts]
    return [own.view(shape) for own, shape in zip(scales.split([math.prod(shape) for shape in shapes]), shapes)]


def with_gain(form: dict, codebooks, scales, gain, heads: int):
    """(codebooks, scales) of a format whose units' entries, or stage scales where it has them, are multiplied by gain
    [units]; of parts the units of the first, then those of the next."""
    parts = form.get("parts", [])
    shapes = [_books_shape(part, heads) for part in parts] or [tuple(codebooks.shape)]
    units = [shape[0] for shape in shapes]
    elements = sum(map(math.prod, shapes))
    if elements != codebooks.numel():
        raise vqgen.BadInput(f"key_codebooks has {codebooks.numel()} elements, and the parts of the keys {elements}; "
                             "calibrate again")
    if sum(units) != len(gain):
        raise vqgen.BadInput(f"key_gain has {len(gain)} units, and the keys have {sum(units)}; calibrate again")
    if scales is not None and parts:
        own = zip(scales_of_parts(parts, scales, heads), gain.split(units))
        return codebooks, torch.cat([(each * part[:, None]).flatten() for each, part in own])
    if scales is not None:
        return codebooks, scales * gain[:, None]
    if not parts:
        return _lengthened(codebooks, gain), None
    books = [own for _, own in books_of_parts(parts, codebooks, heads)]
    return torch.cat([_lengthened(own, part).flatten() for own, part in zip(books, gain.split(units))]), None


def _lengthened(codebooks, gain):
    """Entries [units, ...] times gain [units]."""
    return (codebooks.float() * gain[:, None, None, None]).to(codebooks.dtype)


def require(name: str, mean, rotation) -> None:
    """Refuses a mean that is not finite, and a rotation [kv_heads, head_dim, head_dim] whose columns are not orthogonal
    to 1e-3."""
    if mean is not None and not torch.isfinite(mean).all():
        raise vqgen.BadInput(f"{name}_mean holds NaN or infinity; calibrate again")
    if rotation is None:
        return
    products = rotation.float().mT @ rotation.float()
    off = (products - torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)).abs().amax((-2, -1))
    for head, most in enumerate(off.tolist()):
        if not most <= 1e-3:
            raise vqgen.BadInput(f"{name}_rotation of head {head} is not orthogonal: an inner product of its columns is "
                                 f"off by {most:.2g}, at most 1e-3; calibrate again")
