"""What a quantized cache does to a model, in plain PyTorch and without kernels: keys and values are
rounded to what their codes would stand for, by the definition of a format (docs/reference/config.md), and
attention is computed over them. The reference that accuracy through kernels is held against.
"""

from __future__ import annotations

import contextlib

import torch
from transformers import AttentionInterface, AttentionMaskInterface

import vqgen
from vqgen._attention import require_sight
from vqgen._basis import books_of_parts, groups_of, parts_of, scales_of_parts, units_of
from vqgen._masks import causal_mask
from vqgen._models import attending
from vqgen._nearest import encoded

_MOST_SCORES = 1 << 28


def rotated(rows: torch.Tensor) -> torch.Tensor:
    """Rows [..., n] times the orthonormal Hadamard matrix (VecInfer, equation 5), which is its own inverse: of order n, a
    power of two, or one times 12, 20 or 28."""
    size = rows.shape[-1]
    power = size & -size
    order = 1 if power == size else 4 * (size // power)
    flat, step = rows.reshape(-1, size), 1
    while step < size // order:
        pairs = flat.view(-1, size // (2 * step), 2, step)
        flat = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), 2)
        flat, step = flat.reshape(-1, size), 2 * step
    if order > 1:
        flat = torch.einsum("nar,ab->nbr", flat.view(-1, order, size // order), _paley(order).to(rows)).reshape(-1, size)
    return (flat / size**0.5).view(rows.shape)


def _paley(order: int) -> torch.Tensor:
    """Paley's second Hadamard matrix of order 12, 20 or 28, which is symmetric."""
    q = order // 2 - 1
    if order not in (12, 20, 28):
        raise vqgen.Infeasible(f"there is no Hadamard matrix of {order} times a power of two; use one of 12, 20 or 28 times "
                               "one")
    if q == 9:  # a + 3 b stands for a + b x with x x = -1, of which a and b x alone are squares
        a, b = torch.arange(9) % 3, torch.arange(9) // 3
        square = (a[:, None] == a) | (b[:, None] == b)
    else:
        squares = {root * root % q for root in range(1, q)}
        square = torch.tensor([[(i - j) % q in squares for j in range(q)] for i in range(q)])
    real = torch.float32
    conference = torch.ones(q + 1, q + 1, dtype=real)
    conference[1:, 1:] = square.to(real) * 2 - 1
    conference.fill_diagonal_(0)
    return (torch.kron(conference, torch.tensor([[1, 1], [1, -1]], dtype=real))
            + torch.kron(torch.eye(q + 1, dtype=real), torch.tensor([[1, -1], [-1, -1]], dtype=real)))


def dequantized(rows: torch.Tensor, form: dict, codebooks, scales=None, smooth=None,
                rotated_first: bool = False, mean=None, rotation=None, gain=None):
    """What codes of `rows` stand for, float32. rows: [batch, kv_heads, tokens, head_dim]; the rest as of
    vqgen.torch.VQCache, `form` with all its fields as a bundle has them. Keys take `smooth`. With `rotated_first`
    rows are rotated before all that `form` says, and back at the end, which no kernel does. As vqgen._klt trains
    it, (rows - mean) @ rotation is quantized, for an orthogonal `rotation` [kv_heads, head_dim, head_dim] and a `mean`
    [kv_heads, head_dim], and stands for itself times `gain` [kv_heads, head_dim]. scales of parts are in one
    array, as their codebooks are."""
    if any(each is not None for each in (mean, rotation, gain)):
        rows = rows.float() if mean is None else rows.float() - mean[:, None]
        held = dequantized(rows if rotation is None else rows @ rotation, form, codebooks, scales, smooth, rotated_first)
        held = held if gain is None else held * gain[:, None]
        held = held if rotation is None else held @ rotation.mT
        return held if mean is None else held + mean[:, None]
    if form.get("parts"):
        return _parts(rows, form["parts"], codebooks, scales)
    decoder = form.get("decoder", "table")
    if decoder in ("scalar", "affine", "e4m3"):
        return _scalars(rows.float(), form, codebooks)
    if decoder != "table":
        raise vqgen.Infeasible(f"decoder {decoder} is not simulated")
    batch, heads, tokens, dim = rows.shape
    rows = rotated(rows.float()) if rotated_first else rows.float()
    if smooth is not None:
        rows = rows / smooth[:, None]
    if form.get("hadamard"):
        rows = rotated(rows)
    units, _, _, size = codebooks.shape
    scope = form.get("scope", "tensor")
    groups = dim // (form.get("group_channels") or size) if scope == "channel_group" else 1
    # A unit's sub-vectors, [units, n, size].
    parted = rows.transpose(0, 1).reshape(heads, batch * tokens, groups, dim // groups)
    left = parted.transpose(1, 2).reshape(units, -1, size)
    total = torch.zeros_like(left)
    for unit in range(units):
        entries = codebooks[unit].float()
        if scales is not None:
            entries = entries * scales[unit, :, None, None]
        total[unit] = encoded(left[unit], entries)[1]
    total = total.view(heads, groups, batch * tokens, dim // groups).transpose(1, 2)
    total = total.reshape(heads, batch, tokens, dim).transpose(0, 1)
    if form.get("hadamard"):
        total = rotated(total)
    if smooth is not None:
        total = total * smooth[:, None]
    return rotated(total) if rotated_first else total


def _parts(rows: torch.Tensor, parts: list, codebooks, scales=None):
    """Rounds rows in parts to what their codes would stand for."""
    held, heads = torch.zeros_like(rows, dtype=torch.float32), rows.shape[1]
    of_parts = zip(books_of_parts(parts, codebooks, heads), scales_of_parts(parts, scales, heads))
    for (part, books), own in of_parts:
        held[..., part["channels"]] = dequantized(rows[..., part["channels"]], part, books, own)
    return held


def held_of(rows, item: dict, tensors: dict, name: str, rotated_first: bool = False):
    """dequantized() of the operand `name` of a layer, keys or values."""
    mean, rotation, gain = (tensors.get(f"{name}.{each}") for each in ("mean", "rotation", "gain"))
    if gain is not None and gain.dim() == 1:
        gain = _of_channels(gain, item[name], rows.shape[1], rows.shape[-1])
    return dequantized(rows, item[name], tensors[f"{name}.codebooks"],
                       tensors.get(f"{name}.stage_scales"), tensors.get(f"{name}.smooth"),
                       rotated_first, mean, rotation, gain)


def _of_channels(gain, form: dict, heads: int, head_dim: int):
    """The gain of each head and channel, [heads, head_dim], of the gains of codebook sets."""
    parts = parts_of(form, head_dim)
    out, first = gain.new_empty(heads, head_dim), 0
    for part in parts:
        channels = part["channels"]
        units, groups = units_of(part, heads), groups_of(part)
        own = gain[first:first + units].view(-1, groups if units == heads * groups else 1)
        out[:, channels] = own.repeat_interleave(len(channels) // own.shape[1], 1).expand(heads, -1)
        first += units
    return out


def _scalars(rows: torch.Tensor, form: dict, codebooks):
    """dequantized() of scalar codes: each channel to the nearest number of its scale, and back. Tokens
    of a group that is not full stay as they are."""
    heads, tokens, dim = rows.shape[1:]
    if together := form.get("group_tokens"):
        full = tokens // together * together
        groups = rows[:, :, :full].unflatten(2, (-1, together)).transpose(-1, -2)
        held = _scaled(groups, form, codebooks).transpose(-1, -2).flatten(2, 3)
        return torch.cat((held, rows[:, :, full:]), 2)
    if form.get("token_scales"):
        groups = rows.unflatten(-1, (-1, form.get("group_channels") or dim))
        return _scaled(groups, form, codebooks).flatten(-2)
    units, size = heads if form.get("scope", "tensor") == "tensor" else codebooks.shape[0], form["vector_size"]
    each = codebooks.float().view(-1, 1, size).expand(units, 1, size)
    scales = each.expand(units, heads * dim // (units * size), size).reshape(heads, 1, dim)
    return _rounded(rows / scales, form) * scales


def _scaled(groups: torch.Tensor, form: dict, codebooks):
    """Rounds groups, along the last axis, that have a scale of their own, or also a zero: KIVI's
    formula, both in the element type of the codebooks."""
    if form["decoder"] != "affine":
        largest = groups.abs().amax(-1, keepdim=True)
        peaks = torch.full_like(largest, _peak(form))  # by a plain number PyTorch on a GPU multiplies
        scales = torch.where(largest > 0, largest / peaks, torch.ones_like(largest))
        return _rounded(groups / scales, form) * scales
    most = 2 ** (form["index_bits"] // form["vector_size"]) - 1
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scales = ((high - low) / torch.full_like(low, most)).to(codebooks.dtype).float()
    zeros = low.to(codebooks.dtype).float()
    steps = torch.where(scales > 0, (groups - zeros) / scales, torch.zeros_like(groups))
    return zeros + scales * (steps.clamp(0, most) + 0.5).floor()


def _peak(form: dict) -> int:
    """The largest number of a symmetric format."""
    return 448 if form["decoder"] == "e4m3" else 2 ** (form["index_bits"] // form["vector_size"] - 1) - 1


def _rounded(numbers: torch.Tensor, form: dict):
    numbers = numbers.clamp(-_peak(form), _peak(form))
    if form["decoder"] == "e4m3":
        return numbers.to(torch.float8_e4m3fn).float()
    return (numbers.abs() + 0.5).floor() * numbers.sign()  # ties away from zero


def attention(query, keys, values, raw_keys, raw_values, recent_tokens: int, sinks: int, scaling: float,
              together: int = 1, flush_block: int = 1):
    """Causal attention, float32: each token sees quantized keys and values, but raw ones of the first
    `sinks`, of those that at its time fill no group of `together`, and of the window: itself and the
    recent_tokens - flush_block tokens before it, with the whole of a batch of `flush_block` of which one is
    among these (docs/guides/kv-cache.md). query: [batch, query_heads, tokens, head_dim]; the others
    [batch, kv_heads, tokens, head_dim]."""
    if flush_block > max(recent_tokens, 1):
        raise vqgen.BadInput(f"flush_block is {flush_block}; it is at most recent_tokens, which are {recent_tokens}")
    batch, heads, tokens, _ = query.shape
    group = heads // keys.shape[1]
    if not recent_tokens and not sinks and together == 1:  # nothing is raw
        return torch.nn.functional.scaled_dot_product_attention(
            query.float(), keys.float(), values.float(), is_causal=True, scale=scaling, enable_gqa=group > 1)
    keys, values, raw_keys, raw_values = (each.float().repeat_interleave(group, 1)
                                          for each in (keys, values, raw_keys, raw_values))
    past = torch.arange(tokens, device=query.device)
    parts = []
    for now in past.split(max(1, _MOST_SCORES // (batch * heads * tokens))):
        asking = query[:, :, now].float() * scaling
        seen = now[:, None] + 1
        coded = torch.minimum(seen // together * together,
                              (seen - (recent_tokens - flush_block + 1)) // flush_block * flush_block if recent_tokens else seen)
        raw = (past >= coded) | (past < sinks)
        scores = torch.where(raw, asking @ raw_keys.transpose(2, 3), asking @ keys.transpose(2, 3))
        weights = scores.masked_fill(past >= seen, -torch.inf).softmax(-1)
        parts.append((weights * raw) @ raw_values + (weights * ~raw) @ values)
    return torch.cat(parts, 2)


@contextlib.contextmanager
def simulated(model, layers, *, recent_tokens: int = 0, sinks: int = 0, flush_block: int = 1,
              rotated_first: bool = False):
    """Inside it, the model's forward passes over whole sequences quantize their keys and values.
    layers: (item, tensors) of each, as vqgen.hf.layers_of() reads them from a bundle; with
    `rotated_first`, as vqgen._calibration.layers_rotated_first() makes them. recent_tokens, sinks,
    flush_block: as of vqgen.hf.VQCache."""
    device = model.device
    layers = [(item, {name: tensor.to(device) for name, tensor in tensors.items()})
              for item, tensors in layers]

    def over_codes(number, query, key, value, scaling):
        item, tensors = layers[number]
        held = [held_of(rows, item, tensors, name, rotated_first and name == "keys")
                for name, rows in (("keys", key), ("values", value))]
        together = max(item[name].get("group_tokens", 0) for name in ("keys", "values"))
        return attention(query, *held, key, value, recent_tokens, sinks,
                         query.shape[-1]**-0.5 if scaling is None else scaling, max(together, 1), flush_block)

    with replaced(model, "vqgen_simulated", over_codes):
        yield


@contextlib.contextmanager
def replaced(model, name: str, attend):
    """Inside it, the attention of the model's passes over whole sequences is attend(layer, query, key, value, scaling),
    registered by `name`; all [batch, heads, tokens, head_dim], and scaling a number or None."""
    def function(module, query, key, value, mask, scaling=None, **named):
        if named.get("s_aux") is not None:
            raise vqgen.Infeasible(f"{type(module).__name__}: sink logits (s_aux) are not simulated; calibrate() without bits")
        padding = require_sight(module, mask, named)
        if padding is not None and not padding.all():
            raise vqgen.Infeasible("attention_mask: padding is not simulated; give sequences of equal length")
        out = attend(module.layer_idx, query, key, value, scaling)
        return out.to(query.dtype).transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, causal_mask)
    with attending(model, name):
        yield
