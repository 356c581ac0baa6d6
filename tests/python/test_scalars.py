"""Matrices to and from int8, on NumPy and the host backend."""

import numpy as np
import pytest

import vqgen
from vqgen import configs


def quantizing(host, tokens=40, channels=72, scales="computed", dtype="f32"):
    return host.scalar(configs.ScalarConfig(configs.ScalarShape(tokens, channels, scales),
                                            dtype=dtype))


@pytest.mark.parametrize("dtype, type_", [("f32", np.float32), ("f16", np.float16)])
def test_a_matrix_goes_to_int8_and_back(host, draw, dtype, type_):
    op = quantizing(host, dtype=dtype)
    back = host.scalar({"op": "int8_dequantize", "dtype": dtype,
                        "shape": {"tokens": 40, "channels": 72}})
    assert op.name == "int8_quantize" and op.bucket(1) == 40 and op.bucket(41) == 0
    for tokens in (1, 7, 40):
        x = draw.uniform(-1, 1, (tokens, 72)).astype(type_)
        codes, scales = op(x)
        expected = np.abs(x).max(0).astype(np.float32) / np.float32(127)
        assert np.array_equal(scales, expected) and codes.dtype == np.int8
        assert np.array_equal(codes, np.rint(x.astype(np.float32) / expected).astype(np.int8))
        assert np.array_equal(back(codes, scales), (codes * scales).astype(type_))
        again, same = quantizing(host, scales="given", dtype=dtype)(x, scales)
        assert same is scales and np.array_equal(again, codes)


def test_measures():
    x = np.array([[1, 2], [3, 4]], np.float32)
    y = np.array([[1, 2.5], [2, 4]], np.float32)
    query = np.array([[2, 4], [0, 1]], np.float32)
    lost = vqgen.scalar_errors(x, y, query)
    assert lost == (1.25 ** 0.5, 1.0, (2 + 0.5 + 2 + 0) / 4)
    assert vqgen.scalar_errors(x, x) == (0, 0, 0)
    y[0, 0] = np.nan
    lost = vqgen.scalar_errors(x, y)
    assert np.isnan(lost.l2) and np.isnan(lost.largest)


def test_what_has_no_measures():
    x = np.zeros((2, 3), np.float32)
    for arrays, words in [
            ((x, x[:1]), "'restored' is float32 .1, 3. on cpu, and 'original'"),
            ((x, x[:, :2]), "'restored'"),
            ((x, x, x[:, :2].copy()), "'queries' has 2 channels, and 'original' 3"),
            ((x.astype(np.float64), x), "'original' is float64"),
            ((x, None), "'restored' is of type NoneType")]:
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.scalar_errors(*arrays)


def test_matrices_that_are_none(host):
    op = quantizing(host)
    x = np.zeros((40, 72), np.float32)
    frozen = np.ones(72, np.float32)
    frozen.flags.writeable = False
    for call, words in [
            (lambda: op(x.astype(np.float16)), r"'from' is float16 .40, 72. on cpu; it has to be"),
            (lambda: op(np.zeros((41, 72), np.float32)), "tokens is 41"),
            (lambda: op(x[:, :64].copy()), "'from'"),
            (lambda: op(x, out=np.zeros((39, 72), np.int8)), "'to' has 39 rows, and 'from' 40"),
            (lambda: op(x, frozen), "'scales' is read-only, and is written"),
            (lambda: quantizing(host, scales="given")(x), "'scales' is missing"),
            (lambda: op(None), "'matrix' is missing")]:
        with pytest.raises(vqgen.Error, match=words):
            call()
