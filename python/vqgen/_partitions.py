"""How many codes the channels of a KLT cache get: partitions by variance, and shares of layers and operands.

Channels of rotated rows, in falling order of variance, are cut into runs whose sub-vectors get wider as the variance
falls; each sub-vector has one 8-bit code."""

from __future__ import annotations

import functools
import math

from vqgen._errors import BadInput

SIZES = 2, 4, 8, 16  # channels of a sub-vector
BITS = 8  # of a code
MOST_RUNS = 4  # the parts of a format
LEVELS = 12, 16, 20, 24, 32, 40, 48, 64  # codes of a row of 128 channels that partitions are shipped for
WORD = 4  # codes of a 32-bit word: the codes of a run are stored in whole words
STEP = 16  # channels of a tensor-core step, of which the runs of shipped partitions are multiples
_LEAST = 1e-6  # variance of a channel, of their mean: null spaces have a logarithm too


def partition(spectra, codes: int, head_dim: int, sizes=SIZES, *, step: int = 1, word: int = 1) -> list[tuple[int, int]]:
    """Cut `head_dim` channels into runs [(channels, vector_size), ...], in falling order of variance.

    Reverse water-filling: a sub-vector of d channels is expected to lose d times the geometric mean of its variances
    times 2^(-2 * 8 / d). Dynamic programming finds the least sum over all spectra. There are at most 4 runs and at
    most `codes` sub-vectors, vector sizes do not fall, and a run's channels are a multiple of its vector size and of
    `step`; each run counts as many codes as its words have. More than head_dim / min(sizes) codes are not used.

    Args:
        spectra: lists of head_dim variances each, falling; each counts in units of its mean.
        codes: 8-bit codes of a row, at least head_dim / max(sizes).
        head_dim: channels.
        sizes: the vector sizes that a run may have, rising.
        step: channels that each run is a multiple of.
        word: codes of a word, in whole ones of which a run is stored.

    Raises:
        BadInput: if no partition has so few codes, or a spectrum is not head_dim numbers that are 0 or more.

    Example: partition([[4.0, 4.0, 1.0, 1.0, 1.0, 1.0]], 2, 6) is [(2, 2), (4, 4)].
    """
    logs = [_sums_of_logs(spectrum, head_dim) for spectrum in spectra]
    if not logs:
        raise BadInput("partition: 'spectra' is empty; give the variances of one head at least")
    best = {(0, 0, 0): (0.0, ())}  # (channels, codes, runs) that are taken: expected loss and runs
    for size in sizes:
        weight = size * 2.0 ** (-2 * BITS / size)
        loss = [sum(weight * 2 ** ((each[at + size] - each[at]) / size) for each in logs)
                for at in range(head_dim - size + 1)]
        before = sorted(best.items())
        for (start, used, runs), (lost, chosen) in before:
            if start % size or runs == MOST_RUNS:
                continue
            at, taken = start, used
            while at + size <= head_dim and taken < codes:
                lost, at, taken = lost + loss[at], at + size, taken + 1
                state = at, used + -(-(taken - used) // word) * word, runs + 1
                if state[1] > codes:
                    break
                if (at - start) % step == 0 and (state not in best or lost < best[state][0]):
                    best[state] = lost, (*chosen, (at - start, size))
    ends = [found for (at, _, _), found in sorted(best.items()) if at == head_dim]
    if not ends:
        steps = f" and runs of multiples of {step} channels" * (step > 1) + f" in words of {word} codes" * (word > 1)
        raise BadInput(f"partition: codes is {codes}, too few for head_dim {head_dim} with sub-vectors of at most "
                       f"{max(sizes)} channels{steps}; give at least {-(-head_dim // max(sizes))}, "
                       f"and a head_dim that is a multiple of {math.lcm(min(sizes), step)}")
    return list(min(ends, key=lambda end: end[0])[1])


def _sums_of_logs(spectrum, head_dim: int) -> list[float]:
    """The sums of the binary logarithms of the first 0 to head_dim variances, in units of their mean."""
    spectrum = [float(each) for each in spectrum]
    if len(spectrum) != head_dim or not all(0 <= each < math.inf for each in spectrum):
        raise BadInput(f"partition: a spectrum of {len(spectrum)} numbers does not suit head_dim {head_dim}; give "
                       f"{head_dim} variances, finite and 0 or more")
    mean = sum(spectrum) / head_dim or 1.0
    sums = [0.0]
    for each in spectrum:
        sums.append(sums[-1] + math.log2(max(each / mean, _LEAST)))
    return sums


def resampled(spectrum, head_dim: int) -> list[float]:
    """A spectrum for another head size: log-variance interpolated over the channel's relative place."""
    last = len(spectrum) - 1
    mean = sum(spectrum) / len(spectrum)
    logs = [math.log2(max(each / mean, _LEAST)) for each in spectrum]
    out = []
    for channel in range(head_dim):
        place = min(max((channel + 0.5) / head_dim * len(logs) - 0.5, 0.0), last)
        low = min(int(place), last - 1)
        out.append(2 ** (logs[low] + (place - low) * (logs[low + 1] - logs[low])))
    return out


def codes_of(level: int, head_dim: int) -> int:
    """The codes of a row of head_dim channels at the bits that `level` codes of 128 channels have, rounded up to
    whole words."""
    return -(-level * head_dim // (128 * WORD)) * WORD


def stored_codes(runs) -> int:
    """The codes that a row of the partition `runs` takes the room of: those of each run fill whole words."""
    return sum(-(-channels // (size * WORD)) * WORD for channels, size in runs)


def shipped(operand: str, level: int, head_dim: int) -> list[tuple[int, int]]:
    """The shipped partition of "keys" or "values" at the bits that `level` codes of 128 channels have, or a word more.

    Raises:
        BadInput: for a level or a head size without one; partition() makes one of measured spectra.
    """
    table = _shipped(operand)
    if head_dim not in table:
        raise BadInput(f"head_dim is {head_dim}; partitions are shipped for {', '.join(map(str, table))}: "
                       "make one by partition()")
    if level not in LEVELS:
        raise BadInput(f"level is {level}; partitions are shipped for {', '.join(map(str, LEVELS))} codes of 128 "
                       "channels: make one by partition()")
    return table[head_dim][LEVELS.index(level)]


@functools.cache
def _shipped(operand: str) -> dict[int, list[list[tuple[int, int]]]]:
    return {head_dim: [[tuple(map(int, run.split("x"))) for run in each.split()] for each in text.split(",")]
            for head_dim, text in SHIPPED[operand].items()}


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


# The partitions by head size, at the bits of LEVELS. scripts/klt_partitions.py made them of tinycode's spectra, with
# runs of multiples of STEP channels in whole words. At 12, 32 and 48 codes of 128 channels both operands have the same
# few runs, whose codes lanes share evenly in dataflow int8_mma.
SHIPPED: dict[str, dict[int, str]] = {
    "keys": {
        64: "16x4 48x16, 16x4 48x16, 32x4 32x8, 32x4 32x8, "
            "16x2 16x4 32x8, 16x2 48x4, 32x2 32x4, 64x2",
        80: "16x4 64x16, 32x4 48x16, 48x4 32x8, 48x4 32x8, "
            "16x2 32x4 32x8, 32x2 48x4, 48x2 32x4, 80x2",
        96: "32x4 64x16, 32x4 64x16, 32x4 64x8, 16x2 16x4 64x8, "
            "16x2 48x4 32x8, 32x2 64x4, 48x2 48x4, 96x2",
        112: "16x4 32x8 64x16, 48x4 64x16, 16x2 32x4 64x16, 16x2 32x4 64x8, "
             "16x2 64x4 32x8, 48x2 32x4 32x8, 64x2 48x4, 112x2",
        128: "64x8 64x16, 32x4 32x8 64x16, 64x4 64x16, 16x2 48x4 64x16, "
             "32x2 32x4 64x8, 48x2 48x4 32x8, 64x2 64x4, 128x2",
        192: "32x4 32x8 128x16, 32x4 96x8 64x16, 16x2 48x4 64x8 64x16, 16x2 80x4 32x8 64x16, "
             "32x2 96x4 64x8, 64x2 96x4 32x8, 96x2 96x4, 192x2",
        256: "32x4 32x8 192x16, 64x4 64x8 128x16, 16x2 80x4 32x8 128x16, 16x2 112x4 64x8 64x16, "
             "48x2 112x4 96x8, 96x2 96x4 64x8, 128x2 128x4, 256x2",
    },
    "values": {
        64: "16x4 48x16, 16x4 48x16, 32x4 32x8, 32x4 32x8, "
            "16x2 16x4 32x8, 32x2 32x8, 32x2 32x4, 64x2",
        80: "16x4 64x16, 32x4 48x16, 16x2 16x4 48x16, 16x2 16x4 48x16, "
            "16x2 32x4 32x8, 32x2 48x4, 48x2 32x4, 80x2",
        96: "32x4 64x16, 32x4 64x16, 16x2 16x4 64x16, 16x2 32x4 48x16, "
            "16x2 48x4 32x8, 48x2 16x4 32x8, 48x2 48x4, 96x2",
        112: "16x4 32x8 64x16, 48x4 64x16, 16x2 32x4 64x16, 16x2 48x4 48x16, "
             "32x2 32x4 48x16, 48x2 32x4 32x8, 64x2 48x4, 112x2",
        128: "64x8 64x16, 32x4 32x8 64x16, 16x2 16x4 32x8 64x16, 16x2 48x4 64x16, "
             "32x2 32x4 64x8, 48x2 48x4 32x8, 64x2 64x4, 128x2",
        192: "32x4 32x8 128x16, 64x4 128x16, 16x2 48x4 64x8 64x16, 16x2 80x4 32x8 64x16, "
             "48x2 80x4 64x16, 80x2 48x4 64x8, 112x2 48x4 32x8, 192x2",
        256: "32x4 32x8 192x16, 64x4 64x8 128x16, 16x2 80x4 32x8 128x16, 32x2 96x4 128x16, "
             "64x2 96x4 32x8 64x16, 112x2 80x4 64x16, 144x2 80x4 32x8, 256x2",
    },
}
