"""Fused products: gates, residuals and multipliers of linear ops, joined layers, and the MLP of two launches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import reference
import vqgen
import vqgen.torch as vt
from vqgen import _linear
from vqgen._fused import fuse
from test_layers import random_weights
from test_torch import DEVICE

BYTES = vqgen.format_fields("aqlm-2x8i8")
MAX_BUCKETS = 1


def layer_of(draw, outputs, columns=64, form=BYTES, dtype=torch.float16, **more):
    """Return a layer with random codes, whose results are about 1, and its W."""
    config = vt.config_text({"op": "gemm", "dtype": vt.DTYPES[dtype], "weights": form, "shape": {
        "m": 256, "out_features": outputs, "in_features": columns}})
    codes, books, scales, output_scales = random_weights(draw, config)
    if scales is not None:
        scales *= 0.3
    layer = vt.VQLinear(vqgen.Quantized(codes, books, scales), form, outputs, columns, output_scales=output_scales, dtype=dtype,
                        **more)
    dense = vt.config_text({"op": "weight_dequantize", "dtype": vt.DTYPES[dtype], "weights": form, "shape": {
        "rows": outputs, "out_features": outputs, "in_features": columns}})
    return layer, torch.ops.vqgen.weight_dequantize(dense, codes, books, scales, output_scales).double()


def silu(x):
    return x / (1 + torch.exp(-x))


def close(y, wanted, bound=6e-3):
    return reference.worst(y.float().cpu(), wanted.double().cpu().numpy()) < bound


@pytest.mark.parametrize("rows", [1, 3, 300])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_residual_and_a_multiplier(draw, rows, dtype):
    layer, w = layer_of(draw, 48, dtype=dtype, residual=True, multiplier=0.22)
    x, residual = torch.randn(rows, 64, device=DEVICE).to(dtype), torch.randn(rows, 48, device=DEVICE).to(dtype)
    wanted = residual.double() + 0.22 * (x.double() @ w.T)
    assert close(layer(x, residual), wanted, 6e-3 if dtype == torch.float16 else 5e-2)
    with pytest.raises(vqgen.BadInput, match="residual is missing, and the layer was made with residual=True"):
        layer(x)
    assert layer(x[:0], residual[:0]).shape == (0, 48)


@pytest.mark.parametrize("rows", [1, 3, 300])
@pytest.mark.parametrize("gate_rows", [1, 8, 48])
def test_gate_rows_and_up_rows_in_runs(draw, rows, gate_rows):
    layer, w = layer_of(draw, 96, gate="silu", gate_rows=gate_rows)
    x = torch.randn(2, rows, 64, device=DEVICE).half()
    gate, up = w.unflatten(0, (-1, 2, gate_rows)).unbind(1)
    wanted = silu(x.double() @ gate.flatten(0, 1).T) * (x.double() @ up.flatten(0, 1).T)
    y = layer(x)
    assert y.shape == (2, rows, 48) and close(y, wanted)


@pytest.mark.parametrize("same", [False, True])
def test_joined_layers_have_the_outputs_of_their_parts(draw, same):
    form = {**BYTES, "output_scales": same}
    layers = [layer_of(draw, outputs, form=form)[0] for outputs in (64, 32, 32)]
    if same:
        for each in layers[1:]:
            each.codebooks = layers[0].codebooks
    whole = vt.join_layers(layers)
    assert vqgen.format_fields(whole.format)["scope"] == ("tensor" if same else "tile")
    x = torch.randn(5, 64, device=DEVICE).half()
    assert close(whole(x), torch.cat([each(x) for each in layers], -1), 4e-3)


@pytest.mark.parametrize("same", [False, True])
def test_an_mlp_of_two_products(draw, same):
    (gate, gate_w), (up, up_w) = layer_of(draw, 96), layer_of(draw, 96)
    if same:
        gate, up = (layer_of(np.random.default_rng(seed), 96)[0] for seed in (1, 2))
        up.codebooks = gate.codebooks
        x = torch.eye(64, device=DEVICE).half()
        gate_w, up_w = gate(x).T.double(), up(x).T.double()
    down, down_w = layer_of(draw, 64, 96)
    mlp = vt.FusedMLP(gate, up, down, residual=True, multiplier=0.5)
    assert vt.parsed(mlp.gate_up.config)["shape"].get("gate_rows", 1) == (1 if same else 96)
    x = torch.randn(4, 64, device=DEVICE).half()
    inner = silu(x.double() @ gate_w.T) * (x.double() @ up_w.T)
    assert close(mlp(x, x), x.double() + 0.5 * (inner @ down_w.T), 1e-2)


def test_a_result_may_overwrite_its_residual(draw):
    layer, _ = layer_of(draw, 48, residual=True)
    op = vt.runtime(DEVICE).linear(vt.parsed(layer.config))
    x, residual = torch.randn(3, 64, device=DEVICE).half(), torch.randn(3, 48, device=DEVICE).half()
    wanted = layer(x, residual)
    weights = vqgen.Quantized(layer.codes, layer.codebooks, layer.stage_scales)
    assert op(x, weights, output_scales=layer.output_scales, residual=residual, out=residual) is residual
    assert torch.equal(residual, wanted)
    with pytest.raises(vqgen.BadInput, match="residual"):
        op(x, weights, output_scales=layer.output_scales)


def test_what_does_not_fit_is_refused(draw):
    layer, _ = layer_of(draw, 48)
    x = torch.randn(3, 64, device=DEVICE).half()
    with pytest.raises(vqgen.BadInput, match="residual is given, and the layer was made without"):
        layer(x, x)
    with pytest.raises(vqgen.BadInput, match="bias goes without gate"):
        layer_of(draw, 48, gate="silu", bias=torch.zeros(24))
    with pytest.raises(vqgen.BadInput, match=r"layers of \[48, 32\] outputs; give \[gate, up\]"):
        vt.join_layers([layer, layer_of(draw, 32)[0]], gate="silu")
    with pytest.raises(vqgen.BadInput, match="layers differ in format"):
        vt.join_layers([layer, layer_of(draw, 48, 128)[0]])
    gated, _ = layer_of(draw, 48, gate="silu")
    with pytest.raises(vqgen.Infeasible, match="vqgen::linear has no gradient"):
        gated(x.requires_grad_()).sum().backward()


def test_more_rows_judge_a_residual_as_a_launch_does(draw):
    layer, _ = layer_of(draw, 48, residual=True)
    plain, _ = layer_of(draw, 48)
    x, residual = torch.randn(520, 64, device=DEVICE).half(), torch.randn(520, 48, device=DEVICE).half()
    weights = layer.codes, layer.codebooks, layer.stage_scales, layer.output_scales
    for wrong in (None, residual[:300], residual[:1], residual[:, :1], residual.float()):
        with pytest.raises(vqgen.BadInput, match="'residual' is"):
            torch.ops.vqgen.linear(layer.config, x, *weights, residual=wrong)
    with pytest.raises(vqgen.BadInput, match="'residual' is given"):
        torch.ops.vqgen.linear(plain.config, x, *weights, residual=residual)


@pytest.mark.parametrize("factor", [0.01, 1.0])
@pytest.mark.parametrize("gate", [None, "silu"])
def test_dense_rows_of_weights_end_as_launches_do(draw, factor, gate):
    layer, w = layer_of(draw, 48, residual=True, multiplier=factor, gate=gate)
    x = torch.randn(300, 64, device=DEVICE).half()
    residual = torch.randn(300, 48 if gate is None else 24, device=DEVICE).half()
    if factor < 1 and gate is None:  # sums beyond the largest f16
        x, w = 8000 * x, 8 * w
    weights = layer.codes, layer.codebooks, layer.stage_scales, layer.output_scales
    def dequantize(part, out, first):
        out.copy_(w[first:first + part])
    y = torch.empty_like(residual)
    _linear.of_many_rows(layer.config, {"from": 1, "part": 32}, None, dequantize, x, y, residual)
    sums = x.double() @ w.half().double().T
    if gate is not None:
        sums = silu(sums[:, 0::2]) * sums[:, 1::2]
    assert close(y, residual.double() + factor * sums)
    assert gate is not None or factor == 1 or sums.abs().max() > 65504


def test_what_layers_have_besides_is_not_lost(draw):
    layer, other = layer_of(draw, 48)[0], layer_of(draw, 48)[0]
    down, _ = layer_of(draw, 64, 48, multiplier=0.22)
    for part in (layer_of(draw, 48, multiplier=0.5)[0], layer_of(draw, 48, gate="silu")[0], layer_of(draw, 48, residual=True)[0]):
        with pytest.raises(vqgen.BadInput, match=r"join_layers\(\): a layer has a gate, a multiplier or a residual"):
            vt.join_layers([layer, part])
    with pytest.raises(vqgen.BadInput, match="a layer has a gate"):
        vt.FusedMLP(layer, other, down)
    with pytest.raises(vqgen.BadInput, match="gate_rows follows"):
        vt.join_layers([layer, other], gate="silu", gate_rows=1)
    with pytest.raises(vqgen.BadInput, match="no layers"):
        vt.join_layers([])
    x = torch.randn(3, 64, device=DEVICE).half()
    other.codebooks, other.stage_scales = layer.codebooks, layer.stage_scales
    assert close(vt.join_layers([layer, other], gate="none")(x), torch.cat([layer(x), other(x)], -1), 4e-3)
    plain, _ = layer_of(draw, 48, gate="none")
    plain(x.requires_grad_()).sum().backward()


def mlp_of(forward):
    class MLP(torch.nn.Module):
        def __init__(self):
            super().__init__()
            draw = np.random.default_rng(3)
            self.gate_proj, self.up_proj = layer_of(draw, 48)[0], layer_of(draw, 48)[0]
            self.down_proj = layer_of(draw, 64, 48)[0]
            self.act_fn = torch.nn.SiLU()
            self.factor = 0.5
            self.norm = torch.nn.LayerNorm(48)

        def forward(self, x):
            return forward(self, x)

    return torch.nn.Sequential(MLP())


@pytest.mark.parametrize("name, forward", [
    ("factor", lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x) * m.factor) * m.up_proj(x))),
    ("clamp", lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x).clamp(max=7)) * m.up_proj(x))),
    ("norm", lambda m, x: m.down_proj(m.norm(m.act_fn(m.gate_proj(x)) * m.up_proj(x)))),
    ("gelu", lambda m, x: m.down_proj(torch.nn.functional.gelu(m.gate_proj(x)) * m.up_proj(x))),
    ("pair", lambda m, x: (m.down_proj(m.act_fn(m.gate_proj(x)) * m.up_proj(x)), None))])
def test_mlps_that_compute_something_else_stay(name, forward):
    model = mlp_of(forward)
    with pytest.raises(vqgen.BadInput, match="fuse\\(\\): no layer has"):
        fuse(model)


def test_an_mlp_with_a_hook_stays():
    llama = lambda m, x: m.down_proj(m.act_fn(m.gate_proj(x)) * m.up_proj(x))
    assert fuse(mlp_of(llama)) == 1
    model = mlp_of(llama)
    model[0].up_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(vqgen.BadInput, match="fuse\\(\\): no layer has"):
        fuse(model)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_a_fused_model_has_the_logits_of_the_model(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import vqgen.hf
    from vqgen._speed import _quantize_randomly
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(DEVICE, torch.float16).eval()
    with pytest.raises(vqgen.BadInput, match="no layer has q_proj"):
        vqgen.hf.fuse(model)
    _quantize_randomly(model, "aqlm-2x8i8")
    ids = torch.randint(1, 64, (2, 5), device=DEVICE)
    with torch.no_grad():
        before = model(ids).logits
        assert vqgen.hf.fuse(model) == 2 * 3
        assert isinstance(model.model.layers[1].mlp, vt.FusedMLP)
        after = model(ids).logits
    assert close(after, before, 2e-2)
