"""Rotations of whole rows around rotated weights (templates/vq/layout/rotation.h has the matrices)."""

from __future__ import annotations

import functools
import math

import torch

from vqgen._errors import BadInput

_PALEY, _PALEY_TWICE = (12, 20, 60, 108, 140), (28, 36)
# The first rows of Williamson's four circulants: bit k is set where element k is -1.
_WILLIAMSON = {52: (0x161a, 0x1c0e, 0xb34, 0x1ede),
               156: (0x1afb3cdf58, 0xecf5af370, 0x1975bdae98, 0x72be247d4e),
               172: (0x730a26450ce, 0x207ac935e04, 0x14d42f42b28, 0x385b3fcda1c)}
ORDERS = (1, *sorted((*_PALEY, *_PALEY_TWICE, *_WILLIAMSON)))


def order(features: int) -> int:
    """The order m of the matrix for features m times a power of two; 0 if no matrix is known."""
    odd = features // (features & -features)
    found = 1 if odd == 1 else 4 * odd
    return found if found in ORDERS and features % found == 0 else 0


def _circulant(row):
    return torch.stack([row.roll(shift) for shift in range(len(row))])


def _squares(q):
    """1 if a number is a square modulo q, 0 if it is 0, else -1."""
    signs = torch.full((q,), -1.0, dtype=torch.float32, device="cpu")
    signs[[root * root % q for root in range(1, q)]] = 1
    signs[0] = 0
    return signs


@functools.lru_cache(maxsize=None)
def matrix(size: int) -> torch.Tensor:
    """The Hadamard matrix of such an order, float32, on the CPU: +1 and -1."""
    if size in _PALEY:
        out = torch.full((size, size), -1.0, dtype=torch.float32, device="cpu")
        out[:, 0] = 1
        core = -_squares(size - 1)
        core[0] = 1
        out[1:, 1:] = _circulant(core)
        return out
    if size in _PALEY_TWICE:
        half = size // 2
        core = torch.ones(half, half, dtype=torch.float32, device="cpu")
        core[1:, 1:] = _circulant(_squares(half - 1))
        core[0, 0] = 0
        one = torch.eye(half, dtype=torch.float32, device="cpu")
        return torch.cat([torch.cat([core + one, core - one], 1), torch.cat([core - one, -core - one], 1)])
    if size in _WILLIAMSON:
        places = torch.arange(size // 4, device="cpu")
        a, b, c, d = (_circulant(1 - 2 * (torch.tensor(bits, device="cpu") >> places & 1).float())
                      for bits in _WILLIAMSON[size])
        return torch.cat([torch.cat(row, 1) for row in ((a, b, c, d), (-b, a, -d, c), (-c, d, a, -b), (-d, -c, b, a))])
    signs = torch.ones(1, 1, dtype=torch.float32, device="cpu")
    while len(signs) < size:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return signs


@functools.lru_cache(maxsize=None)
def _factors(features: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The Kronecker factors of the matrix over the root of `features`, on the device."""
    first = order(features)
    high, low = (1 << bits for bits in _halves((features // first).bit_length() - 1))
    return ((matrix(first) / math.sqrt(features)).to(device), matrix(high).to(device), matrix(low).to(device))


def _halves(bits):
    return bits - bits // 2, bits // 2


def rotate(x: torch.Tensor, signs: torch.Tensor, back: bool) -> torch.Tensor:
    """H^T (signs o x) of rows x [n, features], or with `back` signs o H x. In fp32, rounded once to the dtype of x."""
    features = x.shape[1] if x.dim() == 2 else 0
    if not features or not order(features):
        raise BadInput(f"x is {list(x.shape)}; it is rows of {', '.join(map(str, ORDERS))} features, times a power of two")
    if signs.shape != (features,) or signs.dtype != torch.float32 or signs.device != x.device:
        raise BadInput(f"signs are {signs.dtype} {list(signs.shape)} on {signs.device}; they are float32 [{features}] on "
                       f"{x.device}")
    first, high, low = _factors(features, x.device)
    rows = x.float() if back else x.float() * signs
    rows = rows.view(len(x) * len(first), len(high), len(low)) @ low
    rows = (high @ rows).view(len(x), len(first), len(high) * len(low))
    rows = ((first if back else first.T) @ rows).view(x.shape)
    return (rows * signs if back else rows).to(x.dtype)
