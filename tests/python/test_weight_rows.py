"""Dense rows of quantized weights, and linear layers that multiply many rows by them."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt
from test_layers import one_bucket, random_weights
from test_torch import DEVICE
from vqgen import _linear, configs

__all__ = ["one_bucket"]  # the fixture

ROWS = {"vector_size": 8, "index_bits": 6, "scope": "tile", "tile_rows": 16, "tile_columns": 128}


def gemm(form, out=40, columns=256, dtype="f16"):
    return vt.config_text({"op": "gemm", "dtype": dtype, "weights": form, "shape": {
        "m": 256, "out_features": out, "in_features": columns}})


def parts_of(config, part):
    """Make the layers of a config multiply more than 256 rows by so many dense rows at a time; None: launches alone."""
    vt.prepare(config, DEVICE).many_rows = part and {"from": 257, "part": part}


def worst(y, wanted):
    return reference.worst(y.double().cpu().numpy(), wanted.double().cpu().numpy())


def test_rows_of_arrays(host, draw):
    codes = draw.integers(0, 256, (50, 16))
    books = draw.standard_normal((1, 1, 256, 4)).astype(np.float16)
    scales = draw.uniform(0.5, 2, 50).astype(np.float32)
    form = configs.Format(4, 8, output_scales=True)
    op = host.weight_rows(configs.WeightRowsConfig(configs.WeightRowsShape(20, 50, 64), form))
    weights = vqgen.Quantized(reference.pack(codes, 8), books)
    dense = reference.decoded(weights.codes, books, 64, 8) * scales[:, None].astype(np.float64)
    assert op.name == "weight_dequantize" and op.many_rows is None
    for first, rows in ((0, None), (13, 20), (45, None), (50, None), (7, 0)):
        got = op(weights, first, rows=rows, output_scales=scales)
        assert got.dtype == np.float16 and got.shape == (min(20, 50 - first) if rows is None else rows, 64)
        assert not len(got) or reference.worst(got, dense[first:first + len(got)]) < 1e-3
    given = np.full((3, 64), 7, np.float16)
    assert op(weights, 4, out=given, output_scales=scales) is not None
    assert reference.worst(given, dense[4:7]) < 1e-3
    for words, kind, arguments in (
            ("first_row", vqgen.RangeError, dict(first_row=31, rows=20)), ("first_row", vqgen.BadInput, dict(first_row=51)),
            ("first_row", vqgen.BadInput, dict(first_row=-1)), ("rows", vqgen.BadInput, dict(rows=-1)),
            ("20", vqgen.RangeError, dict(rows=21)), ("3 rows, and rows is 4", vqgen.BadInput, dict(out=given, rows=4))):
        with pytest.raises(kind, match=words):
            op(weights, output_scales=scales, **arguments)
    with pytest.raises(vqgen.BadInput, match="'output_scales'"):
        op(weights)


@pytest.mark.parametrize("form, dtype", [("aqlm-2x8i8", "f16"), ("aqlm-2x8", "bf16"), ("quip-4", "f16"), ("iq2-xxs", "bf16"),
                                         ("iq3-s", "f16"), ("q2-k", "bf16"), (ROWS, "f16")])
def test_many_rows_of_a_layer_are_those_of_launches(draw, form, dtype, one_bucket):
    config = gemm(form, dtype=dtype)
    weights = random_weights(draw, config)
    if vqgen.format_fields(form).get("group_inputs"):
        weights[0].bitwise_and_(-0x40004001)  # scales behind codes are finite
    x = torch.randn(300, 256, device=DEVICE).to(weights[1].dtype)
    parts_of(config, None)
    wanted = torch.ops.vqgen.linear(config, x, *weights)
    for part in (16, 24, 40):
        parts_of(config, part)
        y = torch.ops.vqgen.linear(config, x, *weights)
        assert y.shape == wanted.shape and worst(y, wanted) < (4e-3 if dtype == "f16" else 3e-2)


def test_few_rows_are_launched(draw, one_bucket, monkeypatch):
    config = gemm("aqlm-2x8i8")
    weights = random_weights(draw, config)
    vt.prepare(config, DEVICE).many_rows = {"from": 290, "part": 40}
    parts = []
    right = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **named: parts.append(len(args[0])) or right(*args, **named))
    for rows in (0, 256, 257, 289, 290):
        torch.ops.vqgen.linear(config, torch.zeros(rows, 256, device=DEVICE).half(), *weights)
    assert parts == [290]


def layer_of(draw, config):
    codes, books, scales, output_scales = random_weights(draw, config)
    bias = torch.randn(40, device=DEVICE).to(books.dtype)
    return vt.VQLinear(vqgen.Quantized(codes, books, scales), vt.parsed(config)["weights"], 40, 256,
                       output_scales=output_scales, dtype=books.dtype, bias=bias)


def test_a_layer_of_many_rows(draw, one_bucket):
    config = gemm("aqlm-2x8i8")
    layer = layer_of(draw, config)
    assert layer.config == config
    parts_of(config, None)
    x = torch.randn(3, 256, 100, device=DEVICE).half().transpose(1, 2)  # a view
    wanted = layer(x)
    parts_of(config, 32)
    assert worst(layer(x), wanted) < 4e-3
    with torch.inference_mode():
        assert worst(layer(x), wanted) < 4e-3
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        assert layer(x).dtype == torch.float16 and worst(layer(x), wanted) < 4e-3
    assert worst(copy.deepcopy(layer)(x), wanted) < 4e-3
    assert layer(x[:0]).shape == (0, 100, 40)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert worst(compiled(x), wanted) < 4e-3
    leaf = x.clone().requires_grad_()
    layer(leaf).sum().backward()
    dense = torch.ops.vqgen.weight_dequantize(_linear.dense_config(config, 40), layer.codes, layer.codebooks,
                                              layer.stage_scales, layer.output_scales)
    assert worst(leaf.grad[0, 0], dense.double().sum(0)) < 4e-3


def test_many_rows_are_judged(draw, one_bucket):
    config = gemm("aqlm-2x8i8")
    weights = random_weights(draw, config)
    parts_of(config, 32)
    x = torch.zeros(300, 256, device=DEVICE).half()
    with pytest.raises(vqgen.BadInput, match="'x'"):
        torch.ops.vqgen.linear(config, x.float(), *weights)
    with pytest.raises(vqgen.BadInput, match="'x'"):
        torch.ops.vqgen.linear(config, x[:, :128].contiguous(), *weights)
    with pytest.raises(vqgen.BadInput, match="'weights.codes'"):
        torch.ops.vqgen.linear(config, x, weights[0][:-1].contiguous(), *weights[1:])


def test_rows_of_tensors(draw, one_bucket):
    config = _linear.dense_config(gemm("aqlm-2x8i8"), 32)
    weights = random_weights(draw, config)
    whole = torch.cat([torch.ops.vqgen.weight_dequantize(config, *weights, first_row=first) for first in (0, 32)])
    assert whole.shape == (40, 256) and whole.dtype == torch.float16
    some = torch.ops.vqgen.weight_dequantize(config, *weights, first_row=5, rows=9)
    assert torch.equal(some, whole[5:14])
    torch.library.opcheck(torch.ops.vqgen.weight_dequantize, (config, *weights), {"first_row": 3, "rows": 4})
    with pytest.raises(vqgen.RangeError, match="first_row"):
        torch.ops.vqgen.weight_dequantize(config, *weights, first_row=20, rows=32)
    books = weights[1].float().half().requires_grad_()
    with pytest.raises(vqgen.Infeasible, match="vqgen::weight_dequantize has no gradient"):
        torch.ops.vqgen.weight_dequantize(config, weights[0], books, *weights[2:]).sum().backward()


def test_what_is_prepared_for_a_layer(one_bucket):
    config = gemm("aqlm-2x8i8", 4096, 4096)
    many = vt.prepare(config, DEVICE).many_rows
    if many is None:
        pytest.skip("no dense GEMM is known on this GPU")
    assert many["from"] > 256 and 0 < many["part"] * 4096 * 2 <= 1 << 25
    vt.runtime(DEVICE).freeze()
    assert vt.prepare(_linear.dense_config(config, many["part"]), DEVICE).name == "weight_dequantize"


@pytest.mark.skipif(DEVICE == "cpu", reason="graphs are of a GPU")
def test_captured_layers_share_nothing_with_others(draw, one_bucket):
    config = gemm("aqlm-2x8i8")
    layers = [layer_of(draw, config) for _ in range(2)]
    parts_of(config, 32)
    x = torch.randn(300, 256, device=DEVICE).half()
    wanted = [layer(x) for layer in layers]
    graph, streams = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = [layer(x) for layer in layers]
    for _ in range(20):
        graph.replay()
        got = []
        for stream, layer in zip(streams, layers):
            with torch.cuda.stream(stream):
                got.append(layer(x))
    torch.cuda.synchronize()
    for one, other, right in zip(captured, got, wanted):
        assert torch.equal(one, right) and torch.equal(other, right)
