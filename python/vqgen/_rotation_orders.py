"""The sizes of rows that have a rotation (templates/vq/layout/rotation.h), without PyTorch."""

ORDERS = (1, 12, 20, 28, 36, 52, 60, 108, 140, 156, 172)


def order(features: int) -> int:
    """The order m of the matrix for features m times a power of two from 4 on; 0 if no matrix is known."""
    odd = features // (features & -features)
    found = 1 if odd == 1 else 4 * odd
    return found if found in ORDERS and features % (4 * found) == 0 else 0
