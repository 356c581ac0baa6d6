"""Ops on CuPy arrays on a GPU: without copies, on CuPy's current stream."""

import numpy as np
import pytest

import reference
import vqgen

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
if not cupy.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

FORM = {"vector_size": 4, "index_bits": 8}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with vqgen.Runtime(0, cache_dir=tmp_path_factory.mktemp("kernels")) as runtime:
        yield runtime


def test_products_on_a_stream_of_its_own(runtime, draw):
    op = runtime.linear({"op": "gemm", "weights": FORM,
                         "shape": {"m": 8, "out_features": 24, "in_features": 64}})
    packed = reference.pack(draw.integers(0, 256, (24, 16)), 8)
    books = draw.standard_normal((1, 1, 256, 4)).astype(np.float16)
    x = draw.standard_normal((8, 64)).astype(np.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        later = cupy.zeros((8, 64), cupy.float16)
        weights = vqgen.Quantized(cupy.asarray(packed), cupy.asarray(books))
        later[...] = cupy.asarray(x)
        y = op(later, weights)
        out = cupy.empty_like(y)
        assert op(later, weights, out=out) is out
    stream.synchronize()
    expected = x.astype(np.float64) @ reference.decoded(packed, books, 64, 8).T
    assert isinstance(y, cupy.ndarray)
    assert reference.worst(cupy.asnumpy(y), expected) < 2e-3
    assert cupy.array_equal(out, y)


def test_arrays_elsewhere_are_refused_in_words(runtime, draw):
    op = runtime.linear({"op": "gemv", "weights": FORM,
                         "shape": {"m": 1, "out_features": 24, "in_features": 64}})
    weights = vqgen.Quantized(cupy.zeros((24, 4), cupy.uint32), cupy.zeros((1, 1, 256, 4), "float16"))
    with pytest.raises(vqgen.BadInput, match="'x'"):
        op(np.zeros((1, 64), np.float16), weights)
    with pytest.raises(vqgen.BadInput, match="'x'"):
        op(cupy.zeros((1, 64), cupy.float32), weights)
