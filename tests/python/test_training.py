"""Codebooks trained on arrays, on all cores and by kernels."""

import numpy as np
import pytest

import vqgen

FORMAT = {"vector_size": 4, "index_bits": 5, "scope": "head", "num_codebooks": 2, "stage_scales": True}


def decoded(vectors, trained):
    """Return the sums of the nearest entries, stage by stage."""
    out = np.zeros_like(vectors)
    for unit, left in enumerate(vectors.reshape(vectors.shape[0], -1, 4)):
        left = left.copy()
        for stage in range(trained.codebooks.shape[1]):
            entries = trained.codebooks[unit, stage].astype(np.float32)
            if trained.scales is not None:
                entries = entries * trained.scales[unit, stage]
            nearest = ((left[:, None] - entries)**2).sum(-1).argmin(1)
            left -= entries[nearest]
        out[unit] = vectors[unit] - left.reshape(vectors.shape[1:])
    return out


def test_codebooks_fit_their_units(host, draw):
    vectors = draw.standard_normal((2, 40, 16)).astype(np.float32)
    vectors[1] *= 9
    trained = vqgen.train_codebooks(vectors, FORMAT, seed=3)
    assert trained.codebooks.shape == (2, 2, 32, 4) and trained.codebooks.dtype == np.float16
    errors = ((vectors - decoded(vectors, trained))**2).mean((1, 2)) / (vectors**2).mean((1, 2))
    assert (errors < 0.12).all()
    again = vqgen.train_codebooks(vectors, FORMAT, seed=3)
    assert (again.codebooks == trained.codebooks).all() and (again.scales == trained.scales).all()
    other = vqgen.train_codebooks(vectors, FORMAT, seed=4)
    assert (other.codebooks != trained.codebooks).any()
    by_kernels = vqgen.train_codebooks(vectors, FORMAT, seed=3, iterations=2, runtime=host)
    on_cores = vqgen.train_codebooks(vectors, FORMAT, seed=3, iterations=2)
    np.testing.assert_allclose(by_kernels.scales, on_cores.scales, rtol=1e-3)
    assert (np.abs(by_kernels.codebooks - on_cores.codebooks) > 5e-3).mean() < 0.05


def test_bf16_and_no_scales(draw):
    vectors = draw.standard_normal((1, 40, 16)).astype(np.float32)
    trained = vqgen.train_codebooks(vectors, {"vector_size": 4, "index_bits": 3}, dtype="bf16")
    assert trained.scales is None and trained.codebooks.dtype == np.uint16
    values = (trained.codebooks.astype(np.uint32) << 16).view(np.float32)
    assert np.abs(values).max() < np.abs(vectors).max() and values.std() > 0.3


def test_format_fields():
    fields = vqgen.format_fields("vecinfer-d8b12")
    assert (fields["vector_size"], fields["index_bits"], fields["num_codebooks"]) == (8, 12, 1)
    assert vqgen.format_fields({"preset": "vecinfer-d4b8", "hadamard": False})["hadamard"] is False


def test_refusals(host, draw):
    vectors = draw.standard_normal((1, 40, 16)).astype(np.float32)
    for change, words in [
            (dict(vectors=vectors[0]), r"shape \[40, 16\]; it is \[units, rows, columns\]"),
            (dict(vectors=vectors.astype(np.float64)), "float64.*has to be float32"),
            (dict(vectors=vectors[:, ::2]), "contiguous"),
            (dict(vectors=vectors[:, :, :14].copy()), "multiple of 4"),
            (dict(vectors=vectors[:, :2].copy()), "8 sub-vectors cannot train 32 entries"),
            (dict(vectors=vectors * np.float32(np.nan)), "must be finite"),
            (dict(vectors=None), "'vectors' is missing"),
            (dict(dtype="f32"), "dtype is 'f32'"),
            (dict(iterations=0), "iterations is 0"),
            (dict(format=3), "a format is"),
            (dict(format="nothing"), "nothing")]:
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.train_codebooks(**{"vectors": vectors, "format": FORMAT, **change})
    with pytest.raises(vqgen.Infeasible, match="decoder e8p"):
        vqgen.train_codebooks(vectors, "quip-2")
    with pytest.raises(vqgen.Infeasible, match="train on the CPU"):
        vqgen.train_codebooks(draw.standard_normal((1, 60, 48)).astype(np.float32),
                              {"vector_size": 48, "index_bits": 2}, runtime=host)
