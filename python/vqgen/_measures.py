"""What was lost on the way through a format and back."""

from typing import NamedTuple

from vqgen import _core


class ScalarErrors(NamedTuple):
    """What a matrix lost on its way through int8 and back."""

    l2: float  # root of the summed squares of the differences
    largest: float  # difference in magnitude
    mean_score: float  # mean over tokens and queries of |q.x - q.x'|


def scalar_errors(original, restored, queries=None) -> ScalarErrors:
    """original, restored: [tokens, channels], queries: [queries, channels], without which mean_score
    is 0; all float32, contiguous, in the CPU's memory."""
    return ScalarErrors(*_core.scalar_errors(original, restored, queries))
