"""Codes and codebooks of weights in the metric of their inputs, against plain definitions in float64."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vqgen
import vqgen.torch
from vqgen import _weight_books, _weight_codes, _weights

FORM = {"vector_size": 4, "index_bits": 3, "num_codebooks": 2, "scope": "tensor"}
INT8 = {**FORM, "entry_type": "int8", "stage_scales": True, "common_scale": True, "output_scales": True}


def problem(out=24, columns=16, seed=0):
    """Return weights [out, columns], and the Hessian of correlated inputs, float32."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(400, columns, generator=draw) @ torch.randn(columns, columns, generator=draw)
    return torch.randn(out, columns, generator=draw), inputs.T @ inputs / 400


def tables_of(stages=2, codes=6, size=4):
    return torch.randn(stages, codes, size, generator=torch.Generator().manual_seed(5))


def sums(tables):
    """Return all sums of one entry of each stage, [codes^stages, size], and the codes of each."""
    chosen = list(itertools.product(range(tables.shape[1]), repeat=len(tables)))
    return torch.stack([sum(table[code] for table, code in zip(tables, each)) for each in chosen]), chosen


def plain_feedback(weights, hessian, tables):
    """Return GPTQ's codes by its definition: of the columns that are left, the group whose error costs least with all
    those behind it moved by the least squares, one row at a time, in float64, with every sum of entries tried."""
    size = tables.shape[2]
    points, chosen = sums(tables.double())
    codes = []
    for row in weights.double():
        left, own = row.clone(), []
        for at in range(0, len(row), size):
            inverse = torch.linalg.inv(hessian.double()[at:, at:])
            errors = left[at:at + size] - points
            metric = torch.linalg.inv(inverse[:size, :size])
            best = (errors @ metric * errors).sum(1).argmin()
            own.append(chosen[best])
            left[at + size:] -= errors[best] @ metric @ inverse[:size, size:]
        codes.append(own)
    return torch.tensor(codes)


def test_feedback_is_its_plain_definition():
    weights, hessian = problem()
    hessian, tables = _weight_codes.damped(hessian, 0.01), tables_of()
    codes = _weight_codes.fed_back(weights, hessian, tables, beam=6, by_activity=False)
    assert torch.equal(codes, plain_feedback(weights, hessian, tables))


def test_groups_of_more_activity_come_first_and_lose_less_in_total():
    weights, hessian = problem(out=200, columns=64)
    scale = torch.logspace(0, 2, 64)
    hessian = _weight_codes.damped(hessian * scale[:, None] * scale, 0.01)
    tables = tables_of(codes=16)
    loss = {by: _weight_codes.loss_of(weights - _weight_books.decoded(_weight_codes.fed_back(
        weights, hessian, tables, 4, by_activity=by), tables), hessian) for by in (True, False)}
    assert loss[True] < loss[False]


def test_a_beam_of_all_codes_is_a_search_of_all_sums(monkeypatch):
    tables, vectors = tables_of(), torch.randn(50, 4)
    points, chosen = sums(tables)
    nearest = torch.cdist(vectors.double(), points.double()).argmin(1)
    assert torch.equal(_weight_codes.searched(vectors, tables, 6), torch.tensor(chosen)[nearest])
    monkeypatch.setattr(_weight_codes, "_MOST", 100)  # distances at once: two rows
    assert torch.equal(_weight_codes.searched(vectors, tables, 6), torch.tensor(chosen)[nearest])
    losses = []
    for beam in (1, 2, 6):
        found = _weight_books.decoded(_weight_codes.searched(vectors, tables, beam)[:, None], tables)
        losses.append(float((vectors - found).square().sum()))
    assert losses[0] > losses[2] and losses == sorted(losses, reverse=True)


def test_a_pass_over_the_groups_takes_the_least_loss_of_each():
    weights, hessian = problem()
    tables = tables_of()
    points, chosen = sums(tables)
    codes = _weight_codes.searched(weights.reshape(-1, 4), tables, 6).view(24, 4, 2)
    expected = codes.clone()
    for group in range(4):
        for row in range(24):
            trials = expected[row].expand(len(points), -1, -1).clone()
            trials[:, group] = torch.tensor(chosen)
            error = (weights[row] - _weight_books.decoded(trials, tables)).double()
            expected[row, group] = trials[(error @ hessian.double() * error).sum(1).argmin(), group]
    assert torch.equal(_weight_codes.improved(weights, hessian, tables, codes.clone(), 6), expected)


