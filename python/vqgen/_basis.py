"""What a cache has beside codebooks: the gain of its keys, and the basis that rows are stored in."""

from __future__ import annotations

import torch

import vqgen


def with_gain(form: dict, codebooks, scales, gain):
    """(codebooks, scales) of a format whose units' entries, or stage scales where it has them, are multiplied by gain
    [units]; of parts the units of the first, then those of the next."""
    if scales is not None:
        return codebooks, scales * gain[:, None]
    if "parts" not in form:
        return (codebooks.float() * gain[:, None, None, None]).to(codebooks.dtype), None
    flat, first, factors = codebooks.flatten(), 0, []
    sizes = [part.get("num_codebooks", 1) * (1 << part["index_bits"]) * part["vector_size"] for part in form["parts"]]
    units = len(gain) // len(sizes)  # of a part: all have one scope
    for number, size in enumerate(sizes):
        factors.append(gain[number * units:(number + 1) * units].repeat_interleave(size))
        first += units * size
    if first != len(flat):
        raise vqgen.BadInput(f"key_gain has {len(gain)} units, and the parts of the keys others; calibrate again")
    return (flat.float() * torch.cat(factors)).to(codebooks.dtype), None


def require(name: str, mean, rotation) -> None:
    """Refuses a mean that is not finite, and a rotation [kv_heads, head_dim, head_dim] whose columns are not orthogonal
    to 1e-3."""
    if mean is not None and not torch.isfinite(mean).all():
        raise vqgen.BadInput(f"{name}_mean holds NaN or infinity; calibrate again")
    if rotation is None:
        return
    products = rotation.float().mT @ rotation.float()
    off = (products - torch.eye(products.shape[-1], device=products.device)).abs().amax((-2, -1))
    for head, most in enumerate(off.tolist()):
        if not most <= 1e-3:
            raise vqgen.BadInput(f"{name}_rotation of head {head} is not orthogonal: an inner product of its columns is "
                                 f"off by {most:.2g}, at most 1e-3; calibrate again")
