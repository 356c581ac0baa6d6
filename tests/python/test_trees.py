"""Drafts in a tree, on NumPy and the host backend, against plain references."""

import numpy as np
import pytest

import reference
import vqgen
from test_ops import random_cache
from vqgen import configs


def tree_of(draw, drafts):
    """Masks of drafts with random parents, int64, and lists of ancestors with the draft itself."""
    paths = []
    for draft in range(drafts):
        parent = int(draw.integers(-1, draft)) if draft else -1
        paths.append((paths[parent] if parent >= 0 else []) + [draft])
    return np.array([sum(1 << each for each in path) for path in paths], np.uint64).view(np.int64), paths


def test_drafts_in_a_tree(host, draw):
    batch, kv_heads, dim, drafts = 2, 2, 64, 64
    form = configs.Format(4, 6)
    op = host.attention(configs.AttentionConfig(
        configs.AttentionShape(batch, 4, kv_heads, dim, 128, query_tokens=drafts, tree_mask=True), form, form))
    assert next(each for each in op.arguments if each.name == "tree_mask").dtype == "i64"
    caches = [random_cache(draw, batch, kv_heads, 128, dim, 4, 6) for _ in range(2)]
    lengths, counts = np.array([21, 40], np.int32), [drafts, 3]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    query = draw.standard_normal((starts[-1], 4, dim)).astype(np.float16)
    fresh = draw.standard_normal((2, starts[-1], kv_heads, dim)).astype(np.float16)
    masks, paths = zip(*(tree_of(draw, count) for count in counts))
    mask = np.concatenate(masks)
    call = dict(query_start=starts, new_keys=fresh[0], new_values=fresh[1])
    out, lse = op(query, *caches, lengths, **call, tree_mask=mask, return_lse=True)
    rows = [reference.decoded(each.codes, each.codebooks, dim, 6) for each in caches]
    for b, path in ((b, path) for b in range(batch) for path in paths[b]):
        whole = [np.concatenate([each[b, :, :lengths[b]], new[starts[b] + np.array(path)].swapaxes(0, 1)], 1)[None]
                 for each, new in zip(rows, fresh)]
        expected, expected_lse = reference.attention(query[starts[b] + path[-1]][None], *whole, [whole[0].shape[2]])
        assert reference.worst(out[starts[b] + path[-1]], expected[0]) < 4e-3, (b, path)
        assert np.abs(lse[starts[b] + path[-1]] - expected_lse[0]).max() < 2e-2, (b, path)
    with pytest.raises(vqgen.BadInput, match="'tree_mask' is missing"):
        op(query, *caches, lengths, **call)
    with pytest.raises(vqgen.BadInput, match="tree_mask"):
        op(query, *caches, lengths, **call, tree_mask=mask.astype(np.int32))
    with pytest.raises(vqgen.BadInput, match="new_keys and new_values are null, and tree_mask"):
        op(query, *caches, lengths, query_start=starts, tree_mask=mask)
    with pytest.raises(vqgen.BadInput, match=r"tree_mask\[2\] is 0x8, and bit 2 is not set, of draft 2 of sequence 0"):
        op(query, *caches, lengths, **call, tree_mask=np.where(np.arange(len(mask)) == 2, 8, mask))
