"""K-means through PyTorch, for sub-vectors that no kernel trains, against K-means on all cores."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vqgen
import vqgen.torch as vt
from vqgen import _kmeans, _nearest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMAT = {"vector_size": 32, "index_bits": 5, "num_codebooks": 3}


def clustered(draw, units=1, rows=600, columns=64):
    mixed = draw.standard_normal((columns, columns)) * np.exp(draw.standard_normal(columns))
    return torch.from_numpy((draw.standard_normal((units, rows, columns)) @ mixed).astype(np.float32))


def error(vectors, trained):
    """Return the mean squared error per unit."""
    out = []
    for unit, own in enumerate(vectors.reshape(len(vectors), -1, trained.codebooks.shape[-1])):
        tables = trained.codebooks[unit].float().cpu()
        if trained.scales is not None:
            tables = tables * trained.scales[unit].cpu()[:, None, None]
        out.append(float((own - _nearest.encoded(own, tables)[1]).double().square().mean()))
    return np.array(out)


def by_torch(vectors, form, dtype=torch.float16, **options):
    return vqgen.Codebooks(*_kmeans.trained(vectors.to(DEVICE), vqgen.format_fields(form), dtype,
                                            **{"seed": 3, **options}))


@pytest.mark.parametrize("form", [FORMAT, {**FORMAT, "stage_scales": True, "scope": "head"},
                                  {**FORMAT, "vector_size": 64, "num_codebooks": 2}])
def test_its_codebooks_are_as_good_as_those_of_all_cores(draw, form):
    vectors = clustered(draw, units=2)
    vectors[1] *= 30
    ours, theirs = by_torch(vectors, form), vqgen.train_codebooks(vectors, form, seed=3)
    assert ours.codebooks.shape == theirs.codebooks.shape and ours.codebooks.dtype == torch.float16
    assert (ours.scales is None) == (theirs.scales is None)
    if ours.scales is not None:  # the first stage's is the data's
        torch.testing.assert_close(ours.scales[:, 0].cpu(), theirs.scales[:, 0])
    ratio = error(vectors, ours) / error(vectors, theirs)
    assert (np.abs(ratio - 1) < 0.15).all(), ratio  # two draws of the entries that they start from
    again = by_torch(vectors, form)
    assert torch.equal(again.codebooks, ours.codebooks)
    assert not torch.equal(by_torch(vectors, form, seed=4).codebooks, ours.codebooks)


def test_entries_end_at_the_means_of_their_vectors(draw):
    vectors = clustered(draw, rows=300).reshape(-1, 32)
    table = _kmeans.stage_of(vectors, 8, torch.Generator().manual_seed(1), 1000)
    codes = (vectors.double()[:, None] - table.double()).square().sum(-1).argmin(1)
    for entry in range(8):
        torch.testing.assert_close(table[entry], vectors[codes == entry].double().mean(0).float(),
                                   rtol=1e-4, atol=1e-4)


def test_entries_that_nothing_takes_go_beside_those_that_miss_most(draw):
    vectors = clustered(draw, rows=300).reshape(-1, 32)
    vectors[:200] = vectors[0]  # many picks are the same, of which one is taken
    codes = []
    for iterations in (1, 30):
        table = _kmeans.stage_of(vectors, 64, torch.Generator().manual_seed(1), iterations)
        codes.append(_nearest.nearest(vectors, table).unique())
    assert len(codes[1]) >= len(codes[0]) and len(codes[1]) > 55
    one = torch.ones(100, 32)
    assert (_kmeans.stage_of(one, 4, torch.Generator().manual_seed(1), 30) == 1).all()


def test_a_sample_trains_where_there_are_more(draw, monkeypatch):
    monkeypatch.setattr(_kmeans, "_MOST", 100)
    monkeypatch.setattr(_kmeans, "_OF_AN_ENTRY", 4)
    vectors = clustered(draw, rows=500).reshape(-1, 32)
    sample = _kmeans.sample(vectors, 32, torch.Generator().manual_seed(1))
    assert sample.shape == (128, 32) and len(sample.unique(dim=0)) == 128
    assert _kmeans.sample(vectors[:128], 32, None).shape == (128, 32)


def test_refusals(draw):
    vectors = clustered(draw, rows=40)
    for change, words in [
            (dict(vectors=vectors[0]), r"shape \[40, 64\]"), (dict(vectors=vectors.double()), "float64"),
            (dict(form={**FORMAT, "vector_size": 48}), "multiple of 48"),
            (dict(form={**FORMAT, "index_bits": 8}), "cannot train 256 entries"),
            (dict(vectors=vectors * torch.nan), "holds NaN"),
            (dict(vectors=vectors * 1e5), "does not fit torch.float16")]:
        with pytest.raises(vqgen.BadInput, match=words):
            by_torch(**{"vectors": vectors, "form": FORMAT, **change})
    assert torch.isfinite(by_torch(vectors * 1e5, FORMAT, torch.bfloat16).codebooks).all()
    assert _kmeans.takes(vqgen.format_fields(FORMAT))
    for form in ({**FORMAT, "vector_size": 8}, "vecinfer-d4b8i8", "int8-channel", {**FORMAT, "entry_type": "int8"}):
        assert not _kmeans.takes(vqgen.format_fields(form))


@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU")
def test_a_gpu_trains_wide_vectors_where_they_are(draw):
    vectors = clustered(draw)
    trained = vt.train_codebooks(vectors.to(DEVICE), FORMAT, seed=3)
    assert trained.codebooks.is_cuda
    assert torch.equal(trained.codebooks, by_torch(vectors, FORMAT).codebooks)
    start = vqgen.train_rsimvq(vectors, FORMAT, seed=3, steps=0)
    assert torch.equal(start.codebooks, trained.codebooks.cpu())
