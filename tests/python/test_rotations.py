"""The kernel that rotates rows, against QuIP#'s algorithm in double precision."""

import hashlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import numpy as np
import quip_models
import vqgen
import vqgen.torch as vt  # noqa: F401, which registers the op

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ORDERS = (1, 12, 20, 28, 36, 52, 60, 108, 140, 156, 172)
# Digests are of the lines of + and - of had.52.will, had.156.will and had.172.will of Sloane's tables.
DIGESTS = {52: "d29c4ee2fe7d69eda4a1b478847d6e81b4870875256dfcbaa1c864a2632ba192", 156: "d8a01bc66af9184ddaf028c8a22946c701fd0207a10a2c4e0fb1f85d46b43abd", 172: "690f0f133fd9b3a0c65769f1b28ef28644fc40498189be933df039532aceebd4"}


@pytest.mark.parametrize("order", ORDERS)
def test_the_matrices_are_hadamard_and_those_of_the_tables(order):
    matrix = quip_models.matrix(order)
    assert (matrix @ matrix.T == order * np.eye(order)).all() and (abs(matrix) == 1).all()
    if order in DIGESTS:
        lines = "\n".join("".join("+" if each > 0 else "-" for each in row) for row in matrix)
        assert hashlib.sha256(lines.encode()).hexdigest() == DIGESTS[order]


def rotated(draw, features, rows, back, dtype):
    x = torch.from_numpy(draw.standard_normal((rows, features))).to(DEVICE, dtype)
    signs = torch.from_numpy(draw.choice([-1.0, 1.0], features) * draw.uniform(0.5, 2, features)).to(DEVICE, torch.float32)
    return x, signs, torch.ops.vqgen.rotate(x, signs, back)


def expected(x, signs, back):
    x, signs = x.double().cpu().numpy(), signs.double().cpu().numpy()
    return quip_models.had(x) * signs if back else quip_models.had(x * signs, transposed=True)


@pytest.mark.parametrize("order, back", [(1, False), (20, True), (36, False), (172, True)])  # tests/rotating has all
def test_rows_are_rotated(draw, order, back):
    for bits, rows, dtype in ((4, 3, torch.bfloat16), (4, 17, torch.float16)):
        x, signs, y = rotated(draw, order << bits, rows, back, dtype)
        wanted = expected(x, signs, back)
        assert y.dtype == dtype and y.shape == x.shape
        error = np.linalg.norm(y.double().cpu().numpy() - wanted) / np.linalg.norm(wanted)
        assert error < (1e-3 if dtype == torch.float16 else 8e-3)


def test_a_fault_in_a_matrix_is_found(draw, monkeypatch):
    x, signs, y = rotated(draw, 12 * 8, 2, True, torch.float16)
    own = quip_models.matrix
    monkeypatch.setattr(quip_models, "matrix", lambda order: own(order).T)
    wanted = expected(x, signs, True)
    assert np.linalg.norm(y.double().cpu().numpy() - wanted) > 0.05 * np.linalg.norm(wanted)


def test_no_rows_and_bad_input(draw):
    signs = torch.ones(64, device=DEVICE)
    assert torch.ops.vqgen.rotate(torch.zeros(0, 64, device=DEVICE).half(), signs, False).shape == (0, 64)
    for x, own, words in ((torch.zeros(2, 44), torch.ones(44), "x is torch.float16 .2, 44.; it is rows of 1, 12"),
                          (torch.zeros(64), torch.ones(64), "x is torch.float16 .64.; it is rows"),
                          (torch.zeros(2, 64), torch.ones(32), "signs are torch.float32 .32. on"),
                          (torch.zeros(2, 64), torch.ones(64).half(), "signs are torch.float16 .64.")):
        with pytest.raises(vqgen.BadInput, match=words):
            torch.ops.vqgen.rotate(x.to(DEVICE).half(), own.to(DEVICE), True)
    with pytest.raises(vqgen.BadInput, match="x is torch.float32 .2, 64.; .* in float16 or bfloat16"):
        torch.ops.vqgen.rotate(torch.zeros(2, 64, device=DEVICE), signs, True)


def test_a_frozen_runtime_makes_no_rotation(tmp_path):
    own, device = vt.runtime(DEVICE), vt.runtime(DEVICE).device
    vt.use_runtime(vqgen.Runtime(device, cache_dir=tmp_path))
    vt.runtime(DEVICE).freeze()
    with pytest.raises(vqgen.Error, match="the rotation is new and the runtime is frozen"):
        torch.ops.vqgen.rotate(torch.zeros(2, 64, device=DEVICE).half(), torch.ones(64, device=DEVICE), True)
    vt.use_runtime(own)


def test_rotations_are_captured(draw):
    if DEVICE.type != "cuda":
        pytest.skip("this machine has no GPU")
    x, signs, _ = rotated(draw, 28 * 128, 3, False, torch.float16)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = torch.ops.vqgen.rotate(x, signs, False)
    x.normal_()
    graph.replay()
    assert torch.equal(y, torch.ops.vqgen.rotate(x, signs, False))


@pytest.mark.parametrize("back", [False, True])
def test_gradients_are_rotated_back(draw, back):
    x, signs, _ = rotated(draw, 48, 3, back, torch.float16)
    x.requires_grad_()
    y = torch.ops.vqgen.rotate(x, signs, back)
    dy = torch.randn_like(y)
    y.backward(dy)
    # <dy, R v> = <R^T dy, v> for any v.
    v = torch.randn_like(x)
    left = (dy.double() * torch.ops.vqgen.rotate(v, signs, back).detach().double()).sum()
    assert abs(left - (x.grad.double() * v.double()).sum()) < 0.02 * dy.double().norm() * v.double().norm()
    with pytest.raises(vqgen.Infeasible, match="rotate has no gradient"):
        torch.ops.vqgen.rotate(x, signs.clone().requires_grad_(), back).sum().backward()


def test_compiled_graphs_have_it(draw):
    x, signs, y = rotated(draw, 96, 2, False, torch.float16)
    made = torch.compile(lambda x: torch.ops.vqgen.rotate(x, signs, False) + 0, backend="aot_eager", fullgraph=True)
    assert torch.equal(made(x), y)
