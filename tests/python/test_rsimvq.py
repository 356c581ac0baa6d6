"""Codebooks by RSimVQ: laws of the training, an oracle in NumPy, and the kernels' results."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
from vqgen import _nearest, _rsimvq

FORMAT = {"vector_size": 16, "index_bits": 4, "num_codebooks": 3, "scope": "tensor"}
QUICK = {"steps": 40, "batch": 200, "learning_rate": 5e-3}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread: small products are slower on several, far more so beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def clustered(draw, units=1, rows=150, columns=32):
    """Return vectors that codebooks can learn: correlated, with unequal channels."""
    mixed = draw.standard_normal((columns, columns)) * np.exp(draw.standard_normal(columns))
    return (draw.standard_normal((units, rows, columns)) @ mixed).astype(np.float32)


def oracle(vectors, codebooks, scales=None):
    """Return codes and sums of greedy residual quantization of one unit, in double precision: equations 1 to
    3.
    vectors: [n, size], codebooks: [stages, entries, size]."""
    left, codes = vectors.astype(np.float64), []
    for stage, entries in enumerate(codebooks.astype(np.float64)):
        entries = entries if scales is None else entries * float(scales[stage])
        codes.append(((left[:, None] - entries)**2).sum(-1).argmin(1))
        left = left - entries[codes[-1]]
    return np.stack(codes, 1), vectors - left


def error(vectors, trained, size=16):
    """Return the mean squared error per unit."""
    return np.array([((own - oracle(own, books, scales)[1])**2).mean() for own, books, scales in zip(
        vectors.reshape(len(vectors), -1, size), np.asarray(trained.codebooks),
        [None] * len(vectors) if trained.scales is None else trained.scales)])


def test_training_never_ends_above_its_start_and_gains(draw):
    vectors = clustered(draw, units=2)
    vectors[1] *= 30
    start = vqgen.train_codebooks(vectors, FORMAT)
    trained = vqgen.train_rsimvq(vectors, FORMAT, start=start, **QUICK)
    assert trained.codebooks.shape == start.codebooks.shape == (2, 3, 16, 16)
    assert trained.codebooks.dtype == np.float16 and trained.scales is None
    assert (error(vectors, trained) < error(vectors, start)).all()
    # Steps that only harm are left out, to the bit.
    wild = vqgen.train_rsimvq(vectors, FORMAT, start=start, steps=10, learning_rate=30.0)
    assert (error(vectors, wild) <= error(vectors, start)).all()
    none = vqgen.train_rsimvq(vectors, FORMAT, steps=0)
    assert np.array_equal(none.codebooks, start.codebooks)


def test_a_sample_judges_and_all_vectors_have_the_last_word(draw, monkeypatch):
    monkeypatch.setattr(_rsimvq, "_SAMPLE", 40)
    monkeypatch.setattr(_rsimvq, "_JUDGED", 2)
    vectors = clustered(draw, rows=400)
    start = vqgen.train_codebooks(vectors, FORMAT)
    # Steps fitted on the sample's vectors alone help these and harm the others.
    monkeypatch.setattr(torch, "randperm", lambda count, generator: torch.arange(count))
    own = vqgen.train_rsimvq(vectors, FORMAT, start=start, steps=200, batch=40, learning_rate=0.1)
    assert (error(vectors, own) <= error(vectors, start)).all()


def test_other_vectors_may_judge(draw):
    """K-means fits a few vectors alone; other vectors of this distribution judge it."""
    whole = clustered(draw, rows=1000)
    vectors, others, last = whole[:, :60].copy(), whole[:, 60:500].copy(), whole[:, 500:].copy()
    start = vqgen.train_codebooks(vectors, FORMAT)
    judged = vqgen.train_rsimvq(vectors, FORMAT, start=start, judged_by=others, **QUICK)
    assert (error(others, judged) <= error(others, start)).all()
    assert (error(last, judged) < 1.05 * error(last, start)).all()
    wild = vqgen.train_rsimvq(vectors, FORMAT, start=start, judged_by=others, steps=10, learning_rate=30.0)
    assert (error(others, wild) <= error(others, start)).all()
    for bad, words in ((others[0], "'judged_by' is torch.float32"), (others * np.float32(np.nan), "holds NaN"),
                       (others.astype(np.float64), "float64"), (others[:, :, :16], "as 'vectors'")):
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.train_rsimvq(vectors, FORMAT, start=start, judged_by=bad)


def test_more_stages_lose_less(draw):
    vectors = clustered(draw)
    errors = [error(vectors, vqgen.train_rsimvq(vectors, {**FORMAT, "num_codebooks": stages}, **QUICK))[0]
              for stages in (1, 2, 4)]
    assert errors[2] < 0.8 * errors[1] < 0.64 * errors[0]
    trained = vqgen.train_rsimvq(vectors, {**FORMAT, "num_codebooks": 4}, **QUICK)
    by_stage = [error(vectors, vqgen.Codebooks(trained.codebooks[:, :stages], None))[0]
                for stages in (1, 2, 3, 4)]
    assert by_stage == sorted(by_stage, reverse=True)


def test_gradients_are_those_of_the_loss(draw):
    """Finite differences in double precision, with the codes and all that sg() holds fixed."""
    vectors = torch.from_numpy(clustered(draw).reshape(-1, 16)[:60].astype(np.float64))
    vectors /= vectors.square().mean().sqrt()
    entries = torch.from_numpy(draw.standard_normal((3, 8, 16)))
    module = _rsimvq.Stages(entries, torch.tensor([0.9, 0.5, 0.3], dtype=torch.double))
    with torch.no_grad():
        module.projections += 0.1 * torch.from_numpy(draw.standard_normal((3, 16, 16)))
    beta, gamma = 0.7, 0.4
    tables = module.tables()
    tables.backward(_rsimvq.gradient(vectors, tables.detach(), beta, gamma))
    codes = _nearest.encoded(vectors, module.tables().detach())[0].numpy()

    def chosen(values):
        """Return the residual and the entry of each stage, in NumPy."""
        left, found = vectors.numpy(), []
        for stage in range(3):
            table = module.scales[stage].item() * values["entries"][stage] @ values["projections"][stage].T
            found.append((left, table[codes[:, stage]]))
            left = left - found[-1][1]
        return found, left

    given = {name: each.detach().numpy().copy() for name, each in module.named_parameters()}
    fixed, _ = chosen(given)

    def loss(values):
        found, left = chosen(values)
        terms = (left**2).sum()
        for (residual, entry), (held_residual, held_entry) in zip(found, fixed):
            terms += beta * ((entry - held_residual)**2).sum() + gamma * ((residual - held_entry)**2).sum()
        return terms / len(vectors)

    for name, parameter in module.named_parameters():
        for _ in range(12):
            place = tuple(int(draw.integers(size)) for size in parameter.shape)
            around = []
            for step in (1e-5, -1e-5):
                values = {**given, name: given[name].copy()}
                values[name][place] += step
                around.append(loss(values))
            assert np.isclose((around[0] - around[1]) / 2e-5, float(parameter.grad[place]), rtol=1e-5,
                              atol=1e-7), (name, place)


def test_folding_the_projection_gives_the_same_reconstruction(draw):
    vectors = clustered(draw).reshape(-1, 16)
    module = _rsimvq.Stages(torch.from_numpy(draw.standard_normal((2, 16, 16)).astype(np.float32)),
                            torch.tensor([2.0, 0.7]))
    with torch.no_grad():
        module.projections += 0.2 * torch.from_numpy(draw.standard_normal((2, 16, 16))).float()
    entries, projections = module.entries.detach().double(), module.projections.detach().double()
    codes, total = _nearest.encoded(torch.from_numpy(vectors), module.tables().detach())
    expected = sum(scale * (projections[stage] @ entries[stage, codes[:, stage]].T).T
                   for stage, scale in enumerate((2.0, float(module.scales[1]))))
    np.testing.assert_allclose(total.numpy(), expected.numpy(), atol=1e-4)
    expected_codes, _ = oracle(vectors, module.tables().detach().numpy())
    assert (codes.numpy() != expected_codes).mean() < 0.01  # near ties


def test_equal_seeds_give_equal_bits(draw):
    vectors = clustered(draw)
    first, again, other = (vqgen.train_rsimvq(vectors, FORMAT, seed=seed, device="cpu", **QUICK)
                           for seed in (3, 3, 4))
    assert np.array_equal(first.codebooks.view(np.uint16), again.codebooks.view(np.uint16))
    assert (first.codebooks != other.codebooks).any()


def test_a_random_start_learns_and_revives_dead_entries(draw):
    vectors = clustered(draw)
    errors = {}
    trained = vqgen.train_rsimvq(vectors, FORMAT, start="random", steps=300, batch=200, learning_rate=2e-2,
                                 progress=lambda unit, step, each: errors.setdefault((unit, step), each))
    assert list(errors) == [(0, step) for step in range(0, 301, 30)]
    assert errors[0, 300] < 0.5 * errors[0, 0]
    used = oracle(vectors.reshape(-1, 16), trained.codebooks[0])[0]
    assert all(len(np.unique(stage)) > 12 for stage in used.T)
    # A start in which all entries but two are far from all vectors.
    start = np.full((1, 1, 16, 16), 1e4, np.float16)
    start[0, 0, :2] = vectors.reshape(-1, 16)[:2]
    form = {**FORMAT, "num_codebooks": 1}
    trained = vqgen.train_rsimvq(vectors, form, start=vqgen.Codebooks(start, None), **QUICK)
    assert len(np.unique(oracle(vectors.reshape(-1, 16), trained.codebooks[0])[0])) > 8


def test_types_scales_and_projections_alone(draw):
    vectors = clustered(draw, units=2)
    scaled = {**FORMAT, "stage_scales": True}
    start = vqgen.train_codebooks(vectors, scaled)
    trained = vqgen.train_rsimvq(vectors, scaled, start=start, **QUICK)
    assert np.array_equal(trained.scales, start.scales)
    assert (error(vectors, trained) < error(vectors, start)).all()
    drawn = vqgen.train_rsimvq(vectors, scaled, start="random", **QUICK)
    assert drawn.scales.shape == (2, 3) and (drawn.scales > 0).all()
    assert (error(vectors, drawn) < (vectors**2).mean((1, 2))).all()
    bits = vqgen.train_rsimvq(vectors, FORMAT, dtype="bf16", **QUICK).codebooks
    assert bits.dtype == np.uint16
    tensors = vqgen.train_rsimvq(torch.from_numpy(vectors), FORMAT, dtype="bf16", **QUICK).codebooks
    assert tensors.dtype == torch.bfloat16
    assert np.array_equal(tensors.view(torch.uint16).numpy(), bits)
    start = vqgen.train_codebooks(vectors, FORMAT)
    projected = vqgen.train_rsimvq(vectors, FORMAT, start=start, train_entries=False, **QUICK)
    assert (error(vectors, projected) < error(vectors, start)).all()
    # The projection of a stage is one for all its entries.
    old, new = (each.codebooks[0, 0].astype(np.float64) for each in (start, projected))
    matrix = np.linalg.lstsq(old, new, rcond=None)[0]
    assert np.abs(old @ matrix - new).max() < 1e-2 * np.abs(new).max()


def test_kernels_store_the_nearest_entries_and_read_their_sums(host, draw):
    form = {"vector_size": 32, "index_bits": 5, "num_codebooks": 4, "scope": "tensor"}
    rows = clustered(draw, rows=90, columns=64)[0]
    rows = (rows / np.abs(rows).max() * 4).astype(np.float16)
    books = vqgen.train_rsimvq(rows[None].astype(np.float32), form, steps=30, batch=128).codebooks
    shape = {"batch": 1, "kv_heads": 1, "head_dim": 64, "tokens": 128}
    append = host.append({"op": "kv_append", "shape": {**shape, "new_tokens": 64}, "keys": form,
                          "values": form})
    cache = [vqgen.Quantized(np.zeros((1, 1, 128, 2 * 4 * 5 // 32 + 1), np.uint32), books) for _ in range(2)]
    new = rows[:64][None, :, None]
    append(new, np.ascontiguousarray(new[:, ::-1]), np.zeros(1, np.int32), *cache)
    expected_codes, expected = oracle(rows[:64].astype(np.float64).reshape(-1, 32), books[0])
    codes = reference.unpack(cache[0].codes[0, 0, :64], 8, 5).reshape(-1, 4)
    assert (codes != expected_codes).any(1).mean() < 0.02  # near ties may go either way
    decode = host.dequantize({"op": "kv_dequantize", "shape": shape, "keys": form, "values": form})
    keys, values = decode(*cache, np.array([64], np.int32))
    same = (codes == expected_codes).all(1).reshape(64, 2).all(1)
    assert reference.worst(keys[0, 0, :64][same], expected.reshape(64, 64)[same]) < 2e-3
    assert np.array_equal(values[0, 0, :64], keys[0, 0, :64][::-1])


def test_refusals(draw, monkeypatch):
    vectors = clustered(draw)
    start = vqgen.train_codebooks(vectors, FORMAT)
    for change, words in [
            (dict(vectors=vectors[0]), r"shape \[150, 32\]; it is \[units, rows, columns\]"),
            (dict(vectors=vectors.astype(np.float64)), "float64; it has to be float32"),
            (dict(vectors=vectors[:, :, :24].copy()), "columns a multiple of 16"),
            (dict(vectors=vectors[:, :4]), "8 sub-vectors cannot train 16 entries"),
            (dict(vectors=np.where(vectors > 1, np.float32(np.nan), vectors)), "holds NaN or infinity"),
            (dict(vectors=None), "'vectors' is missing"),
            (dict(dtype="f32"), "dtype is 'f32'"),
            (dict(steps=-1), "steps is -1"), (dict(steps=1.5), "steps is 1.5"),
            (dict(batch=0), "batch is 0"), (dict(seed="one"), "seed is 'one'"), (dict(beta=-1), "beta is -1"),
            (dict(learning_rate="fast"), "learning_rate is 'fast'"),
            (dict(gamma=float("nan")), "gamma is nan"),
            (dict(learning_rate=float("inf")), "learning_rate is inf"),
            (dict(start="zeros"), "start is 'zeros'"), (dict(start=3), "start is no Codebooks"),
            (dict(start=vqgen.Codebooks(start.codebooks[:, :2], None)), r"want \[1, 3, 16, 16\]"),
            (dict(start=start, dtype="bf16"), "of torch.float16; .* of torch.bfloat16"),
            (dict(start=start, format={**FORMAT, "stage_scales": True}), "lacks them"),
            (dict(start=vqgen.Codebooks(start.codebooks * np.float16(np.inf), None)), "start holds NaN"),
            (dict(format={**FORMAT, "vector_size": 17}), "vector_size"), (dict(format="nothing"), "nothing"),
            (dict(vectors=vectors * np.float32(1e6), start="random", **QUICK), "does not fit f16; take bf16")]:
        with pytest.raises(vqgen.BadInput, match=words):
            vqgen.train_rsimvq(**{"vectors": vectors, "format": FORMAT, **change})
    for form, words in (("quip-2", "decoder e8p"), ("int8-channel", "decoder scalar"),
                        ("int4-kivi-keys", "decoder affine"), ("vecinfer-d4b8i8", "entries of int8")):
        with pytest.raises(vqgen.Infeasible, match=words):
            vqgen.train_rsimvq(vectors, form)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match="train_rsimvq needs PyTorch; pip install"):
        vqgen.train_rsimvq(vectors, FORMAT)


def test_distances_by_blocks_are_those_at_once(draw, monkeypatch):
    vectors, entries = (torch.from_numpy(draw.standard_normal(shape)) for shape in ((50, 16), (32, 16)))
    expected = (vectors[:, None] - entries).square().sum(-1).argmin(1)
    for most in (1, 32 * 7, 1 << 24):
        monkeypatch.setattr(_nearest, "_MOST_DISTANCES", most)
        assert torch.equal(_nearest.nearest(vectors, entries), expected)


def test_training_takes_one_unit_of_pytorch(draw):
    """PyTorch reports the stride of a single unit as 1."""
    vectors = torch.from_numpy(clustered(draw))
    assert torch.equal(vqgen.train_codebooks(vectors, FORMAT).codebooks,
                       torch.from_numpy(vqgen.train_codebooks(vectors.numpy(), FORMAT).codebooks))
