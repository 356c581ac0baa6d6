"""PyTorch modules and caches under their users' operations: gradients, dtypes, copies, files, no rows."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt
from test_torch import (DEVICE, FORM, append_call, attention_call, dequantize_call, linear_call, merge_call, new_cache,
                        tensor)
from vqgen import _bundles
from vqgen._weight_books import e8p_table


def layer_of(draw, dtype=torch.float16, out=40, columns=64, **fields):
    """Return a layer with random codes, and its W."""
    form = {**FORM, "num_codebooks": 2, **fields}
    packed = reference.pack(draw.integers(0, 256, (out, columns // 4 * 2)), 8)
    books = torch.from_numpy(draw.standard_normal((1, 2, 256, 4))).to(dtype)
    scales = tensor(draw.uniform(0.5, 2, out).astype(np.float32)) if fields.get("output_scales") else None
    layer = vt.VQLinear(vqgen.Quantized(tensor(packed.view(np.int32)), books.to(DEVICE)), form, out, columns,
                        output_scales=scales, dtype=dtype, bias=torch.zeros(out, dtype=dtype, device=DEVICE))
    dense = torch.from_numpy(reference.decoded(packed, books.float().numpy(), columns, 8)).to(DEVICE)
    return layer, dense if scales is None else dense * scales[:, None].double()


def random_weights(draw, config):
    """Return codes, codebooks, scales and output_scales of a config."""
    arguments = {each.name: each.shape for each in vt.prepare(config, DEVICE).arguments}
    form = vqgen.format_fields(vt.parsed(config)["weights"])
    codes = draw.integers(-1 << 31, 1 << 31, arguments["weights.codes"]).astype(np.int32)
    books = draw.integers(-60, 61, arguments["weights.codebooks"]) / (1 if form["entry_type"] == "int8" else 64)
    if form["decoder"] == "e8p":
        books[:] = e8p_table().numpy()
    scales = {name: tensor(np.full(arguments[name], scale, np.float32)) if name in arguments else None
              for name, scale in (("weights.scales", 0.01), ("output_scales", 1))}
    if scales["output_scales"] is not None:
        scales["output_scales"] = tensor(draw.uniform(0.5, 2, arguments["output_scales"]).astype(np.float32))
    dtype = torch.bfloat16 if vt.parsed(config)["dtype"] == "bf16" else torch.float16
    return tensor(codes), torch.from_numpy(books).to(DEVICE, dtype), *scales.values()


TILES = {"vector_size": 8, "index_bits": 6, "scope": "tile", "tile_rows": 16}


@pytest.fixture
def one_bucket(tmp_path):
    """A runtime that compiles one kernel for an op."""
    before = vt.runtime(DEVICE)
    vt.use_runtime(vqgen.Runtime(before.device, cache_dir=tmp_path / "kernels", max_buckets=1))
    yield
    vt.use_runtime(before)


@pytest.mark.parametrize("form", ["aqlm-2x8i8", "quip-4", {**TILES, "tile_columns": 32}])
def test_more_rows_than_a_kernel_takes(draw, form, one_bucket):
    config = vt.config_text({"op": "gemm", "dtype": "f16", "weights": form, "shape": {
        "m": 256, "out_features": 40, "in_features": 64}})
    weights = random_weights(draw, config)
    x = torch.randn(300, 64, device=DEVICE).half()
    wanted = torch.cat([torch.ops.vqgen.linear(config, part, *weights) for part in x.split(150)])
    y = torch.ops.vqgen.linear(config, x, *weights)
    assert y.shape == wanted.shape and reference.worst(y.cpu(), wanted.double().cpu().numpy()) < 4e-3
    with pytest.raises(vqgen.BadInput, match="'weights.codes' is int32"):
        torch.ops.vqgen.linear(config, x, weights[0][:-1].contiguous(), *weights[1:])


def test_a_gemm_of_few_rows_takes_no_more(draw):
    config = vt.config_text({"op": "gemm", "dtype": "f16", "weights": FORM, "shape": {
        "m": 4, "out_features": 40, "in_features": 64}})
    with pytest.raises(vqgen.RangeError, match="5"):
        torch.ops.vqgen.linear(config, torch.zeros(5, 64, device=DEVICE).half(), *random_weights(draw, config))


@pytest.mark.parametrize("bits", [2, 3, 5, 8, 11, 16])
def test_codes_are_packed_and_unpacked(bits):
    for count in (1, 7, 65):
        codes = torch.randint(0, 1 << bits, (3, count))
        words = _bundles.packed(codes, bits)
        assert torch.equal(_bundles.unpacked(words, bits, count), codes)
        assert (reference.unpack(words.numpy(), count, bits) == codes.numpy()).all()


@pytest.mark.parametrize("rows", [2, 300])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gradient_of_a_product_is_dy_w(draw, dtype, rows):
    layer, dense = layer_of(draw, dtype, columns=320, output_scales=True)  # more columns than rows of a call
    x = torch.randn(3, rows, 320, dtype=dtype, device=DEVICE, requires_grad=True)
    grad = torch.randn(3, rows, 40, dtype=dtype, device=DEVICE)
    layer(x).backward(grad)
    wanted = grad.double() @ dense
    assert reference.worst(x.grad.double().cpu().numpy(), wanted.cpu().numpy()) < (
        4e-3 if dtype == torch.float16 else 3e-2)


def test_the_gradient_of_experts_is_that_of_each(draw):
    config = vt.config_text({"op": "gemm", "weights": FORM, "shape": {
        "m": 4, "out_features": 24, "in_features": 64, "experts": 3, "total_rows": 6}})
    packed = reference.pack(draw.integers(0, 256, (3, 24, 16)), 8)
    books = draw.standard_normal((3, 1, 256, 4)).astype(np.float16)
    x = torch.randn(6, 64, dtype=torch.float16, device=DEVICE, requires_grad=True)
    grad = torch.randn(6, 24, dtype=torch.float16, device=DEVICE)
    ends = [1, 4, 4, 6]  # of the first row no expert; of the second expert none
    y = torch.ops.vqgen.linear(config, x, tensor(packed.view(np.int32)), tensor(books), None, None,
                               expert_rows=tensor(np.array(ends, np.int32)))
    y.backward(grad)
    wanted = np.zeros((6, 64))
    for expert in range(3):
        own = slice(ends[expert], ends[expert + 1])
        wanted[own] = grad[own].double().cpu().numpy() @ reference.decoded(packed[expert], books[expert:expert + 1], 64, 8)
    assert reference.worst(x.grad.double().cpu().numpy(), wanted) < 4e-3 and not x.grad[0].any()


@pytest.mark.parametrize("name, call, number", [
    ("attention", lambda draw: attention_call(draw)[0], 1), ("dequantize", dequantize_call, 2),
    ("merge", lambda draw: merge_call(draw)[0], 1), ("linear", lambda draw: linear_call(draw)[0], 3)])
def test_what_has_no_gradient_says_so_in_backward(draw, name, call, number):
    arguments = list(call(draw))
    named = {"tokens": 20} if name == "dequantize" else {}
    if name == "merge":
        arguments[1][0].requires_grad_()
    else:
        arguments[number] = arguments[number].requires_grad_()
    op = getattr(torch.ops.vqgen, name)
    outs = op(*arguments, **named)
    out = outs[0] if isinstance(outs, tuple) else outs
    assert out.requires_grad
    with pytest.raises(vqgen.Infeasible, match=f"vqgen::{name} has no gradient"):
        (out + 1).float().sum().backward()
    with torch.no_grad():
        again = op(*arguments, **named)
    assert torch.equal(again[0] if isinstance(again, tuple) else again, out)


def test_a_gradient_by_an_argument_that_is_named_is_not_dropped(draw):
    arguments, _ = attention_call(draw)
    config, *others = arguments
    config = config.replace('"tokens"', '"query_tokens":4,"tokens"')
    fresh = tensor(draw.standard_normal((2, 2, 2, 64)).astype(np.float16)).requires_grad_()
    others[-1] = others[-1] - 1
    out, _ = torch.ops.vqgen.attention(config, *others, query_start=tensor(np.array([0, 1, 2], np.int32)),
                                       new_keys=fresh[0], new_values=fresh[1])
    with pytest.raises(vqgen.Infeasible, match="no gradient"):
        out.sum().backward()


def test_tokens_that_were_appended_with_a_gradient_are_not_dropped(draw):
    cache = new_cache(draw)
    keys, values = (tensor(draw.standard_normal((2, 3, 2, 64)).astype(np.float16)) for _ in "kv")
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    cache.append(keys, values)
    assert not cache.attend(query)[0].requires_grad
    cache.append(keys.requires_grad_(), values)
    for out in (cache.attend(query)[0], cache.dequantize(4)[0]):
        with pytest.raises(vqgen.Infeasible, match="vqgen::append has no gradient"):
            out.sum().backward()
    with torch.no_grad():
        assert not cache.attend(query)[0].requires_grad


@pytest.mark.parametrize("change", [
    lambda layer: layer.half(), lambda layer: layer.bfloat16(), lambda layer: layer.float(),
    lambda layer: layer.to(torch.bfloat16), lambda layer: layer.to("cpu", torch.float16),
    lambda layer: layer.type(torch.float64), lambda layer: layer.double().half()])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_dtype_leaves_the_weights_as_they_are(draw, change, dtype):
    model = torch.nn.Sequential(layer_of(draw, dtype, output_scales=True)[0]).cpu()
    before = {name: buffer.clone() for name, buffer in model[0].named_buffers()}
    change(model)
    after = dict(model[0].named_buffers())
    assert before.keys() == after.keys() == {"codes", "codebooks", "output_scales"}
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype
               for name in before)
    with pytest.raises(vqgen.BadInput, match="x is torch.float32, and the layer's weights are"):
        model(torch.zeros(1, 64))


def test_a_layer_and_a_cache_are_copied_and_saved(draw):
    layer, _ = layer_of(draw, output_scales=True)
    x = torch.randn(3, 64, dtype=torch.float16, device=DEVICE)
    cache = new_cache(draw, recent_tokens=8, sinks=2)
    fresh = [tensor(each) for each in draw.standard_normal((2, 2, 14, 2, 64)).astype(np.float16)]
    cache.append(*fresh)
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    wanted = layer(x), cache.attend(query)[0]
    saved = io.BytesIO()
    torch.save((layer, cache, layer.state_dict()), saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    assert torch.equal(loaded[0](x), wanted[0])
    other, _ = layer_of(draw, output_scales=True)
    other.load_state_dict(loaded[2])
    assert torch.equal(other(x), wanted[0])
    for held in (loaded[1], copy.deepcopy(cache)):
        assert torch.equal(held.attend(query)[0], wanted[1]) and held.bucket(5) == cache.bucket(5)
        held.append(*fresh)
        assert held.lengths.tolist() == [28, 28] and cache.lengths.tolist() == [14, 14]


def test_what_is_made_in_inference_mode_is_used_outside(draw):
    with torch.inference_mode():
        cache = new_cache(draw, recent_tokens=8, sinks=2)
    fresh = [tensor(each) for each in draw.standard_normal((2, 2, 3, 2, 64)).astype(np.float16)]
    query = tensor(draw.standard_normal((2, 4, 64)).astype(np.float16))
    cache.append(*fresh)
    with torch.inference_mode():
        cache.append(*fresh)
        inside = cache.attend(query)[0]
    assert torch.equal(cache.attend(query)[0], inside) and cache.lengths.tolist() == [6, 6]


def test_nothing_comes_of_nothing(draw):
    layer, _ = layer_of(draw)
    for shape in ((0, 64), (2, 0, 64)):
        assert layer(torch.zeros(shape, dtype=torch.float16, device=DEVICE)).shape == (*shape[:-1], 40)
    config, outs, lses = merge_call(draw)[0]
    out, lse = torch.ops.vqgen.merge(config, [each[:0] for each in outs], [each[:0] for each in lses])
    assert out.shape == (0, 3, 64) and lse.shape == (0, 3)
    cache = new_cache(draw)
    cache.append(*cache.new_tokens(0))
    assert cache.dequantize(0)[0].shape == (2, 2, 0, 64) and cache.lengths.tolist() == [0, 0]
    arguments, _ = attention_call(draw)
    config, query, *others = arguments
    config = config.replace('"tokens"', '"query_tokens":4,"tokens"')
    out, lse = torch.ops.vqgen.attention(config, query[:0], *others,
                                         query_start=tensor(np.zeros(3, np.int32)))
    assert out.shape == (0, 4, 64) and lse.shape == (0, 4)


def test_configs_and_sizes_that_are_none(draw):
    (config, x, *others), _ = linear_call(draw)
    for bad, words in (("{", "no JSON"), ("[1]", "of op None"), ('{"op": "gemm"}', "no shape.out_features"),
                       (config.replace("24", "-24"), "is -24"), (config + "\0", "no JSON")):
        with pytest.raises(vqgen.BadInput, match=words):
            torch.ops.vqgen.linear(bad, x, *others)
    with pytest.raises(vqgen.BadInput, match="tokens is -5"):
        torch.ops.vqgen.dequantize(*dequantize_call(draw), tokens=-5)
    with pytest.raises(vqgen.BadInput, match="tokens is -5"):
        torch.ops.vqgen.attention(*attention_call(draw)[0], tokens=-5)
    with pytest.raises(vqgen.BadInput, match="tokens is -5"):
        torch.ops.vqgen.append(*append_call(draw), tokens=-5)
    with pytest.raises(vqgen.BadInput, match="'key_codebooks' is of type list"):
        vt.VQCache(batch=1, query_heads=1, kv_heads=1, head_dim=64, tokens=8, keys=FORM, values=FORM,
                   key_codebooks=[1], value_codebooks=[1])
    with pytest.raises(vqgen.BadInput, match="'vectors' is of type list"):
        vt.train_codebooks([1.0], FORM)
