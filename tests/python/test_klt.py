"""KLT caches: partitions, covariance, training and simulation, and how codes are shared out."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
from vqgen import _klt, _partitions, simulation
from vqgen._partitions import LEVELS, partition, share_out, shipped

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS = [(4, 2), (4, 4), (8, 8)]


def correlated(draw, heads=2, tokens=600, head_dim=16, decay=3.0):
    """Rows whose channels are mixed, with a mean."""
    mixed = np.linalg.qr(draw.standard_normal((heads, head_dim, head_dim)))[0] * np.exp(
        -decay * np.arange(head_dim) / head_dim)[:, None]
    rows = draw.standard_normal((heads, tokens, head_dim)) * np.exp(0.3 * draw.standard_normal((heads, tokens, 1)))
    return torch.from_numpy((rows @ mixed + draw.standard_normal((heads, 1, head_dim))).astype(np.float32)).to(DEVICE)


def basis_of(*batches, **options):
    moments = _klt.Moments()
    for rows in batches:
        moments.add(rows)
    return moments.basis(**options)


def held_of(rows, trained):
    form, tensors = trained
    return simulation.held_of(rows[None], {"keys": form}, {f"keys.{name}": each for name, each in tensors.items()}, "keys")[0]


def lost(rows, trained):
    return float((held_of(rows, trained) - rows.float()).double().square().sum() / rows.double().square().sum())


def test_a_basis_is_orthogonal_and_has_the_variances_of_what_it_rotates(draw):
    rows = correlated(draw)
    mean, variances, rotation = basis_of(rows, entries=16)
    rotated = (rows.cpu().double() - mean[:, None]) @ rotation
    assert torch.allclose(rotation.mT @ rotation, torch.eye(16, dtype=torch.double).expand(2, -1, -1), atol=1e-5)
    covariance = rotated.mT @ rotated / rows.shape[1]
    assert torch.allclose(covariance, torch.diag_embed(variances), atol=1e-6 * float(variances.max()))
    assert (variances.diff() <= 0).all() and rotated.mean(1).abs().max() < 1e-5
    largest = rotation.gather(1, rotation.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_moments_of_batches_are_those_of_all_rows(draw, monkeypatch):
    rows = correlated(draw)
    whole = basis_of(rows, entries=16)
    monkeypatch.setattr(_klt, "_AT_ONCE", 70)
    for each, expected in zip(basis_of(*rows.split(130, 1), entries=16), whole):
        assert torch.allclose(each, expected, atol=1e-8)


def test_a_constant_added_to_all_rows_changes_the_mean_alone(draw):
    rows = correlated(draw).half().float()
    added = 1024.0 * torch.arange(16, device=DEVICE)  # float32 holds the sums to 0.002
    mean, variances, rotation = basis_of(rows.double(), entries=16)
    moved = basis_of(rows.double() + added, entries=16)
    assert torch.allclose(moved.mean, mean + added.cpu()) and torch.allclose(moved.variances, variances, atol=1e-9)
    assert torch.allclose(moved.rotation, rotation, atol=1e-6)
    squares = [(held_of(each, _klt.train(each, PARTS, "channel", 3, 5)) - each).square().sum() for each in (rows, rows + 4)]
    assert abs(squares[0] / squares[1] - 1) < 0.1, squares


def test_the_order_of_channels_changes_no_loss(draw):
    rows = correlated(draw)
    order = torch.from_numpy(draw.permutation(16)).to(DEVICE)
    one, other = basis_of(rows, entries=16), basis_of(rows[:, :, order], entries=16)
    assert torch.allclose(one.variances, other.variances, atol=1e-9)
    # Signs follow the largest component, whose place the order does not change.
    assert torch.allclose(one.rotation[:, order.cpu()], other.rotation, atol=1e-6)
    losses = [lost(each, _klt.train(each, PARTS, seed=5, iterations=8)) for each in (rows, rows[:, :, order])]
    assert abs(losses[0] / losses[1] - 1) < 0.05, losses


def test_an_identity_covariance_is_rotated_and_no_more(draw):
    """All directions are alike: whatever the rotation, the loss is that of the channels as they are."""
    rows = torch.from_numpy(draw.standard_normal((1, 2000, 8)).astype(np.float32)).to(DEVICE)
    mean, variances, rotation = basis_of(rows)
    assert (variances - 1).abs().max() < 0.2 and mean.abs().max() < 0.1
    plain = _klt.Basis(mean, variances, torch.eye(8, dtype=torch.double)[None])
    turned, straight = (_klt.train(rows, [(8, 2)], seed=2, iterations=20, basis=each) for each in (None, plain))
    assert abs(lost(rows, turned) / lost(rows, straight) - 1) < 0.2  # few vectors an entry
    form = straight[0]["parts"][0] | {"channels": None}
    unrotated = simulation.dequantized((rows.cpu() - mean[:, None].float())[None].to(DEVICE), form,
                                       straight[1]["codebooks"].view(1, 1, 256, 2))[0]
    assert torch.equal(held_of(rows, straight), unrotated + mean[:, None].float().to(DEVICE))


def test_channels_that_are_constant_are_held_exactly(draw):
    rows = correlated(draw, head_dim=12)
    rows = torch.cat((rows, torch.full_like(rows[:, :, :4], 3.0)), 2)
    mean, variances, rotation = basis_of(rows)
    assert (variances[:, 12:] < 1e-9).all() and all(torch.isfinite(each).all() for each in (mean, variances, rotation))
    for entry_type, scope in (("f16", "head"), ("int8", "channel_group")):
        trained = _klt.train(rows, [(8, 4), (8, 8)], "channel", 1, 3, scope, entry_type=entry_type)
        assert all(torch.isfinite(each.float()).all() for each in trained[1].values())
        held = held_of(rows, trained)
        assert (held[:, :, 12:] - 3).abs().max() < 0.05 and lost(rows, trained) < 0.5
    alike = torch.ones(1, 300, 16, device=DEVICE)
    trained = _klt.train(alike, PARTS, "head", entry_type="int8", iterations=2)
    assert torch.equal(held_of(alike, trained), alike)


@pytest.mark.parametrize("scope", _klt.SCOPES)
def test_training_repeats_by_its_seed_and_int8_loses_little(draw, scope):
    rows = correlated(draw)
    first, again, other = (_klt.train(rows, PARTS, "channel", seed, 3, scope) for seed in (1, 1, 2))
    assert all(torch.equal(first[1][name], again[1][name]) for name in first[1]) and first[0] == again[0]
    assert not torch.equal(first[1]["codebooks"], other[1]["codebooks"])
    units = [2, 2, 2] if scope == "head" else [4, 2, 2]
    assert first[1]["codebooks"].shape == (256 * sum(n * size for n, (_, size) in zip(units, PARTS)),)
    rounded = _klt.train(rows, PARTS, "channel", 1, 3, scope, entry_type="int8")
    assert rounded[1]["codebooks"].dtype == torch.int8 and rounded[1]["stage_scales"].shape == (sum(units),)
    assert abs(lost(rows, rounded) / lost(rows, first) - 1) < 0.1


def test_a_gain_brings_scores_to_their_size(draw):
    """What is left of sum z.z / sum z.z' is 1, for each head or for each channel; codes stay as they are."""
    rows = correlated(draw, tokens=1500)
    trained = {key_gain: _klt.train(rows, [(16, 8)], key_gain, 1, 5) for key_gain in _klt.GAINS}
    sums = {key_gain: _klt.gained(rows, *each) for key_gain, each in trained.items()}
    of_head, of_channel = ({key_gain: ((squares.sum(1) / products.sum(1) if whole else squares / products) - 1).abs().max()
                            for key_gain, (squares, products) in sums.items()} for whole in (True, False))
    assert of_head["none"] > 0.05 and of_head["head"] < 1e-5 and of_channel["channel"] < 1e-5 < of_channel["head"]
    assert torch.equal(trained["none"][1]["codebooks"], trained["channel"][1]["codebooks"])
    form, tensors = trained["channel"]
    by_query = torch.einsum("hd,hdc,htc->ht", rows[:, 0], tensors["rotation"] * tensors["gain"][:, None], simulation.dequantized(
        ((rows - tensors["mean"][:, None]) @ tensors["rotation"])[None], form, tensors["codebooks"])[0])
    scores = torch.einsum("hd,htd->ht", rows[:, 0], held_of(rows, trained["channel"]) - tensors["mean"][:, None])
    assert torch.allclose(by_query, scores, rtol=1e-4, atol=1e-4 * float(scores.abs().max()))


