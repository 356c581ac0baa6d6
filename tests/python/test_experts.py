"""MoE GEMMs in one launch, against each expert alone in NumPy."""

import json

import numpy as np
import pytest

import reference
import vqgen


def made(draw, experts, rows, features, columns):
    """Return a call's x, weights, output scales and offsets, and its result."""
    codes = draw.integers(0, 256, (experts, features, columns // 8 * 2))
    books = draw.standard_normal((experts, 2, 256, 8)).astype(np.float16) / 8
    packed = np.stack([reference.pack(each, 8) for each in codes])
    scales = draw.uniform(0.5, 2, (experts, features)).astype(np.float32)
    counts = draw.integers(0, rows + 1, experts)
    counts[draw.integers(experts)] = rows
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    x = draw.standard_normal((offsets[-1], columns)).astype(np.float16)
    expected = np.concatenate([
        x[offsets[e]:offsets[e + 1]].astype(np.float64) @
        (reference.decoded(packed[e], books[e:e + 1], columns, 8) * scales[e][:, None]).T
        for e in range(experts)])
    return x, vqgen.Quantized(packed, books), scales, offsets, expected


def config(experts, rows, features, columns):
    return {"op": "gemv",
            "shape": {"m": rows, "out_features": features, "in_features": columns,
                      "experts": experts, "total_rows": experts * rows},
            "weights": "aqlm-2x8"}


def test_each_expert_has_its_rows(host, draw):
    sizes = experts, rows, features, columns = 5, 4, int(draw.integers(1, 70)), 256
    linear = host.linear(vqgen.configs.LinearConfig(
        vqgen.configs.LinearShape(rows, features, columns, experts, experts * rows), "aqlm-2x8",
        op="gemv"))
    assert linear.bucket(1) == experts * rows
    x, weights, scales, offsets, expected = made(draw, *sizes)
    y = linear(x, weights, output_scales=scales, expert_rows=offsets)
    assert reference.worst(y, expected) < 4e-3
    for wrong, words in ((None, "missing"), (offsets[1:], "has to be"),
                         (offsets[::-1].copy(), "do not descend")):
        with pytest.raises(vqgen.BadInput, match=words):
            linear(x, weights, output_scales=scales, expert_rows=wrong)


def test_experts_are_more_than_a_byte_counts(host, draw):
    sizes = experts, rows, features, columns = 300, 2, 9, 64
    linear = host.linear(config(*sizes))
    x, weights, scales, offsets, expected = made(draw, *sizes)
    assert reference.worst(linear(x, weights, output_scales=scales, expert_rows=offsets), expected) < 4e-3


def test_one_matrix_has_no_experts(host, draw):
    linear = host.linear({"op": "gemv", "weights": "aqlm-2x8",
                          "shape": {"m": 4, "out_features": 8, "in_features": 64}})
    x, weights, scales, offsets, _ = made(draw, 1, 4, 8, 64)
    with pytest.raises(vqgen.BadInput, match="expert_rows"):
        linear(x, vqgen.Quantized(weights.codes[0], weights.codebooks), output_scales=scales[0],
               expert_rows=offsets)


def test_in_torch(draw):
    torch = pytest.importorskip("torch")
    import vqgen.torch  # noqa: F401, which registers the op

    sizes = 3, 2, 24, 64
    x, weights, scales, offsets, expected = made(draw, *sizes)
    arguments = (json.dumps(config(*sizes)), torch.from_numpy(x),
                 torch.from_numpy(weights.codes.view(np.int32)), torch.from_numpy(weights.codebooks),
                 None, torch.from_numpy(scales))
    y = torch.ops.vqgen.linear(*arguments, expert_rows=torch.from_numpy(offsets))
    assert reference.worst(y, expected) < 4e-3
    torch.library.opcheck(torch.ops.vqgen.linear, arguments,
                          {"expert_rows": torch.from_numpy(offsets)})
