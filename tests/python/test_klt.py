"""KLT caches: runs, covariance, how channels are dealt to codes, training and simulation, and how codes are shared out."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
from vqgen import _klt, _partitions, simulation
from vqgen._partitions import LEVELS, runs_of, share_out

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
    turned, straight = (_klt.train(rows, [(8, 2)], seed=2, iterations=20, scope="channel_group", basis=each)
                        for each in (None, plain))
    assert abs(lost(rows, turned) / lost(rows, straight) - 1) < 0.2  # few vectors an entry
    form = straight[0]["parts"][0] | {"channels": None}
    unrotated = simulation.dequantized((rows.cpu() - mean[:, None].float())[None].to(DEVICE), form,
                                       straight[1]["codebooks"].view(4, 1, 256, 2))[0]
    assert torch.equal(held_of(rows, straight), unrotated + mean[:, None].float().to(DEVICE))


def test_channels_that_are_constant_are_held(draw):
    """Exactly where each position has a codebook; mixed with others they share what those lose."""
    rows = correlated(draw, head_dim=12)
    rows = torch.cat((rows, torch.full_like(rows[:, :, :4], 3.0)), 2)
    mean, variances, rotation = basis_of(rows)
    assert (variances[:, 12:] < 1e-9).all() and all(torch.isfinite(each).all() for each in (mean, variances, rotation))
    for entry_type, scope in (("f16", "head"), ("int8", "channel_group")):
        trained = _klt.train(rows, [(8, 4), (8, 8)], "channel", 1, 3, scope, entry_type=entry_type)
        assert all(torch.isfinite(each.float()).all() for each in trained[1].values())
        held = held_of(rows, trained)
        off = (held - rows).abs()
        assert off[:, :, 12:].max() < (0.05 if scope == "channel_group" else off[:, :, :12].max())
        assert lost(rows, trained) < 0.5
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


def dealt_basis(rows, form):
    """The dealt basis of rows, whose variances are those of the rows in it."""
    basis = _klt.dealt(basis_of(rows, entries=16), form)
    rotated = (rows.cpu().double() - basis.mean[:, None]) @ basis.rotation
    assert torch.allclose(rotated.var(1, correction=0), basis.variances, rtol=1e-6, atol=1e-9)
    return basis


@pytest.mark.parametrize("runs", [[(16, 4)], [(16, 2)], [(4, 2), (4, 4), (8, 8)], [(8, 8), (8, 2)], [(6, 2), (10, 5)]])
def test_a_dealt_basis_is_orthogonal_and_its_sub_vectors_are_alike(draw, runs):
    """Element i of all sub-vectors of a part has about the same variance: exactly where their number is a power of two."""
    rows = correlated(draw, tokens=400)
    form = _klt.operand_form(runs)
    basis = dealt_basis(rows, form)
    assert torch.allclose(basis.rotation.mT @ basis.rotation, torch.eye(16, dtype=torch.double).expand(2, -1, -1), atol=1e-5)
    assert torch.allclose(basis.variances.sum(1), basis_of(rows, entries=16).variances.sum(1))
    for part in form["parts"]:
        elements = basis.variances[:, part["channels"]].unflatten(1, (-1, part["vector_size"]))
        unlike = (elements / elements.mean(1, keepdim=True) - 1).abs().max()
        assert unlike < (1e-9 if elements.shape[1] in (1, 2, 4, 8) else 1.0)
        assert (elements.mean(1).diff() <= 1e-9).all()  # strata fall


def test_strata_are_dealt_so_that_codes_spend_alike():
    """A spectrum by hand: 8 channels, two pairs and one quad, 24 bits. Water-filling gives the upper six channels 4 bits
    each at level 2^-8: each code spends 8."""
    variances = torch.tensor([[1.0] * 6 + [2.0**-20] * 2], dtype=torch.double)
    plain = _klt.Basis(torch.zeros(1, 8, dtype=torch.double), variances, torch.eye(8, dtype=torch.double)[None])
    pairs_and_quad = _klt.dealt(plain, _klt.operand_form([(4, 2), (4, 4)]))
    assert torch.allclose(pairs_and_quad.variances, torch.tensor([[1, 1, 1, 1, 1, 1, 2.0**-20, 2.0**-20]], dtype=torch.double))
    # The narrower of equal parts comes first: one pair takes channels 0 and 1 as its first elements.
    assert (pairs_and_quad.rotation[0, :2, [0, 2]].abs() > 0.7).all() and pairs_and_quad.rotation[0, 2, 4] == 1


def test_codebooks_of_their_own_positions_keep_the_eigenvectors(draw):
    rows = correlated(draw)
    plain = basis_of(rows, entries=16)
    assert _klt.dealt(plain, _klt.operand_form([(16, 4)], "channel_group")) is plain
    zero = _klt.dealt(plain._replace(variances=torch.zeros_like(plain.variances)), _klt.operand_form([(16, 4)]))
    assert torch.isfinite(zero.rotation).all()


@pytest.mark.parametrize("runs", [[(16, 2)], [(16, 4)], [(16, 8)], [(8, 4), (8, 8)]])
def test_dealt_channels_lose_less_than_eigenvectors(draw, runs, monkeypatch):
    rows = correlated(draw, tokens=1500, decay=6.0)
    mixed = lost(rows, _klt.train(rows, runs, iterations=8))
    monkeypatch.setattr(_klt, "dealt", lambda basis, form: basis)
    assert mixed < 0.8 * lost(rows, _klt.train(rows, runs, iterations=8))


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 96, 112, 128, 192, 256])
def test_runs_add_up(head_dim):
    used = []
    for level in LEVELS:
        runs = runs_of(level, head_dim)
        sizes = [size for _, size in runs]
        assert sum(channels for channels, _ in runs) == head_dim and len(runs) <= 2
        assert sizes == sorted(set(sizes)) and set(sizes) <= set(_partitions.SIZES)
        assert all(channels % _partitions.STEP == 0 for channels, _ in runs)
        used.append(_partitions.stored_codes(runs))
        assert used[-1] <= _partitions.codes_of(level, head_dim) < level * head_dim / 128 + _partitions.WORD
    assert used == sorted(used) and used[-1] == head_dim // 2
    assert runs_of(32, head_dim) == [(head_dim, 4)]


def test_runs_of_128_channels_have_all_codes_of_their_level():
    assert [runs_of(level, 128) for level in LEVELS] == [
        [(64, 8), (64, 16)], [(128, 8)], [(64, 4), (64, 16)], [(64, 4), (64, 8)], [(128, 4)], [(32, 2), (96, 4)],
        [(64, 2), (64, 4)], [(128, 2)]]


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
    (lambda: runs_of(32, 72), "head_dim is 72; KLT caches have a multiple of 16"),
    (lambda: runs_of(31, 128), "level is 31; give one of 12, 16"),
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