def test_narrow_vectors_go_where_the_variance_is(draw):
    """The cut by variance loses less than one vector size at as many codes."""
    rows = correlated(draw, tokens=1500, decay=6.0)
    cut = partition(basis_of(rows).variances.tolist(), 4, 16)
    assert len(cut) > 1 and sum(channels // size for channels, size in cut) <= 4
    assert lost(rows, _klt.train(rows, cut, iterations=8)) < 0.7 * lost(rows, _klt.train(rows, [(16, 4)], iterations=8))


def expected_loss(spectrum, parts):
    at, total = 0, 0.0
    for channels, size in parts:
        for first in range(at, at + channels, size):
            total += size * math.prod(spectrum[first:first + size])**(1 / size) * 2**(-16 / size)
        at += channels
    return total


@pytest.mark.parametrize("head_dim, sizes, step, word", [
    (16, (2, 4, 8, 16), 1, 1), (24, (2, 4, 8), 8, 1), (12, (1, 2, 3, 4, 6), 1, 1), (32, (2, 4, 8, 16), 8, 4)])
def test_a_partition_is_the_best_of_all(draw, head_dim, sizes, step, word):
    spectra = [sorted(np.exp(2 * draw.standard_normal(head_dim)), reverse=True) for _ in range(3)]
    runs = [[(n, size) for n in range(size, head_dim + 1, size) if n % step == 0] for size in sizes]
    every = []
    for count in range(1, 5):
        for chosen in itertools.combinations(range(len(sizes)), count):
            for parts in itertools.product(*(runs[each] for each in chosen)):
                starts = itertools.accumulate((n for n, _ in parts), initial=0)
                if sum(n for n, _ in parts) == head_dim and all(at % size == 0 for at, (_, size) in zip(starts, parts)):
                    every.append(parts)
    scaled = [np.array(each) / np.mean(each) for each in spectra]
    def stored(parts):
        return sum(math.ceil(n // size / word) * word for n, size in parts)

    for codes in range(min(map(stored, every)), head_dim // min(sizes) + 2):
        fit = [parts for parts in every if stored(parts) <= codes]
        best = min(sum(expected_loss(each, parts) for each in scaled) for parts in fit)
        found = partition(spectra, codes, head_dim, sizes, step=step, word=word)
        assert tuple(found) in fit
        assert math.isclose(sum(expected_loss(each, found) for each in scaled), best, rel_tol=1e-9)


@pytest.mark.parametrize("operand", ["keys", "values"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_shipped_partitions_add_up(operand, head_dim):
    used = []
    for level in LEVELS:
        parts = shipped(operand, level, head_dim)
        sizes = [size for _, size in parts]
        assert sum(channels for channels, _ in parts) == head_dim and len(parts) <= 4
        assert sizes == sorted(set(sizes)) and set(sizes) <= set(_partitions.SIZES)
        assert all(channels % _partitions.STEP == 0 for channels, _ in parts)
        used.append(_partitions.stored_codes(parts))
        assert used[-1] <= _partitions.codes_of(level, head_dim) < level * head_dim / 128 + _partitions.WORD
    assert used == sorted(used) and used[-1] == head_dim // 2
    assert shipped(operand, 32, 128) == [(32, 2), (32, 4), (64, 8)]


def test_a_spectrum_of_another_head_size_keeps_its_shape():
    spectrum = [2.0**-(channel + 0.5) for channel in range(16)]
    for head_dim in (8, 16, 40):
        logs = np.log2(_partitions.resampled(spectrum, head_dim))
        places = (np.arange(head_dim) + 0.5) / head_dim * 16
        inside = (places >= 0.5) & (places <= 15.5)
        assert np.allclose((logs + places)[inside] - (logs + places)[inside][0], 0)


def test_codes_are_shared_out_at_the_least_rise(draw):
    for costs in (None, {(0, "keys"): 1, (0, "values"): 2, (1, "keys"): 3, (1, "values"): 1}):
        rises = {(layer, operand): dict(zip(LEVELS, np.sort(draw.random(8))[::-1].tolist()))
                 for layer in range(2) for operand in ("keys", "values")}
        weights = {key: 1 if costs is None else costs[key] for key in rises}
        whole = sum(weights.values())
        every = [(sum(weights[key] * codes for key, codes in zip(rises, chosen)) / whole,
                  sum(rises[key][codes] for key, codes in zip(rises, chosen)))
                 for chosen in itertools.product(LEVELS, repeat=4)]
        for mean in (12, 17.3, 32, 64):
            shares = share_out(rises, mean, costs)
            assert list(shares) == list(rises) and shares == share_out(rises, mean, costs)
            assert sum(weights[key] * codes for key, codes in shares.items()) / whole <= mean + 1e-9
            least = min(rise for codes, rise in every if codes <= mean + 1e-9)
            assert math.isclose(sum(rises[key][codes] for key, codes in shares.items()), least)
    flat = {(0, operand): dict.fromkeys(LEVELS, 0.5) for operand in ("keys", "values")}
    assert set(share_out(flat, 40).values()) == {12}  # codes that gain nothing are not spent


@pytest.mark.parametrize("call, words", [
    (lambda: partition([[1.0] * 256], 12, 256), "codes is 12, too few for head_dim 256 .* give at least 16"),
    (lambda: partition([[1.0] * 128], 7, 128), "codes is 7, too few"),
    (lambda: partition([[1.0] * 10], 5, 10, (4, 8)), "multiple of 4"),
    (lambda: partition([[1.0] * 16], 8, 32), "16 numbers does not suit head_dim 32"),
    (lambda: partition([[math.nan] * 16], 8, 16), "finite"),
    (lambda: partition([], 8, 16), "'spectra' is empty"),
    (lambda: shipped("keys", 32, 72), "head_dim is 72; partitions are shipped for 64, 80"),
    (lambda: shipped("values", 31, 128), "level is 31; .* 12, 16"),
    (lambda: share_out({(0, "keys"): {16: 0.1, 32: 0.0}}, 12), "mean_codes is 12, .* mean of 16"),
    (lambda: share_out({(0, "keys"): {16: math.nan}}, 16), "rise of .* at 16 codes is nan"),
    (lambda: share_out({(0, "keys"): {16: 0.1}}, 16, {}), "the cost of .* is None"),
    (lambda: share_out({}, 16), "'rises' lacks levels"),
    (lambda: basis_of(), "0 rows are too few"),
    (lambda: basis_of(torch.ones(1, 255, 16)), "255 rows are too few for head_dim 16 and 256 entries; give at least 256"),
    (lambda: basis_of(torch.ones(1, 300, 160)), "give at least 320"),
    (lambda: basis_of(torch.full((1, 300, 16), math.nan)), "NaN or infinity"),
    (lambda: basis_of(torch.full((1, 300, 16), math.inf, dtype=torch.float16)), "NaN or infinity"),
    (lambda: basis_of(torch.ones(300, 16)), r"\[300, 16\]; give floats \[kv_heads"),
    (lambda: basis_of(torch.ones(1, 300, 16), torch.ones(2, 300, 16)), "before were of 1 heads of 16"),
    (lambda: _klt.train(torch.ones(1, 300, 16), [(8, 2)]), "parts: they have 8 channels"),
    (lambda: _klt.train(torch.ones(1, 300, 16), [(10, 4), (6, 2)]), "a run of 10 channels has sub-vectors of 4"),
    (lambda: _klt.train(torch.ones(1, 300, 16), PARTS, "token"), "key_gain is 'token'; give one of none, head, channel"),
    (lambda: _klt.train(torch.ones(1, 300, 16), PARTS, scope="tensor"), "scope is 'tensor'"),
    (lambda: _klt.train(torch.ones(1, 300, 16), PARTS, entry_type="fp4"), "entry_type is 'fp4'"),
    (lambda: _klt.train(torch.ones(1, 200, 16), PARTS, basis=basis_of(torch.ones(1, 300, 16))),
     "200 tokens have 200 sub-vectors .* give at least 256 tokens"),
    (lambda: _klt.train(1e6 * torch.randn(1, 300, 16), PARTS, iterations=2), "an entry does not fit f16")])
def test_bad_input_is_refused_in_a_line(call, words):
    with pytest.raises(vqgen.BadInput, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
