"""Rows of queries, keys and values in vqgen.vllm: views of one tensor are taken apart by one launch."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from vllm_reference import DEVICE
from vqgen.vllm import _rows

HEADS, KV_HEADS, DIM = 6, 2, 16
WIDTHS = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]


def side_by_side(rows):
    """(query, key, value) as views of a fused tensor."""
    whole = torch.randn(rows, sum(WIDTHS), device=DEVICE).half()
    return [each.unflatten(1, (-1, DIM)) for each in whole.split(WIDTHS, 1)]


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("rows", [2, 7, 8, 30])
def test_parts_are_the_rows_of_each(count, rows):
    given = side_by_side(rows)
    parts = _rows.Fused(count, HEADS, KV_HEADS, DEVICE).parts(*given)
    for part, whole in zip(parts, given):
        assert part.is_contiguous() and part.shape == (count, *whole.shape[1:])
        assert torch.equal(part[:rows], whole[:count])
        assert torch.equal(part[:rows], _rows.first(whole, count)[:rows])


def test_what_is_no_fused_tensor_is_not_taken_apart():
    fused, (query, key, value) = _rows.Fused(4, HEADS, KV_HEADS, DEVICE), side_by_side(4)
    assert fused.parts(query, key, value) is not None
    wider = torch.randn(4, sum(WIDTHS) + DIM, device=DEVICE).half()
    for given in ((query, value, key), (query.contiguous(), key, value), (query, key.contiguous(), value),
                  (query, side_by_side(4)[1], value), [each.unflatten(1, (-1, DIM)) for each in wider[:, DIM:].split(WIDTHS, 1)]):
        assert fused.parts(*given) is None
