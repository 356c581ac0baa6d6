"""Merges of attention results, on NumPy and the host backend."""

import numpy as np
import pytest

import reference
import vqgen
from vqgen import configs


def test_parts_of_a_sequence_merge_to_the_whole(host, draw):
    parts, heads, dim = 3, 4, 80
    op = host.merge(configs.MergeConfig(configs.MergeShape(20, heads, dim, parts)))
    assert op.name == "attention_merge" and op.bucket(1) == 20 and op.bucket(21) == 0
    for rows in (1, 7, 20):
        query = draw.standard_normal((rows, heads, dim)).astype(np.float16)
        keys, values = draw.standard_normal((2, rows, heads, 30, dim))
        cuts = [slice(0, 12), slice(12, 13), slice(13, 30)]
        results = [reference.attention(query, keys[:, :, cut], values[:, :, cut],
                                       [keys[:, :, cut].shape[2]] * rows) for cut in cuts]
        outs = [out.astype(np.float16) for out, _ in results]
        lses = [lse.astype(np.float32) for _, lse in results]
        out, lse = op(outs, lses)
        expected, expected_lse = reference.attention(query, keys, values, [30] * rows)
        assert out.dtype == np.float16 and reference.worst(out, expected) < 2e-3
        assert np.abs(lse - expected_lse).max() < 1e-3
        # A part without a token, whose memory takes the result.
        outs[1][:], lses[1][:] = np.nan, -np.inf
        expected, expected_lse = reference.merge(outs, lses)
        out, lse = op(outs, lses, out=outs[1], lse=lses[1])
        assert out is outs[1] and reference.worst(outs[1], expected) < 2e-3
        assert np.abs(lses[1] - expected_lse).max() < 1e-3


def test_merges_that_are_none(host):
    op = host.merge({"shape": {"rows": 4, "heads": 2, "head_dim": 64, "parts": 2}})
    outs = [np.zeros((4, 2, 64), np.float16)] * 2
    lses = [np.zeros((4, 2), np.float32)] * 2
    for change, words in [
            (dict(outs=outs[:1]), "'outs' has 1 arrays, and the config 2 parts"),
            (dict(lses=lses * 2), "'lses' has 4 arrays"),
            (dict(lses=[lses[0], lses[0][:3]]), "'lses.1' has 3 rows, and 'out' 4"),
            (dict(outs=[outs[0], None]), "'outs.1' is missing"),
            (dict(outs=[outs[0], outs[0].astype(np.float32)]), "'outs.1' is float32"),
            (dict(outs=[outs[0], np.zeros((4, 2, 72), np.float16)]), "'outs.1' is .*72")]:
        with pytest.raises(vqgen.BadInput, match=words):
            op(**{"outs": outs, "lses": lses, **change})
    with pytest.raises(vqgen.RangeError, match="rows"):
        op([np.zeros((5, 2, 64), np.float16)] * 2, [np.zeros((5, 2), np.float32)] * 2)
    with pytest.raises(vqgen.Infeasible, match="head_dim 12"):
        host.merge({"shape": {"rows": 4, "heads": 2, "head_dim": 12, "parts": 2}})