def test_entries_are_the_least_squares_of_their_codes():
    weights, hessian = problem(out=60)
    fields = vqgen.format_fields(FORM)
    codes = torch.randint(0, 8, (60, 4, 2), generator=torch.Generator().manual_seed(2))
    rows = torch.rand(60, generator=torch.Generator().manual_seed(3)) + 0.5
    books = _weight_books.Books(torch.randn(2, 8, 4), torch.ones(2), fields, torch.float16)
    _weight_books.fitted(books, weights, hessian, rows, codes, 200)
    chosen = torch.nn.functional.one_hot(codes, 8).double().flatten(2)  # [out, groups, 16]
    root = torch.linalg.cholesky(hessian.double())
    places = torch.eye(16).double().view(4, 4, 16)  # [group, element, column]
    design = torch.einsum("ogk,gdc->okdc", chosen, places)
    design = (design @ root * rows.sqrt()[:, None, None, None].double()).permute(0, 3, 1, 2).reshape(60 * 16, -1)
    wanted = (weights.double() @ root * rows.sqrt()[:, None].double()).flatten()
    solution = torch.linalg.lstsq(design, wanted, driver="gelsd").solution
    least = float((design @ solution - wanted).square().sum())
    ours = float((design @ books.tables.double().flatten() - wanted).square().sum())
    assert least <= ours < least * 1.001


def test_output_scales_are_the_least_squares_of_each_row():
    weights, hessian = problem()
    quantized = weights + 0.3 * torch.randn(24, 16)
    scales = _weight_books.row_scales(weights, hessian, quantized, torch.ones(24))
    for factor in (0.99, 1.01):
        other = weights - quantized * (scales * factor)[:, None]
        assert ((other @ hessian * other).sum(1) > ((weights - quantized * scales[:, None]) @ hessian * (
            weights - quantized * scales[:, None])).sum(1)).all()
    assert _weight_books.row_scales(weights, hessian, -weights, torch.full((24,), 7.0)).eq(7).all()


@pytest.mark.parametrize("form", (FORM, INT8, {**INT8, "common_scale": False}, "quip-2"))
def test_a_matrix_loses_less_than_by_plain_encoding(form):
    weights, hessian = problem(out=128, columns=64)
    fields = vqgen.format_fields(form)
    size = fields["vector_size"]
    damped = _weight_codes.damped(hessian, 0.01)
    rms = weights.square().mean(1, keepdim=True).sqrt() if fields["output_scales"] else torch.ones(128, 1)
    plain = _weight_books.started(weights / rms, torch.ones(128, 64 // size), fields, torch.float16, 1)
    codes = _weight_codes.searched((weights / rms).reshape(-1, size), plain.entries(), 1).view(128, 64 // size, -1)
    before = _weight_codes.loss_of(weights - _weight_books.decoded(codes, plain.entries()) * rms, damped)
    made = _weights.trained(weights, hessian, fields, torch.float16, _weights.Effort(rounds=1))
    after = _weight_codes.loss_of(weights - made.weight(), damped)
    assert after < 0.7 * before, (after, before)
    if fields["entry_type"] == "int8":
        tables = made.books.tables
        peak = 63 if fields.get("common_scale") else 127
        assert torch.equal(tables, tables.round()) and peak / 2 < tables.abs().max() <= peak
        assert not fields.get("common_scale") or made.books.scales.unique().numel() == 1


def test_points_of_the_lattice_are_those_of_its_definition():
    table = _weight_books.e8p_table()
    assert table.shape == (256, 8) and (table.square().sum(1) <= 12).all() and len(table.unique(dim=0)) == 256
    points = _weight_books.lattice_points(table)
    assert len(points.unique(dim=0)) == 1 << 16
    shifted = points - torch.where(torch.arange(1 << 16) < 1 << 15, 0.25, -0.25)[:, None]
    assert torch.equal(shifted.abs(), table[torch.arange(1 << 16) & 255])
    assert (shifted.sum(1) % 2 == 0).all()
    signs = (torch.arange(1 << 16)[:, None] >> torch.arange(8, 15)) & 1
    assert torch.equal(shifted[:, :7] < 0, signs == 1)


def test_inputs_that_are_always_zero_cost_nothing_and_break_nothing():
    weights, hessian = problem(out=64)
    hessian[:, 3] = hessian[3] = 0
    made = _weights.trained(weights, hessian, vqgen.format_fields(INT8), torch.float16, _weights.Effort(rounds=1))
    assert torch.isfinite(made.weight()).all()
    error = weights - made.weight()
    assert _weight_codes.loss_of(error, hessian) < 0.2 * _weight_codes.loss_of(weights, hessian)
