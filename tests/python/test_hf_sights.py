"""Models whose layers see windows or chunks, bound their scores or have sink logits: a VQCache gives what the model's own
attention gives over all tokens."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import vqgen
import vqgen.hf
from hf_models import DEVICE, IDS, layers, near, new_cache, steps, tiny  # noqa: F401
from vqgen._models import attending
from vqgen._sights import Sight, attended, sights_of

WINDOW = {"sliding_window": 6}
MODELS = {
    "Mistral": WINDOW,
    "Qwen2": {**WINDOW, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
    "Qwen3": {**WINDOW, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": WINDOW,
    "Gemma2": {**WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 64,
               "layer_types": ["sliding_attention", "full_attention"]},
    "Gemma3": {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "GptOss": {**WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1,
               "layer_types": ["sliding_attention", "full_attention"]},
    "Llama4": {"attention_chunk_size": 6, "num_local_experts": 2, "intermediate_size_mlp": 128,
               "layer_types": ["chunked_attention", "full_attention"]},
}


def made(kind):
    model = tiny(kind, {"Gemma3": "Gemma3Text", "Llama4": "Llama4Text"}.get(kind), **MODELS[kind])
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("sinks"):
                tensor.copy_(torch.linspace(-1, 4, len(tensor)))
    return model


def eager(model, ids, **options):
    with attending(model, "eager"), torch.no_grad():
        return model(ids, use_cache=False, **options).logits.float()


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_the_models_own_attention(kind, layers):
    model = made(kind)
    whole = eager(model, IDS)
    for options in ({}, {"recent_tokens": 4, "sinks": 2}, {"drafts": 1}):
        cache = new_cache(model, layers, **options)
        ours = steps(model, cache, prompt=9)
        assert near(ours, whole[:, 8:]), (kind, options)
    with torch.no_grad():
        parts = new_cache(model, layers)
        model(IDS[:, :9], past_key_values=parts)
        ours = model(IDS[:, 9:14], past_key_values=parts).logits.float()  # a later part of a prompt
    assert near(ours, whole[:, 9:14]), kind
    assert sights_of(model.config.get_text_config(decoder=True)) != [Sight()] * 2


def test_calibration_refuses_centered_keys_of_bounded_scores(tmp_path):
    with pytest.raises(vqgen.Infeasible, match=r"calibrate\(keys\): its keys are centered.*vecinfer-d4b8i8"):
        vqgen.hf.calibrate(made("Gemma2"), [IDS], tmp_path / "books", keys="klt-4bit-keys", values="vecinfer-d4b8i8")
    assert not (tmp_path / "books").exists()


def test_calibration_names_a_missing_tool(tmp_path, monkeypatch):
    monkeypatch.setenv("VQGEN_TOOL", str(tmp_path / "vqgen"))
    with pytest.raises(vqgen.BadInput, match="VQGEN_TOOL: .* is no program"):
        vqgen.hf.calibrate(made("Mistral"), [], tmp_path / "books", keys="vecinfer-d4b8i8", values="vecinfer-d4b8i8")


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2", "Llama4"])
def test_a_model_that_sees_all_says_something_else(kind):
    model = made(kind)
    whole = eager(model, IDS)
    for name, value in (("sliding_window", 64), ("attention_chunk_size", 64), ("attn_logit_softcapping", None)):
        if hasattr(model.config, name):
            setattr(model.config, name, value)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert not near(eager(model, IDS)[:, 8:], whole[:, 8:])


@pytest.mark.parametrize("kind", ["Mistral", "GptOss", "Llama4"])
def test_padding_to_the_left_moves_no_window(kind, layers):
    model = made(kind)
    mask = torch.ones(2, 12, dtype=torch.long, device=DEVICE)
    mask[0, :5] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    whole = eager(model, IDS[:, :12], attention_mask=mask, position_ids=positions)
    cache = new_cache(model, layers)
    with torch.no_grad():
        model(IDS[:, :10], attention_mask=mask[:, :10], position_ids=positions[:, :10], past_key_values=cache)
        for token in (10, 11):
            ours = model(IDS[:, token:token + 1], attention_mask=mask[:, :token + 1],
                         position_ids=positions[:, token:token + 1], past_key_values=cache).logits.float()
            assert near(ours[:, -1], whole[:, token]), (kind, token)


def test_the_parts_of_a_prompt_attend_as_defined():
    generator = torch.Generator().manual_seed(5)
    query, keys, values = (torch.randn(2, heads, 40, 16, dtype=torch.float64, generator=generator) for heads in (4, 2, 2))
    sinks = torch.tensor([0.0, 2.0, -torch.inf, 5.0])
    past = torch.arange(40)
    for sight, sees in ((Sight(sliding_window=7), past[None] > past[:, None] - 7),
                        (Sight(attention_chunk=7, logit_softcap=1.5), past[None] // 7 == past[:, None] // 7)):
        scores = query @ keys.repeat_interleave(2, 1).mT * 0.3
        if sight.logit_softcap:
            scores = 1.5 * torch.tanh(scores / 1.5)
        scores.masked_fill_(~sees | (past[None] > past[:, None]), -torch.inf)
        scores = torch.cat((scores, sinks.double().view(1, 4, 1, 1).expand(2, 4, 40, 1)), -1)
        wanted = (scores.softmax(-1)[..., :40] @ values.repeat_interleave(2, 1))[:, :, 11:]
        torch.testing.assert_close(attended(query[:, :, 11:], keys, values, 0.3, sight, sinks), wanted, rtol=1e-5,
                                   atol=1e-6)


def test_centered_keys_have_no_soft_cap(layers):
    model = made("Gemma2")
    item, books = layers[0]
    fields = vqgen.format_fields("klt-2bit-keys")
    with pytest.raises(vqgen.BadInput, match="logit_softcap.*take keys without center"):
        vqgen.hf.VQCache(model.config, [({**item, "keys": fields}, books)] * 2, batch=1, tokens=8, device=DEVICE)


def test_calibration_sees_what_attention_sees():
    from vqgen._calibration import states_of
    model = made("GptOss")
    seen = [each.float().cpu() for states in states_of(model, [IDS], "cpu") for each in states]
    cache = transformers.DynamicCache()
    with attending(model, "eager"), torch.no_grad():
        model(IDS, past_key_values=cache)
    own = [each for layer in cache.layers for each in (layer.keys, layer.values)]
    for ours, theirs in zip(seen, own, strict=True):
        assert near(ours, theirs.transpose(0, 1).flatten(1, 2).float().cpu())
