"""What codes lose of keys and values: of whole vectors, and by channel (VQKV, section 3.1, figure 2)."""

import warnings

import torch

import vqgen
from vqgen.simulation import held_of

_TOKENS = 1 << 14  # that are encoded at once
_MOST_COMMON = 0.75  # of the squares of keys: more than twice the errors beside what softmax sees
_SIZES = (16, 32, 48, 64, 80, 96)  # of parts


@torch.no_grad()
def reconstruction(layers, states, rotated_first: bool = False) -> dict:
    """The errors of keys and of values: `relative`, the norm of the error over the norm of all, and
    `by_channel`, the mean squared error of each channel [head_dim], a mean over layers, heads and tokens. Keys
    also have `centered`, as `relative` but without the mean over each head's tokens on both sides, which
    softmax does not see, and `common_share`, that mean's share of the squares.

    layers, rotated_first: as of simulation.simulated(); states: of each layer the keys and values
    [kv_heads, tokens, head_dim]."""
    out = {}
    for place, operand in enumerate(("keys", "values")):
        lost = whole = lost_mean = whole_mean = 0.0
        channels, rows = 0, 0
        for (item, tensors), parts in zip(layers, states):
            wrong_sum, part_sum = 0, 0  # [kv_heads, head_dim]
            for part in parts[place].split(_TOKENS, 1):
                part = part.float()
                held = held_of(part[None], item, {name: each.to(part.device) for name, each in tensors.items()},
                               operand, rotated_first and operand == "keys")[0]
                wrong_sum, part_sum = wrong_sum + (held - part).double().sum(1), part_sum + part.double().sum(1)
                wrong = (held - part).double().square()
                lost, whole = lost + float(wrong.sum()), whole + float(part.double().square().sum())
                channels, rows = channels + wrong.sum((0, 1)), rows + wrong.shape[0] * wrong.shape[1]
            lost_mean += float(wrong_sum.square().sum()) / parts[place].shape[1]
            whole_mean += float(part_sum.square().sum()) / parts[place].shape[1]
        out[operand] = {"relative": (lost / whole)**0.5, "by_channel": (channels / rows).tolist()}
        if operand == "keys":
            out[operand] |= {"centered": (max(lost - lost_mean, 0) / max(whole - whole_mean, 1e-300))**0.5,
                             "common_share": whole_mean / whole}
    return out


def common_share(keys) -> float:
    """The share of the squares of keys [kv_heads, tokens, head_dim] that is their mean over the tokens, which
    softmax does not see."""
    mean, whole = keys.mean(1, dtype=torch.float32), keys.float().square().mean(1)
    return float(mean.square().sum() / whole.sum().clamp_min(1e-30))


def warn_of_common(shares, format) -> None:
    """One warning where the common part of some layers' keys dominates, unless zeros or a mean hold it. shares: of each
    layer. format: the format of the keys, None where that is not known."""
    fields = {} if format is None else vqgen.format_fields(format)
    if fields.get("decoder") == "affine" or fields.get("center"):
        return
    layers = [number for number, share in enumerate(shares) if share > _MOST_COMMON]
    if layers:
        most = max(layers, key=lambda number: shares[number])
        warnings.warn(
            f"keys of {len(layers)} layers, most of all layer {most}, are for {100 * shares[most]:.4g} % of their "
            "squares common to all tokens of a head, which softmax does not see but codes are spent on: go by the "
            "centered errors; take int4-kivi-keys, whose zeros hold the common part, or keys with center or klt, whose mean "
            "holds it: vqgen.hf.klt_format(), or calibrate(bits=2.0)", stacklevel=2)


def rope_split(by_channel) -> list[int]:
    """The channels of low frequency, by how well keys are reconstructed. With rotary embeddings in
    halves, channels j and j + head_dim / 2 turn together, and the faster the smaller j is. The pairs from
    some j on are one part, both parts being as wide as some vector_size; of all such j this is the one
    by which the logarithms of the pairs' errors vary least within the parts (summed squares)."""
    half = len(by_channel) // 2
    pairs = torch.tensor(by_channel, dtype=torch.double).view(2, half).sum(0).clamp_min(1e-30).log()

    def spread(first):
        return sum(float((part - part.mean()).square().sum()) for part in (pairs[:first], pairs[first:]))

    firsts = [size // 2 for size in _SIZES if size < 2 * half and 2 * half - size in _SIZES]
    if not firsts:
        raise vqgen.Infeasible(f"{2 * half} channels are no two parts of {_SIZES}")
    first = min(firsts, key=spread)
    return [channel for channel in range(2 * half) if channel % half >= first]
