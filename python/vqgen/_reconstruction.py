"""What codes lose of keys and values: of whole vectors, and by channel (VQKV, section 3.1, figure 2)."""

import torch

import vqgen
from vqgen.simulation import held_of

_TOKENS = 1 << 14  # that are encoded at once
_SIZES = (16, 32, 48, 64, 80, 96)  # of parts


@torch.no_grad()
def reconstruction(layers, states, rotated_first: bool = False) -> dict:
    """Of keys and of values: `relative`, the norm of the error over the norm of all, and `by_channel`,
    the mean squared error of each channel [head_dim], a mean over layers, heads and tokens.

    layers, rotated_first: as of simulation.simulated(); states: of each layer the keys and values
    [kv_heads, tokens, head_dim]."""
    out = {}
    for place, operand in enumerate(("keys", "values")):
        lost = whole = 0.0
        channels, rows = 0, 0
        for (item, tensors), parts in zip(layers, states):
            for part in parts[place].split(_TOKENS, 1):
                part = part.float()
                held = held_of(part[None], item, {name: each.to(part.device) for name, each in tensors.items()},
                               operand, rotated_first and operand == "keys")[0]
                wrong = (held - part).double().square()
                lost, whole = lost + float(wrong.sum()), whole + float(part.double().square().sum())
                channels, rows = channels + wrong.sum((0, 1)), rows + wrong.shape[0] * wrong.shape[1]
        out[operand] = {"relative": (lost / whole)**0.5, "by_channel": (channels / rows).tolist()}
    return out


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
