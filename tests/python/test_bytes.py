"""GEMM with int8 entries and a common scale, through the library on the host backend."""

import numpy as np
import pytest

import reference
import vqgen


@pytest.mark.parametrize("dataflow", ["int8_mma", "int8_wgmma"])
def test_products_of_bytes(host, draw, dataflow):
    rows, features, columns = int(draw.integers(9, 40)), int(draw.integers(1, 70)), 256
    linear = host.linear({"op": "gemm", "shape": {"m": rows, "out_features": features,
                                                  "in_features": columns},
                          "weights": "aqlm-2x8i8", "plan": {"dataflow": dataflow}})
    codes = draw.integers(0, 256, (features, columns // 8 * 2))
    integers = draw.integers(-63, 64, (1, 2, 256, 8)).astype(np.float16)
    weights = vqgen.Quantized(reference.pack(codes, 8), integers,
                              scales=np.full((1, 2), 2.0**-6, np.float32))
    scales = draw.uniform(0.5, 2, features).astype(np.float32)
    x = draw.standard_normal((rows, columns)).astype(np.float16)
    dense = reference.decoded(weights.codes, weights.codebooks, columns, 8) * scales[:, None] / 64
    for count in (rows, int(draw.integers(1, rows))):
        expected = x[:count].astype(np.float64) @ dense.T
        assert reference.worst(linear(x[:count], weights, output_scales=scales), expected) < 4e-3
