"""How many codes the channels of a KLT cache get: runs of two vector sizes, and shares of layers and operands.

The rotated channels of a row are cut into runs, whose sub-vectors have one 8-bit code each; vqgen._klt.dealt() gives
each code about equally much to say, whatever its run."""

from __future__ import annotations

import math

from vqgen._errors import BadInput

SIZES = 2, 4, 8, 16  # channels of a sub-vector
BITS = 8  # of a code
LEVELS = 12, 16, 20, 24, 32, 40, 48, 64  # codes of a row of 128 channels
# The levels of keys and of values by the bits of a cache, which are their mean. Keys get more, as errors of theirs cost
# more; at 1.5 and 3 bits each has sub-vectors of one size, at most head sizes, which is faster than runs of two.
OF_BITS = {1: (20, 12), 1.5: (32, 16), 2: (32, 32), 3: (64, 32), 4: (64, 64)}
WORD = 4  # codes of a 32-bit word: the codes of a run are stored in whole words
STEP = 16  # channels of a tensor-core step, of which runs are multiples
LANES = 8  # that share a row of values in dataflow int8_mma


def codes_of(level: int, head_dim: int) -> int:
    """The codes of a row of head_dim channels at the bits that `level` codes of 128 channels have, rounded up to
    whole words."""
    return -(-level * head_dim // (128 * WORD)) * WORD


def stored_codes(runs) -> int:
    """The codes that a row of `runs` takes the room of: those of each run fill whole words."""
    return sum(-(-channels // (size * WORD)) * WORD for channels, size in runs)


def runs_of(level: int, head_dim: int) -> list[tuple[int, int]]:
    """The runs [(channels, vector_size), ...] of a row at the bits that `level` codes of 128 channels have, or a word more.

    One or two runs of multiples of STEP channels with the most codes that fit; of those, the vector sizes are the most
    alike. A second run of wide sub-vectors has one word of codes, or as many for each of LANES lanes.

    Raises:
        BadInput: for an unknown level, or a head_dim that is no multiple of STEP.

    Example: runs_of(24, 128) is [(64, 4), (64, 8)], and runs_of(32, 128) is [(128, 4)].
    """
    if level not in LEVELS:
        raise BadInput(f"level is {level}; give one of {', '.join(map(str, LEVELS))} codes of 128 channels")
    if head_dim < STEP or head_dim % STEP:
        raise BadInput(f"head_dim is {head_dim}; KLT caches have a multiple of {STEP}")
    most = codes_of(level, head_dim)
    cuts = [[(head_dim, size)] for size in SIZES]
    cuts += [[(first, narrow), (head_dim - first, wide)] for first in range(STEP, head_dim, STEP)
             for narrow in SIZES for wide in SIZES if narrow < wide]
    fit = [cut for cut in cuts if stored_codes(cut) <= most and (len(cut) == 1 or _shared_by_lanes(*cut[1]))]
    return min(fit, key=lambda cut: (-sum(channels // size for channels, size in cut), cut[-1][1] / cut[0][1]))


def _shared_by_lanes(channels: int, size: int) -> bool:
    codes = stored_codes([(channels, size)])
    return size < 8 or codes == WORD or codes % LANES == 0


def share_out(rises: dict, mean_codes: float, costs: dict | None = None) -> dict:
    """Share codes out among layers and operands by what each costs the loss.

    Rises are taken to add up. The allocation has the least sum of rises of all whose mean is at most `mean_codes`,
    found by dynamic programming; of equal ones, it has the fewest codes. The same arguments give the same result.

    Args:
        rises: {(layer, operand): {codes: rise of the loss}}, measured with that operand of that layer alone
            quantized by so many codes a row.
        mean_codes: the most that the mean over all (layer, operand) may be.
        costs: {(layer, operand): weight} of a code in the mean, whole numbers such as KV heads; 1 without it.

    Returns:
        {(layer, operand): codes}, in the order of `rises`.

    Raises:
        BadInput: if the fewest codes are above the mean, or a rise is not finite.

    Example: share_out({(0, "keys"): {16: .3, 32: .1}, (0, "values"): {16: .02, 32: .01}}, 24)
    is {(0, "keys"): 32, (0, "values"): 16}.
    """
    if not rises or not all(rises.values()):
        raise BadInput("share_out: 'rises' lacks levels; give the rise of the loss at one level at least for each operand")
    costs = {key: 1 if costs is None else costs.get(key) for key in rises}
    for key, cost in costs.items():
        if not isinstance(cost, int) or cost < 1:
            raise BadInput(f"share_out: the cost of {key} is {cost!r}; give a whole number of 1 or more")
        for codes, rise in rises[key].items():
            if not math.isfinite(rise):
                raise BadInput(f"share_out: the rise of {key} at {codes} codes is {rise}; measure a finite loss")
    least = sum(costs[key] * min(levels) for key, levels in rises.items())
    room = math.floor(mean_codes * sum(costs.values()) + 1e-9) - least
    if room < 0:
        raise BadInput(f"share_out: mean_codes is {mean_codes}, and the fewest codes that were measured have a mean of "
                       f"{least / sum(costs.values()):g}; give at least that, or measure fewer codes")
    unit = math.gcd(*(costs[key] * (codes - min(levels)) for key, levels in rises.items() for codes in levels)) or 1
    room //= unit
    total = [0.0] * (room + 1)  # the least sum of rises by the room that is used at most
    picks = []
    for key, levels in rises.items():
        steps = sorted((costs[key] * (codes - min(levels)) // unit, rise, codes) for codes, rise in levels.items())
        rows = [min((total[at - step] + rise, step, codes) for step, rise, codes in steps if step <= at)
                for at in range(room + 1)]
        total = [row[0] for row in rows]
        picks.append([row[1:] for row in rows])
    chosen, at = {}, room
    for key, row in zip(reversed(rises), reversed(picks)):
        step, chosen[key] = row[at]
        at -= step
    return {key: chosen[key] for key in rises}
