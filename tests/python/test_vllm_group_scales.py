"""Scales of groups of inputs in vqgen.vllm: a rank's part of a row has the scales of its inputs."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
from vqgen.vllm import _group_scales

FORMS = {"halves": {"vector_size": 8, "index_bits": 8, "group_inputs": 32},
         "halves and minima": {"vector_size": 4, "index_bits": 8, "group_inputs": 64, "group_minima": True},
         "12 bits a block": {"vector_size": 8, "index_bits": 8, "group_inputs": 64, "group_scale_bits": 3},
         "4 bits a block": {"vector_size": 8, "index_bits": 8, "group_inputs": 256, "group_scale_bits": 4},
         "iq2-xxs": "iq2-xxs", "q2-k": "q2-k", "iq1-s": "iq1-s"}
INPUTS = 1536


def numbers(form, words, inputs):
    """What groups have, [rows, groups, their bits as numbers], and what blocks of 256 have, of words as the layout says."""
    bits, groups = form["group_scale_bits"], inputs // form["group_inputs"]
    many = 2 if form["group_minima"] else 1
    packed = -(-groups * bits * many // 32)
    of_groups = reference.unpack(words[:, :packed], groups, bits * many) if bits else np.zeros((len(words), groups, 0))
    blocks = inputs // 256 if bits else groups
    halves = np.ascontiguousarray(words[:, packed:]).view(np.uint16)[:, :blocks * many]
    used = packed + -(-blocks * many // 2)
    assert words.shape[1] == -(-used // 4) * 4
    return of_groups, halves.reshape(len(words), blocks, many)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_a_rank_has_the_scales_of_its_inputs(draw, name, ranks):
    form = {"group_scale_bits": 0, "group_minima": False, **vqgen.format_fields(FORMS[name])}
    many, bits = 2 if form["group_minima"] else 1, form["group_scale_bits"]
    groups, blocks = INPUTS // form["group_inputs"], INPUTS // (256 if bits else form["group_inputs"])
    words = -(-(-(-groups * bits * many // 32) + -(-blocks * many // 2)) // 4) * 4
    whole = draw.integers(0, 1 << 32, (5, words), dtype=np.uint32)
    of_groups, of_blocks = numbers(form, whole, INPUTS)
    own = INPUTS // ranks
    if own % _group_scales.inputs_together(form):
        pytest.skip("the scales of this many inputs are no whole bytes, and an engine refuses to cut them")
    for rank in range(ranks):
        cut = _group_scales.cut(form, torch.from_numpy(whole.view(np.int32)), INPUTS, rank * own, own)
        groups, blocks = numbers(form, cut.numpy().view(np.uint32), own)
        for part, all_of_them in ((groups, of_groups), (blocks, of_blocks)):
            count = part.shape[1]
            assert np.array_equal(part, all_of_them[:, rank * count:(rank + 1) * count])
