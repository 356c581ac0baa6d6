"""Heads of values of another size than heads of keys: a VQCache against PyTorch over what it holds, and a model that has
them, MiMo-V2-Flash, against the simulation that shares no code with kernels."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
import vqgen.torch
from vqgen._models import require_served
from vqgen._sights import Sight, attended
from vqgen.simulation import simulated

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORM = {"vector_size": 4, "index_bits": 8, "entry_type": "int8", "scope": "head", "stage_scales": True}
BATCH, HEADS, KV_HEADS, TOKENS = 2, 8, 2, 40


def new_cache(head_dim, value_head_dim, **more):
    books = [vqgen.torch.train_codebooks(torch.randn(KV_HEADS, 512, dim, device=DEVICE), FORM) for dim in (head_dim, value_head_dim)]
    return vqgen.torch.VQCache(
        batch=BATCH, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=head_dim, value_head_dim=value_head_dim, tokens=TOKENS,
        keys=FORM, values=FORM, key_codebooks=books[0].codebooks, value_codebooks=books[1].codebooks,
        key_scales=books[0].scales, value_scales=books[1].scales, **more)


@pytest.mark.parametrize("head_dim, value_head_dim", [(192, 128), (64, 128)])
def test_a_cache_attends_to_values_of_their_own_size(head_dim, value_head_dim):
    torch.manual_seed(5)
    cache = new_cache(head_dim, value_head_dim, recent_tokens=8, sinks=2)
    keys, values = (torch.randn(BATCH, 30, KV_HEADS, dim, dtype=torch.float16, device=DEVICE) for dim in (head_dim, value_head_dim))
    cache.append(keys, values)
    dense_keys, dense_values = cache.dequantize(30)
    assert dense_keys.shape == (BATCH, KV_HEADS, 30, head_dim)
    assert dense_values.shape == (BATCH, KV_HEADS, 30, value_head_dim)
    # The newest tokens and sinks are as they came.
    assert torch.equal(dense_values[:, :, 22:].transpose(1, 2), values[:, 22:])
    assert torch.equal(dense_keys[:, :, :2].transpose(1, 2), keys[:, :2])
    query = torch.randn(BATCH, HEADS, head_dim, dtype=torch.float16, device=DEVICE)
    out, lse = cache.attend(query, tokens=30)
    assert out.shape == (BATCH, HEADS, value_head_dim) and lse.shape == (BATCH, HEADS)
    group = HEADS // KV_HEADS
    scores = torch.einsum("bhd,bhtd->bht", query.double(), dense_keys.double().repeat_interleave(group, 1)) * head_dim**-0.5
    expected = torch.einsum("bht,bhtd->bhd", scores.softmax(2), dense_values.double().repeat_interleave(group, 1))
    assert (out.double() - expected).norm() <= 4e-3 * expected.norm()
    assert torch.allclose(lse.double(), scores.logsumexp(2), atol=2e-2)


def test_the_size_of_keys_is_no_size_of_its_own():
    cache = new_cache(64, 64)
    assert "value_head_dim" not in cache.attention_config
    assert [each.shape for each in cache.new_tokens(3)] == [(BATCH, 3, KV_HEADS, 64)] * 2


def mimo(**fields):
    if not hasattr(transformers, "MiMoV2FlashConfig"):
        pytest.skip("transformers has no MiMoV2Flash")
    sizes = dict(vocab_size=64, hidden_size=256, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=128, v_head_dim=64, initializer_range=0.08,
                 mlp_layer_types=["dense", "dense"], layer_types=["full_attention"] * 2, eos_token_id=None, bos_token_id=None,
                 pad_token_id=None)
    return transformers.MiMoV2FlashConfig(**{**sizes, **fields})


@torch.no_grad()
def test_a_model_is_served(tmp_path):
    torch.manual_seed(11)
    model = transformers.MiMoV2FlashForCausalLM(mimo()).to(DEVICE, torch.float16).eval()
    bundle = tmp_path / "bundle"
    vqgen.hf.calibrate(model, [torch.randint(1, 64, (4, 96)) for _ in range(2)], bundle, keys="vecinfer-d4b8i8",
                       values="vecinfer-d4b8i8")
    ids = torch.randint(1, 64, (2, 24), device=DEVICE)
    plain = model(ids).logits.float()
    with simulated(model, vqgen.hf.layers_of(bundle), recent_tokens=8):
        expected = model(ids).logits.float()
    model.set_attn_implementation("vqgen")
    cache = vqgen.hf.VQCache(model.config, bundle, batch=2, tokens=32, recent_tokens=8, device=DEVICE)
    steps = [model(ids[:, :20], past_key_values=cache, use_cache=True).logits]
    steps += [model(ids[:, at:at + 1], past_key_values=cache, use_cache=True).logits for at in range(20, 24)]
    got = torch.cat(steps, 1).float()
    # Codes of near ties may differ; a prompt attends to itself in full precision.
    whole = plain
    got, expected, plain = got[:, 20:], expected[:, 20:], plain[:, 20:]
    assert (got - plain).norm() <= 1.5 * (expected - plain).norm()
    assert torch.isfinite(got).all()
    # A padded prompt, and a second one after it.
    two = vqgen.hf.VQCache(model.config, bundle, batch=2, tokens=32, recent_tokens=8, device=DEVICE)
    seen = torch.ones(2, 24, dtype=torch.long, device=DEVICE)
    seen[1, :4] = 0
    model(ids[:, :12], attention_mask=seen[:, :12], past_key_values=two, use_cache=True)
    second = model(ids[:, 12:], attention_mask=seen, past_key_values=two, use_cache=True).logits.float()
    lost = (expected - plain).norm() / plain.norm()
    assert (second[0] - whole[0, 12:]).norm() <= 2 * lost * whole[0, 12:].norm()
    with pytest.raises(vqgen.BadInput, match="2 heads of 128 and of 64 in values, and the model has 2 of 128;"):
        vqgen.hf.VQCache(mimo(v_head_dim=128), bundle, batch=2, tokens=32)


def test_prompts_with_a_window_have_the_size_of_values():
    query, keys, values = (torch.randn(1, heads, 5, dim, device=DEVICE) for heads, dim in ((4, 128), (2, 128), (2, 64)))
    out = attended(query, keys, values, 0.1, Sight(sliding_window=2))
    scores = (query @ keys.repeat_interleave(2, 1).mT) * 0.1
    hidden = torch.ones(5, 5, device=DEVICE).tril().triu(-1) == 0
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values.repeat_interleave(2, 1)
    assert torch.allclose(out, expected, atol=1e-5)


def test_layers_of_other_kv_heads_are_refused():
    with pytest.raises(vqgen.Infeasible, match="KV heads of other numbers in its layers of sliding_attention"):
        require_served(mimo(layer_types=["full_attention", "sliding_attention"], sliding_window=16))
